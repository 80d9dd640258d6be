//! Blocks by the wide vectors of x86 (AVX2, AVX-512).
//!
//! The whole string walk is compiled once per width, so that a block costs no call. This module holds the only unsafe
//! code of the request path: two calls of functions with target features, each guarded by detection of these features.
//! The intrinsics are safe inside such functions, and `bytemuck` checks the sizes of casts at compile time.

#![allow(
    unsafe_code,
    reason = "code for a processor's feature may only be called by who has checked that it is there"
)]

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_min_epu8, _mm256_movemask_epi8,
    _mm256_or_si256, _mm256_set1_epi8, _mm256_testz_si256, _mm512_and_si512, _mm512_cmpeq_epi8_mask,
    _mm512_cmplt_epu8_mask, _mm512_set1_epi8,
};

use super::{BYTES, Marks};
use crate::json::walk::Out;
use crate::json::{Malformed, Scanner};

/// Runs [`Scanner::walk_string`] with the widest available vectors; `None` if the CPU has no wide vectors.
#[inline]
pub(in crate::json) fn walk_string(
    scanner: &mut Scanner<'_>,
    run: &mut usize,
    out: &mut impl Out,
) -> Option<Result<(), Malformed>> {
    if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("bmi1") {
        // SAFETY: the CPU has both features of the function, as checked above.
        Some(unsafe { walk_64(scanner, run, out) })
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") {
        // SAFETY: as above.
        Some(unsafe { walk_32(scanner, run, out) })
    } else {
        None
    }
}

#[target_feature(enable = "avx512bw,bmi1")]
fn walk_64(scanner: &mut Scanner<'_>, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
    scanner.walk_string(run, out, |bytes| marks_64(bytes))
}

#[target_feature(enable = "avx2,bmi1")]
fn walk_32(scanner: &mut Scanner<'_>, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
    scanner.walk_string(run, out, |bytes| marks_32(bytes))
}

/// Returns a block's marks, from one vector of 64 bytes: each comparison yields a mask.
#[inline]
#[target_feature(enable = "avx512bw,bmi1")]
fn marks_64(bytes: &[u8; BYTES]) -> Option<Marks> {
    let bytes: __m512i = bytemuck::cast(*bytes);
    let is = |byte: u8| _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(byte as i8));
    let (quotes, backslashes) = (is(b'"'), is(b'\\'));
    let controls = _mm512_cmplt_epu8_mask(bytes, _mm512_set1_epi8(0x20));
    if quotes | backslashes | controls == 0 {
        return None;
    }
    // `b` and `f` differ in one bit.
    let without = _mm512_and_si512(bytes, _mm512_set1_epi8(!0x04));
    let b_or_f = _mm512_cmpeq_epi8_mask(without, _mm512_set1_epi8(b'b' as i8));
    Some(Marks {
        quotes,
        backslashes,
        controls,
        letters: is(b'n') | is(b't') | is(b'r') | b_or_f,
    })
}

#[inline]
#[target_feature(enable = "avx2,bmi1")]
fn marks_32(bytes: &[u8; BYTES]) -> Option<Marks> {
    let [low, high]: [__m256i; 2] = bytemuck::cast(*bytes);
    let is = |lane, byte: u8| _mm256_cmpeq_epi8(lane, _mm256_set1_epi8(byte as i8));
    let control = |lane| _mm256_cmpeq_epi8(_mm256_min_epu8(lane, _mm256_set1_epi8(0x1F)), lane);
    let or = |a, b| _mm256_or_si256(a, b);
    let bits = |low, high| {
        let [low, high] = [low, high].map(|lane| u64::from(_mm256_movemask_epi8(lane) as u32));
        low | high << 32
    };
    let quotes = [is(low, b'"'), is(high, b'"')];
    let backslashes = [is(low, b'\\'), is(high, b'\\')];
    let controls = [control(low), control(high)];
    let any = |[low, high]: [__m256i; 2]| or(low, high);
    let special = or(or(any(quotes), any(backslashes)), any(controls));
    if _mm256_testz_si256(special, special) == 1 {
        return None;
    }
    let letter = |lane| {
        let without = _mm256_and_si256(lane, _mm256_set1_epi8(!0x04));
        or(
            or(is(lane, b'n'), is(lane, b't')),
            or(is(lane, b'r'), is(without, b'b')),
        )
    };
    Some(Marks {
        quotes: bits(quotes[0], quotes[1]),
        backslashes: bits(backslashes[0], backslashes[1]),
        controls: bits(controls[0], controls[1]),
        letters: bits(letter(low), letter(high)),
    })
}

#[cfg(test)]
pub(in crate::json) mod tests {
    use super::*;

    fn has_32() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1")
    }

    /// Returns the marks by each width that this CPU supports.
    pub(in crate::json) fn each(bytes: &[u8; BYTES]) -> Vec<Option<Marks>> {
        let mut found = Vec::new();
        if has_32() {
            // SAFETY: the CPU has both features of the function, as checked above.
            found.push(unsafe { marks_32(bytes) });
        }
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("bmi1") {
            // SAFETY: as above.
            found.push(unsafe { marks_64(bytes) });
        }
        found
    }

    /// Runs the AVX2 walk, which a CPU with AVX-512 does not take otherwise.
    pub(in crate::json) fn narrower(
        scanner: &mut Scanner<'_>,
        run: &mut usize,
        out: &mut impl Out,
    ) -> Option<Result<(), Malformed>> {
        // SAFETY: `has_32` checks both features.
        has_32().then(|| unsafe { walk_32(scanner, run, out) })
    }
}

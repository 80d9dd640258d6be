//! Classifies 64 bytes of a string at once: one bit per byte for quotes, backslashes and control characters.
//!
//! SSE2 and NEON have vectors of 16 bytes. On x86, wider ones are used where available ([`wider`]), with equal results.

use wide::u8x16;

#[cfg(target_arch = "x86_64")]
pub(super) mod wider;

pub(super) const BYTES: usize = 64;

/// Bytes of a block that are not plain text, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) quotes: u64,
    pub(super) backslashes: u64,
    pub(super) controls: u64,
    /// Letters that form a canonical escape after a backslash (`b`, `f`, `n`, `r`, `t`).
    pub(super) letters: u64,
}

/// Returns a block's marks; `None` if it has no quote, backslash or control character.
#[inline]
pub(super) fn marks(bytes: &[u8; BYTES]) -> Option<Marks> {
    let (lanes, _) = bytes.as_chunks::<16>();
    let lanes: [u8x16; 4] = std::array::from_fn(|lane| u8x16::from(lanes[lane]));
    let [a, b, c, d] = lanes.map(special);
    if (a | b | c | d).to_bitmask() == 0 {
        return None;
    }
    let bits = |is: fn(u8x16) -> u8x16| {
        let [a, b, c, d] = lanes.map(|lane| u64::from(is(lane).to_bitmask()));
        a | b << 16 | c << 32 | d << 48
    };
    Some(Marks {
        quotes: bits(|lane| lane.simd_eq(u8x16::splat(b'"'))),
        backslashes: bits(|lane| lane.simd_eq(u8x16::splat(b'\\'))),
        controls: bits(control),
        letters: bits(letter),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstSpecial {
    None,
    Quote(usize),
    Other,
}

/// Finds the first special byte and, from the same bits, whether it is a quote.
#[inline]
pub(super) fn first_special(bytes: &[u8; 16]) -> FirstSpecial {
    let lanes = u8x16::from(*bytes);
    let (quotes, special) = (
        lanes.simd_eq(u8x16::splat(b'"')).to_bitmask(),
        special(lanes).to_bitmask(),
    );
    if special == 0 {
        FirstSpecial::None
    } else if special & special.wrapping_neg() & quotes != 0 {
        FirstSpecial::Quote(quotes.trailing_zeros() as usize)
    } else {
        FirstSpecial::Other
    }
}

#[inline]
fn special(bytes: u8x16) -> u8x16 {
    bytes.simd_eq(u8x16::splat(b'"')) | bytes.simd_eq(u8x16::splat(b'\\')) | control(bytes)
}

/// Marks bytes below 0x20: those that equal their minimum with 0x1F.
#[inline]
fn control(bytes: u8x16) -> u8x16 {
    bytes.min(u8x16::splat(0x1F)).simd_eq(bytes)
}

#[inline]
fn letter(bytes: u8x16) -> u8x16 {
    let is = |byte| bytes.simd_eq(u8x16::splat(byte));
    // `b` and `f` differ in this one bit.
    let b_or_f = (bytes & u8x16::splat(!0x04)).simd_eq(u8x16::splat(b'b'));
    is(b'n') | is(b't') | is(b'r') | b_or_f
}

/// Returns the backslashes that begin an escape, for a block that begins outside one: every second of each run.
/// Subtracting a run from the bit after it carries through the run, and ends on an even or odd bit by the run's length.
/// With the odd bits filled in first, the same subtraction selects every second backslash.
#[inline]
pub(super) fn escapes(backslash: u64) -> u64 {
    const ODD: u64 = 0xAAAA_AAAA_AAAA_AAAA;
    let after = backslash << 1;
    (((after | ODD).wrapping_sub(backslash)) ^ ODD) & backslash
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes [`escapes`] byte by byte.
    fn naive_escapes(backslash: u64) -> u64 {
        let (mut starts, mut within) = (0, false);
        for at in 0..64 {
            within = !within && backslash >> at & 1 == 1;
            starts |= u64::from(within) << at;
        }
        starts
    }

    fn naive(bytes: &[u8; BYTES], is: impl Fn(u8) -> bool) -> u64 {
        (0..BYTES).fold(0, |bits, at| bits | u64::from(is(bytes[at])) << at)
    }

    fn block() -> impl Strategy<Value = [u8; BYTES]> {
        let byte = prop_oneof![
            any::<u8>(),
            Just(b'\\'),
            Just(b'"'),
            prop::sample::select(b"bfnrtu/\n".to_vec())
        ];
        prop::collection::vec(byte, BYTES).prop_map(|bytes| bytes.try_into().unwrap())
    }

    proptest! {
        #[test]
        fn it_sees_what_looking_at_each_byte_sees(bytes in block()) {
            let expected = Marks {
                quotes: naive(&bytes, |byte| byte == b'"'),
                backslashes: naive(&bytes, |byte| byte == b'\\'),
                controls: naive(&bytes, |byte| byte < 0x20),
                letters: naive(&bytes, |byte| b"bfnrt".contains(&byte)),
            };
            let any = expected.quotes | expected.backslashes | expected.controls;
            let expected = (any != 0).then_some(expected);
            prop_assert_eq!(marks(&bytes), expected);
            #[cfg(target_arch = "x86_64")]
            for found in wider::tests::each(&bytes) {
                prop_assert_eq!(found, expected);
            }
            let head: &[u8; 16] = bytes.first_chunk().unwrap();
            let first = head.iter().position(|byte| *byte < 0x20 || b"\"\\".contains(byte));
            let expected = first.map_or(FirstSpecial::None, |at| if head[at] == b'"' { FirstSpecial::Quote(at) } else { FirstSpecial::Other });
            prop_assert_eq!(first_special(head), expected);
        }

        #[test]
        fn escapes_begin_where_reading_from_the_left_finds_them(backslash in any::<u64>(), more in any::<u64>()) {
            for backslash in [backslash, backslash | more, backslash & more, u64::MAX, 0] {
                prop_assert_eq!(escapes(backslash), naive_escapes(backslash), "{:b}", backslash);
            }
        }
    }
}

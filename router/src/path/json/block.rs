//! 64 bytes of a string at once: which of them are quotes, backslashes or control characters, as one bit each.
//!
//! The vectors are those that every machine of its kind has (SSE2, NEON), so there is one path and nothing to detect.

use wide::u8x16;

/// Bytes of a block.
pub(super) const BYTES: usize = 64;

/// A block of a string.
#[derive(Clone, Copy)]
pub(super) struct Block([u8x16; 4]);

impl Block {
    #[inline]
    pub(super) fn load(bytes: &[u8; BYTES]) -> Self {
        let (lanes, _) = bytes.as_chunks::<16>();
        Self(std::array::from_fn(|lane| u8x16::from(lanes[lane])))
    }

    /// Whether it holds neither quote nor backslash nor control character.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        let [a, b, c, d] = self.0.map(special);
        (a | b | c | d).to_bitmask() == 0
    }

    /// One bit for each byte, here and below.
    #[inline]
    pub(super) fn quotes(&self) -> u64 {
        self.bits(|lane| lane.simd_eq(u8x16::splat(b'"')))
    }

    #[inline]
    pub(super) fn backslashes(&self) -> u64 {
        self.bits(|lane| lane.simd_eq(u8x16::splat(b'\\')))
    }

    #[inline]
    pub(super) fn has_control(&self) -> bool {
        let [a, b, c, d] = self.0.map(control);
        (a | b | c | d).to_bitmask() != 0
    }

    pub(super) fn controls(&self) -> u64 {
        self.bits(control)
    }

    /// The letters, besides quote and backslash, that a backslash may stand before in the shortest spelling.
    #[inline]
    pub(super) fn letters(&self) -> u64 {
        self.bits(|lane| {
            let is = |byte| lane.simd_eq(u8x16::splat(byte));
            // `b` and `f` differ in this one bit.
            let b_or_f = (lane & u8x16::splat(!0x04)).simd_eq(u8x16::splat(b'b'));
            is(b'n') | is(b't') | is(b'r') | b_or_f
        })
    }

    #[inline]
    fn bits(&self, lane: impl Fn(u8x16) -> u8x16) -> u64 {
        let [a, b, c, d] = self.0.map(|bytes| u64::from(lane(bytes).to_bitmask()));
        a | b << 16 | c << 32 | d << 48
    }
}

/// The first special byte of sixteen, as its place; 16 or more if there is none.
#[inline]
pub(super) fn first_special(bytes: &[u8; 16]) -> usize {
    special(u8x16::from(*bytes)).to_bitmask().trailing_zeros() as usize
}

#[inline]
fn special(bytes: u8x16) -> u8x16 {
    bytes.simd_eq(u8x16::splat(b'"')) | bytes.simd_eq(u8x16::splat(b'\\')) | control(bytes)
}

/// Below 0x20: what it is the lesser of already.
#[inline]
fn control(bytes: u8x16) -> u8x16 {
    bytes.min(u8x16::splat(0x1F)).simd_eq(bytes)
}

/// The backslashes that begin an escape, of a block that begins outside one: the first of each run of backslashes, the
/// third, and so on.
///
/// Subtracting a run from the place after it carries through the run. Whether that lands on an even or an odd place,
/// against where the run begins, is whether its length is even; taking turns within the run falls out of the same
/// subtraction when the odd places are filled in before it.
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

    /// The same, one byte after the other.
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
            let block = Block::load(&bytes);
            let quotes = naive(&bytes, |byte| byte == b'"');
            let backslashes = naive(&bytes, |byte| byte == b'\\');
            let controls = naive(&bytes, |byte| byte < 0x20);
            prop_assert_eq!((block.quotes(), block.backslashes()), (quotes, backslashes));
            prop_assert_eq!((block.controls(), block.has_control()), (controls, controls != 0));
            prop_assert_eq!(block.letters(), naive(&bytes, |byte| b"bfnrt".contains(&byte)));
            let any = quotes | backslashes | controls;
            prop_assert_eq!(block.is_plain(), any == 0);
            let head: &[u8; 16] = bytes.first_chunk().unwrap();
            prop_assert_eq!(first_special(head).min(16), (any.trailing_zeros() as usize).min(16));
        }

        #[test]
        fn escapes_begin_where_reading_from_the_left_finds_them(backslash in any::<u64>(), more in any::<u64>()) {
            for backslash in [backslash, backslash | more, backslash & more, u64::MAX, 0] {
                prop_assert_eq!(escapes(backslash), naive_escapes(backslash), "{:b}", backslash);
            }
        }
    }
}

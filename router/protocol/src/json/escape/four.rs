//! Four escapes by number at once: text in a script other than Latin, written in ASCII, is nothing else.
//!
//! Four times `\uXXXX` are sixteen hexadecimal digits, a vector of bytes; two shifts make them four numbers, two bytes
//! each, and four more the three bytes each that UTF-8 has for a number from U+0800 on. One after the other it takes five
//! times as many instructions.

use wide::{u8x16, u32x4};

/// Bytes of four escapes.
pub(super) const ESCAPES: usize = 24;
/// Bytes of their spelling.
pub(super) const SPELLED: usize = 12;
/// Bytes written for it.
pub(super) const ROOM: usize = 16;

/// The spelling of the four escapes that the text begins with; `None` if it does not begin with four, or if one of them
/// is not spelled in three bytes: a letter of ASCII, or half of a pair.
#[inline]
pub(super) fn spelled(text: &[u8]) -> Option<[u8; ROOM]> {
    let (escapes, _) = text.first_chunk::<ESCAPES>()?.as_chunks::<6>();
    if !escapes.iter().all(|escape| escape[..2] == *b"\\u") {
        return None;
    }
    let mut digits = [0; 16];
    for (place, escape) in digits.as_chunks_mut::<4>().0.iter_mut().zip(escapes) {
        place.copy_from_slice(&escape[2..]);
    }
    let units = numbers(u8x16::from(digits))?;
    // Below U+0800, and in D800..E000: what lies there or beyond is found by the bits that all of it shares.
    let all = |bits: u32| u32x4::splat(bits);
    let small = (units & all(0xF800)).simd_eq(all(0));
    let paired = (units & all(0xF800)).simd_eq(all(0xD800));
    if (small | paired).to_bitmask() != 0 {
        return None;
    }
    let spelled: u32x4 =
        all(0x0080_80E0) | units >> 12 | (units & all(0xFC0)) << 2 | (units & all(0x3F)) << 16;
    // Not by four writes to memory, which one read of them all would wait for.
    let [a, b, c, d] = spelled.to_array().map(u128::from);
    Some((a | b << 24 | c << 48 | d << 72).to_le_bytes())
}

/// The numbers that sixteen digits say; `None` if one is none.
#[inline]
fn numbers(digits: u8x16) -> Option<u32x4> {
    let all = |byte: u8| u8x16::splat(byte);
    let within = |digits: u8x16, most: u8| digits.min(all(most)).simd_eq(digits);
    let decimal = digits - all(b'0');
    let letter = (digits | all(0x20)) - all(b'a');
    let (is_decimal, is_letter) = (within(decimal, 9), within(letter, 5));
    if (is_decimal | is_letter).to_bitmask() != 0xFFFF {
        return None;
    }
    let values = (decimal & is_decimal) | ((letter + all(10)) & is_letter);
    // From the first digit, which is the highest but lies lowest: two digits to a byte, then two bytes to a number.
    let values: [u32; 4] = bytemuck::cast(values.to_array());
    let values = u32x4::from(values);
    let bytes = values << 4 | values >> 8;
    let (high, low) = (bytes & u32x4::splat(0xFF), bytes >> 16 & u32x4::splat(0xFF));
    Some(high << 8 | low)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_spells_what_a_char_encodes_as(units in any::<[u16; 4]>(), upper in any::<bool>()) {
            let hex = |unit: &u16| if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
            let text: String = units.iter().map(hex).collect();
            let said: Option<String> = units.iter().map(|unit| char::from_u32(u32::from(*unit))).collect();
            let expected = said.filter(|said| said.len() == SPELLED);
            let found = spelled(text.as_bytes());
            prop_assert_eq!(found.map(|found| found[..SPELLED].to_vec()), expected.map(String::into_bytes));
        }

        #[test]
        fn what_is_no_digit_is_seen(at in 0usize..ESCAPES, byte in any::<u8>()) {
            let mut text = *b"\\u8abc\\uF9Af\\u1234\\u0b0C";
            text[at] = byte;
            let valid = if at % 6 < 2 { byte == b"\\u"[at % 6] } else { byte.is_ascii_hexdigit() };
            let said = std::str::from_utf8(&text).ok().and_then(|text| serde_json::from_str::<String>(&format!("\"{text}\"")).ok());
            let expected = said.filter(|said| valid && said.len() == SPELLED && said.chars().count() == 4);
            let found = spelled(&text);
            prop_assert_eq!(found.map(|found| found[..SPELLED].to_vec()), expected.map(String::into_bytes));
        }
    }
}

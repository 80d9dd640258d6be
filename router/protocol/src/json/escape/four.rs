//! Decodes four numeric escapes at once, for non-Latin text that is escaped to ASCII.
//!
//! Four `\uXXXX` have 16 hexadecimal digits, one vector of bytes. Two shifts turn them into four code units, and four
//! more into the three UTF-8 bytes of each unit from U+0800 on. Single escapes take five times as many instructions.

use wide::{u8x16, u32x4};

/// Length of four escapes in bytes.
pub(super) const ESCAPES: usize = 24;
/// Length of the spelling of four escapes in bytes.
pub(super) const SPELLED: usize = 12;
/// Size of the output in bytes.
pub(super) const ROOM: usize = 16;

/// Spells the four escapes at the start of the text; `None` if there are fewer, or if one has no three-byte spelling.
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
    // Below U+0800, or a surrogate (U+D800 to U+DFFF): both follow from the top five bits.
    let all = |bits: u32| u32x4::splat(bits);
    let small = (units & all(0xF800)).simd_eq(all(0));
    let paired = (units & all(0xF800)).simd_eq(all(0xD800));
    if (small | paired).to_bitmask() != 0 {
        return None;
    }
    let spelled: u32x4 =
        all(0x0080_80E0) | units >> 12 | (units & all(0xFC0)) << 2 | (units & all(0x3F)) << 16;
    // Combined in registers: four stores followed by one wide load would stall.
    let [a, b, c, d] = spelled.to_array().map(u128::from);
    Some((a | b << 24 | c << 48 | d << 72).to_le_bytes())
}

/// Returns four code units from 16 digits; `None` if a digit is invalid.
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
    // Little-endian: the first digit is the highest but lies lowest. Pairs digits into bytes, then bytes into units.
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

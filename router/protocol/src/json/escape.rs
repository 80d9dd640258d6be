//! Decodes escapes: those that are rewritten, and those of small fields.

use std::borrow::Cow;

use policy::fingerprint::spell;

use super::block::BYTES;

mod four;

/// Spells the escape whose backslash stands just before `at`, and the numeric escapes after it while there is room.
/// Advances `at` past them, or to an error, and returns the number of bytes written.
pub(super) fn spell_escapes(
    bytes: &[u8],
    at: &mut usize,
    room: &mut [u8; BYTES],
) -> Result<usize, &'static str> {
    let (mut next, mut length) = (*at - 1, 0);
    loop {
        if let Some(spelled) = four::spelled(&bytes[next..])
            && let Some(place) = room[length..].first_chunk_mut::<{ four::ROOM }>()
        {
            *place = spelled;
            (next, length) = (next + four::ESCAPES, length + four::SPELLED);
        } else if let Some(place) = room[length..].first_chunk_mut() {
            // Most common in mixed text: a Latin, Greek or Cyrillic letter, two bytes in UTF-8.
            if let unit @ 0x80..0x800 = unit(&bytes[next..]) {
                [place[0], place[1]] = [0xC0 | (unit >> 6) as u8, 0x80 | unit as u8 & 0x3F];
                (next, length) = (next + 6, length + 2);
            } else {
                *at = next + 1;
                length += spell(escape(bytes, at)?, place);
                next = *at;
            }
        } else {
            break;
        }
        if !bytes[next..].starts_with(b"\\u") {
            break;
        }
    }
    *at = next;
    Ok(length)
}

/// Returns the code unit of a numeric escape; an out-of-range value if there is none.
#[inline]
fn unit(text: &[u8]) -> u32 {
    match text.first_chunk::<6>() {
        Some([b'\\', b'u', digits @ ..]) => number(*digits),
        _ => u32::MAX,
    }
}

/// Decodes the escape whose backslash stands just before `at`, and advances past it, or to an error. A lone surrogate
/// becomes U+FFFD.
pub(super) fn escape(bytes: &[u8], at: &mut usize) -> Result<char, &'static str> {
    let &letter = bytes.get(*at).ok_or("the escape does not end")?;
    let character = match letter {
        b'"' | b'\\' | b'/' => char::from(letter),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            *at += 1;
            return unicode(bytes, at);
        }
        _ => return Err("no such escape"),
    };
    *at += 1;
    Ok(character)
}

fn unicode(bytes: &[u8], at: &mut usize) -> Result<char, &'static str> {
    let unit = hex(bytes, at)?;
    if !(0xD800..0xDC00).contains(&unit) {
        return Ok(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    // A high surrogate without a low surrogate stands alone.
    if !bytes[*at..].starts_with(b"\\u") {
        return Ok(char::REPLACEMENT_CHARACTER);
    }
    let mut beyond = *at + 2;
    let low = hex(bytes, &mut beyond).inspect_err(|_| *at += 2)?;
    if !(0xDC00..0xE000).contains(&low) {
        return Ok(char::REPLACEMENT_CHARACTER);
    }
    *at = beyond;
    let pair = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    Ok(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER))
}

const DIGITS: [u8; 256] = {
    let mut digits = [0xFF; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value as usize];
        digits[digit as usize] = value;
        digits[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    digits
};

fn hex(bytes: &[u8], at: &mut usize) -> Result<u32, &'static str> {
    let digits = bytes.get(*at..).and_then(|rest| rest.first_chunk());
    let value = digits.map_or(u32::MAX, |digits| number(*digits));
    if value > 0xFFFF {
        return Err("expected four hexadecimal digits");
    }
    *at += 4;
    Ok(value)
}

/// Returns the value of four hexadecimal digits; an out-of-range value if one is invalid.
#[inline]
fn number(digits: [u8; 4]) -> u32 {
    let [a, b, c, d] = digits.map(|digit| u32::from(DIGITS[usize::from(digit)]));
    // Invalid digits have high bits; these are shifted above any valid value.
    let wrong = (a | b | c | d) & 0xF0;
    wrong << 16 | a << 12 | b << 8 | c << 4 | d
}

/// Decodes the inside of a valid string; borrowed if it has no escapes.
pub(super) fn decoded(inside: &[u8]) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'\\', inside) else {
        return String::from_utf8_lossy(inside);
    };
    let mut text = Vec::with_capacity(inside.len());
    let (mut from, mut next) = (0, Some(first));
    while let Some(backslash) = next {
        text.extend_from_slice(&inside[from..backslash]);
        from = backslash + 1;
        let character = escape(inside, &mut from).unwrap_or(char::REPLACEMENT_CHARACTER);
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        next = inside
            .get(from..)
            .and_then(|rest| memchr::memchr(b'\\', rest))
            .map(|at| from + at);
    }
    text.extend_from_slice(inside.get(from..).unwrap_or_default());
    Cow::Owned(String::from_utf8_lossy(&text).into_owned())
}

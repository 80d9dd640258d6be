//! The spelling of text in the canonical form: the shortest JSON string.
//!
//! `"`, `\` and the control characters are escaped, by their short form where they have one (`\n`), else as `\u001f` in
//! lower case; all other characters are plain UTF-8. Nearly every client spells its strings this way, so a request's
//! bytes can be hashed in place. The spelling of two joined texts is the two spellings joined.

/// Writes the spelling of a character to the front of `room`, and returns its length in bytes.
#[inline]
pub fn spell(character: char, room: &mut [u8; 8]) -> usize {
    let short = match character {
        '"' | '\\' => character as u8,
        '\n' => b'n',
        '\t' => b't',
        '\r' => b'r',
        '\u{8}' => b'b',
        '\u{c}' => b'f',
        '\0'..'\u{20}' => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            let code = character as usize;
            room[..6].copy_from_slice(&[b'\\', b'u', b'0', b'0', DIGITS[code >> 4], DIGITS[code & 15]]);
            return 6;
        }
        _ => return character.encode_utf8(room).len(),
    };
    [room[0], room[1]] = [b'\\', short];
    2
}

/// Passes a text's spelling on in pieces.
pub fn spelled(text: &str, mut piece: impl FnMut(&[u8])) {
    let mut rest = text;
    while let Some(at) = rest
        .bytes()
        .position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\')
    {
        let (plain, special) = rest.split_at(at);
        if !plain.is_empty() {
            piece(plain.as_bytes());
        }
        let mut characters = special.chars();
        if let Some(character) = characters.next() {
            let mut room = [0; 8];
            let length = spell(character, &mut room);
            piece(&room[..length]);
        }
        rest = characters.as_str();
    }
    if !rest.is_empty() {
        piece(rest.as_bytes());
    }
}

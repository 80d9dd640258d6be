//! Closes JSON that was cut at any position.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    /// A value, or the end of an empty array.
    FirstValue,
    Key,
    FirstKey,
    Colon,
    Comma,
}

struct Cut {
    /// Open brackets, `{` or `[`, outermost first.
    open: Vec<u8>,
    next: Next,
    /// Bytes that complete the string, number or literal that was cut.
    token: Vec<u8>,
}

/// Completes `partial` as JSON by appending to `said`, with the members of the object `error` in an outermost object.
/// Returns whether the error was added. Appends nothing if `partial` is not JSON.
pub(super) fn close(said: &mut Vec<u8>, partial: &[u8], error: &[u8]) -> bool {
    let Some(mut cut) = read(partial) else {
        return false;
    };
    said.append(&mut cut.token);
    while let Some(kind) = cut.open.pop() {
        let outermost = cut.open.is_empty() && kind == b'{';
        let missing: &[u8] = match cut.next {
            Next::Key if outermost => b"",
            Next::Key => b"\"\":null",
            Next::Colon => b":null",
            Next::Value => b"null",
            Next::FirstKey | Next::FirstValue | Next::Comma => b"",
        };
        said.extend_from_slice(missing);
        if outermost {
            if !matches!(cut.next, Next::Key | Next::FirstKey) {
                said.push(b',');
            }
            let member = error.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
            said.extend_from_slice(member.unwrap_or(b"\"error\":{}"));
            said.push(b'}');
            return true;
        }
        said.push(if kind == b'{' { b'}' } else { b']' });
        cut.next = Next::Comma;
    }
    false
}

/// Reads a cut text; `None` if it is no prefix of JSON.
fn read(text: &[u8]) -> Option<Cut> {
    let mut cut = Cut {
        open: Vec::new(),
        next: Next::Value,
        token: Vec::new(),
    };
    let mut rest = text.trim_ascii_start();
    while let Some(&byte) = rest.first() {
        let mut token = 1;
        cut.next = match (cut.next, byte) {
            (Next::Value | Next::FirstValue, b'{' | b'[') => {
                cut.open.push(byte);
                if byte == b'{' {
                    Next::FirstKey
                } else {
                    Next::FirstValue
                }
            }
            (Next::Value | Next::FirstValue | Next::Key | Next::FirstKey, b'"') => {
                token = string(rest, &mut cut.token);
                let value = matches!(cut.next, Next::Value | Next::FirstValue);
                if value { Next::Comma } else { Next::Colon }
            }
            (Next::Colon, b':') => Next::Value,
            (Next::Comma, b',') => match cut.open.last()? {
                b'{' => Next::Key,
                _ => Next::Value,
            },
            (Next::Comma | Next::FirstKey, b'}') => {
                cut.open.pop().filter(|&kind| kind == b'{').map(|_| Next::Comma)?
            }
            (Next::Comma | Next::FirstValue, b']') => {
                cut.open.pop().filter(|&kind| kind == b'[').map(|_| Next::Comma)?
            }
            (Next::Value | Next::FirstValue, b'-' | b'0'..=b'9') => {
                token = number(rest, &mut cut.token);
                Next::Comma
            }
            (Next::Value | Next::FirstValue, _) => {
                token = name(rest, &mut cut.token)?;
                Next::Comma
            }
            _ => return None,
        };
        rest = rest[token..].trim_ascii_start();
    }
    Some(cut)
}

/// Returns the length of a string; `missing` receives the bytes that complete a cut one.
fn string(text: &[u8], missing: &mut Vec<u8>) -> usize {
    let mut at = 1;
    // A high surrogate needs its low surrogate.
    let mut half = false;
    while let Some(&byte) = text.get(at) {
        let escape = &text[at..];
        at += match byte {
            b'"' => return at + 1,
            b'\\' if escape.len() < 2 || (escape[1] == b'u' && escape.len() < 6) => {
                finish_escape(escape, half, missing);
                missing.push(b'"');
                return text.len();
            }
            b'\\' if escape[1] == b'u' => {
                half = !half && is_first_half(&escape[2..6]);
                6
            }
            b'\\' => 2,
            _ => 1,
        };
        half &= byte == b'\\';
    }
    if half {
        missing.extend_from_slice(b"\\udc00");
    }
    finish_character(text, missing);
    missing.push(b'"');
    text.len()
}

fn finish_escape(escape: &[u8], second_half: bool, missing: &mut Vec<u8>) {
    let wanted: &[u8] = if second_half { b"\\udc00" } else { b"\\u0000" };
    if escape.len() < 2 && !second_half {
        missing.push(b'\\');
        return;
    }
    missing.extend_from_slice(&wanted[escape.len()..]);
    let mut digits = *b"0000";
    let given = escape.get(2..).unwrap_or_default();
    digits[..given.len()].copy_from_slice(given);
    if !second_half && is_first_half(&digits) {
        missing.extend_from_slice(b"\\udc00");
    }
}

fn is_first_half(digits: &[u8]) -> bool {
    matches!(digits, [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..])
}

/// Completes a cut UTF-8 character, to an arbitrary one that decodes.
fn finish_character(text: &[u8], missing: &mut Vec<u8>) {
    let Err(error) = std::str::from_utf8(text) else {
        return;
    };
    let part = &text[error.valid_up_to()..];
    if error.error_len().is_some() {
        return;
    }
    let length = match part[0] {
        0xf0.. => 4,
        0xe0.. => 3,
        _ => 2,
    };
    for at in part.len()..length {
        missing.push(match (at, part[0]) {
            (1, 0xe0) => 0xa0,
            (1, 0xf0) => 0x90,
            _ => 0x80,
        });
    }
}

/// Returns the length of a number. `missing` receives a digit for one that is cut after a sign, a point or an `e`.
fn number(text: &[u8], missing: &mut Vec<u8>) -> usize {
    let of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    let length = text.iter().take_while(of_number).count();
    if length == text.len() && !text[length - 1].is_ascii_digit() {
        missing.push(b'0');
    }
    length
}

/// Returns the length of `true`, `false` or `null`, complete or cut; `missing` receives the bytes that complete it.
fn name(text: &[u8], missing: &mut Vec<u8>) -> Option<usize> {
    let names: [&[u8]; 3] = [b"true", b"false", b"null"];
    let name = names
        .into_iter()
        .find(|name| text.starts_with(name) || name.starts_with(text))?;
    let length = name.len().min(text.len());
    missing.extend_from_slice(&name[length..]);
    Some(length)
}

//! Streaming parser of forms (RFC 7578).
//!
//! The parser reports each part's name and the bytes of its value. It buffers only the current part's head and a
//! possible start of a delimiter. Where parsers differ, text counts as a head if any parser could read it so: after a
//! delimiter with trailing characters, and after the final delimiter.

use memchr::memmem;

const MAX_HEAD_BYTES: usize = 8 * 1024;

/// An event of a form.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// A part begins. `None` if its head has no name, or the form has ended.
    Part(Option<&'a str>),
    /// Bytes of the part's value. The value begins with the line break that ends the head.
    Value(&'a [u8]),
}

/// Error: the form has no single boundary, or a part's head is too long, not UTF-8, or has an encoded name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// Parser of a form.
#[derive(Debug)]
pub struct Parts {
    /// Line break, dashes and boundary.
    delimiter: Vec<u8>,
    is_in_head: bool,
    /// Head so far, or a possible start of a delimiter.
    held: Vec<u8>,
}

/// Returns the boundary that a content type names; `None` if it is not a form. Fails if it does not name one boundary.
pub fn boundary(content_type: &str) -> Option<Result<&str, Unreadable>> {
    let (kind, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut named = parameters.split(';').filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("boundary")
            .then(|| value.trim().trim_matches('"'))
    });
    // Parsers differ in which one of two they use.
    let boundary = match (named.next(), named.next()) {
        (Some(boundary), None) if (1..=70).contains(&boundary.len()) => Ok(boundary),
        _ => Err(Unreadable),
    };
    Some(boundary)
}

impl Parts {
    /// Creates a parser for a form with this boundary.
    pub fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            is_in_head: false,
            // The first delimiter may stand at the start of the body.
            held: b"\r\n".to_vec(),
        }
    }

    /// Parses the next piece, and passes its events to `see`. Fails if the head of a part cannot be read.
    pub fn push(&mut self, piece: &[u8], mut see: impl FnMut(Seen<'_>)) -> Result<(), Unreadable> {
        self.held.extend_from_slice(piece);
        let held = std::mem::take(&mut self.held);
        let mut rest = &*held;
        loop {
            if self.is_in_head {
                if rest.starts_with(b"--") {
                    see(Seen::Part(None));
                } else {
                    let end = memmem::find(rest, b"\r\n\r\n");
                    if end.unwrap_or(rest.len()) > MAX_HEAD_BYTES {
                        return Err(Unreadable);
                    }
                    let Some(end) = end else { break };
                    see(Seen::Part(name(&rest[..end])?));
                    // This line break may belong to a delimiter that follows at once.
                    rest = &rest[end + 2..];
                }
                self.is_in_head = false;
                continue;
            }
            let Some(at) = memmem::find(rest, &self.delimiter) else {
                break;
            };
            see(Seen::Value(&rest[..at]));
            rest = &rest[at + self.delimiter.len()..];
            self.is_in_head = true;
        }
        if !self.is_in_head {
            let (value, begun) = rest.split_at(rest.len() - self.begun(rest));
            see(Seen::Value(value));
            rest = begun;
        }
        self.held = rest.to_vec();
        Ok(())
    }

    /// Returns the length of the longest suffix that may begin a delimiter.
    fn begun(&self, value: &[u8]) -> usize {
        let most = value.len().min(self.delimiter.len() - 1);
        let mut lengths = (1..=most).rev();
        lengths
            .find(|length| value.ends_with(&self.delimiter[..*length]))
            .unwrap_or(0)
    }
}

fn name(head: &[u8]) -> Result<Option<&str>, Unreadable> {
    let head = std::str::from_utf8(head).map_err(|_| Unreadable)?;
    let mut named = None;
    for parameter in head.split(['\r', '\n', ';']) {
        let Some((key, value)) = parameter.split_once('=') else {
            continue;
        };
        let key = key.trim();
        if key.len() >= 5 && key.is_char_boundary(5) && key[..5].eq_ignore_ascii_case("name*") {
            // RFC 2231's encoding is not allowed in forms (RFC 7578, section 4.2), but some parsers decode it.
            return Err(Unreadable);
        }
        if key.eq_ignore_ascii_case("name") {
            named = Some(value.trim().trim_matches('"'));
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY: &str = "--xyz\r\nContent-Disposition: form-data; name=\"language\"\r\n\r\nde\r\n--xyz\r\n\
        content-disposition: form-data; name=\"model\"\r\nContent-Type: text/plain\r\n\r\nwhisper-1\r\n--xyz\r\n\
        Content-Disposition: form-data; name=empty\r\n\r\n\r\n--xyz\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\n\0\0--xyz\r\n-\r\n--xyz--\r\n";

    /// Returns the parts, each with its name and value.
    fn parts<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Vec<(String, String)>, Unreadable> {
        let (mut reader, mut parts) = (Parts::new("xyz"), Vec::new());
        for piece in pieces {
            reader.push(piece, |seen| match seen {
                Seen::Part(name) => parts.push((name.unwrap_or("?").to_owned(), String::new())),
                Seen::Value(value) => {
                    if let Some((_, said)) = parts.last_mut() {
                        said.push_str(&String::from_utf8_lossy(value));
                    }
                }
            })?;
        }
        Ok(parts)
    }

    #[test]
    fn the_boundary_is_found_however_it_is_written() {
        for (kind, found) in [
            ("multipart/form-data; boundary=xyz", Some(Ok("xyz"))),
            (
                "Multipart/Form-Data; charset=utf-8; BOUNDARY=\"x y\"",
                Some(Ok("x y")),
            ),
            ("multipart/form-data", Some(Err(Unreadable))),
            ("multipart/form-data; boundary=", Some(Err(Unreadable))),
            (
                "multipart/form-data; boundary=a; boundary=b",
                Some(Err(Unreadable)),
            ),
            ("multipart/mixed; boundary=xyz", None),
            ("application/json; boundary=xyz", None),
        ] {
            assert_eq!(boundary(kind), found, "{kind}");
        }
    }

    #[test]
    fn parts_are_the_same_however_the_body_is_cut() {
        for size in 1..BODY.len() {
            let found = parts(BODY.as_bytes().chunks(size)).unwrap();
            let found: Vec<_> = found.iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(
                found,
                [
                    ("language", "\r\nde"),
                    ("model", "\r\nwhisper-1"),
                    ("empty", "\r\n"),
                    ("file", "\r\n\0\0--xyz\r\n-"),
                    ("?", "--"),
                ],
                "{size}"
            );
        }
    }

    #[test]
    fn a_head_that_some_would_read_otherwise_is_not_read() {
        let named = |head: &str| {
            let body = format!("--xyz\r\n{head}\r\n\r\nx\r\n--xyz--\r\n");
            parts(std::iter::once(body.as_bytes())).map(|parts| parts[0].0.clone())
        };
        assert_eq!(
            named("Content-Disposition: form-data;\r\n NAME = a").as_deref(),
            Ok("a")
        );
        assert_eq!(named("Content-Disposition: form-data").as_deref(), Ok("?"));
        for head in [
            "Content-Disposition: form-data; name*=utf-8''a",
            "Content-Disposition: form-data; Name*0=a; name*1=b",
            &format!("x: {}", "y".repeat(MAX_HEAD_BYTES)),
        ] {
            assert_eq!(named(head), Err(Unreadable), "{head}");
        }
    }

    proptest! {
        #[test]
        fn what_is_seen_does_not_depend_on_how_it_was_cut(
            body in prop::collection::vec(prop::sample::select(b"-x\r\n:;=model\"a".to_vec()), 0..200),
            size in 1_usize..20,
        ) {
            let read = |size| {
                let (mut reader, mut all) = (Parts::new("x"), Vec::new());
                let read = body.chunks(size).try_for_each(|piece| reader.push(piece, |seen| match seen {
                    Seen::Part(name) => all.extend_from_slice(format!("[{name:?}]").as_bytes()),
                    Seen::Value(value) => all.extend_from_slice(value),
                }));
                (read, all)
            };
            prop_assert_eq!(read(size), read(200));
        }
    }
}

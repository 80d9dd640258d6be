//! Grammar of single lines: request lines, fields, chunk sizes, trailers (RFC 9112).

use super::{Bad, LineKind, MALFORMED, Place, Why};

/// Largest number of fields of a head: hyper's own limit.
pub(super) const MAX_FIELDS: usize = 100;
/// Length in bytes of the longest target: hyper's own limit.
pub(super) const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;
/// Length in bytes of the longest field name; `http` cannot hold one of 64 KiB.
pub(super) const MAX_NAME_BYTES: usize = 8 * 1024;
/// Largest body length. hyper reserves a few larger values.
pub(super) const MAX_LENGTH: u64 = i64::MAX as u64;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestHead {
    is_old: bool,
    has_host: bool,
    length: Option<u64>,
    is_chunked: bool,
    fields: usize,
}

impl RequestHead {
    /// Parses a complete line. Returns the place after it.
    pub(super) fn line(&mut self, line: LineKind, bytes: &[u8]) -> Result<Place, Bad> {
        let text = bytes.strip_suffix(b"\r\n").ok_or(MALFORMED)?;
        if memchr::memchr2(b'\r', 0, text).is_some() {
            return Err(MALFORMED);
        }
        Ok(match line {
            // An empty line before a request is skipped (RFC 9112, section 2.2).
            LineKind::Request if text.is_empty() => Place::Line(LineKind::Request),
            LineKind::Request => {
                *self = Self {
                    is_old: is_old(text)?,
                    ..Self::default()
                };
                Place::Line(LineKind::Field)
            }
            LineKind::Field if text.is_empty() => self.end()?,
            LineKind::Field => {
                self.field(text)?;
                Place::Line(LineKind::Field)
            }
            LineKind::ChunkSize => match chunk_size(text)? {
                0 => Place::Line(LineKind::Trailer),
                size => Place::Chunk(size),
            },
            LineKind::ChunkEnd if text.is_empty() => Place::Line(LineKind::ChunkSize),
            LineKind::ChunkEnd => return Err(MALFORMED),
            LineKind::Trailer if text.is_empty() => Place::Line(LineKind::Request),
            LineKind::Trailer => {
                let (name, _) = field(text)?;
                match Name::of(name) {
                    Name::Other => Place::Line(LineKind::Trailer),
                    _ => return Err(MALFORMED),
                }
            }
        })
    }

    fn field(&mut self, text: &[u8]) -> Result<(), Bad> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(Bad(Why::HeadTooLarge));
        }
        let (name, value) = field(text)?;
        let refused = match Name::of(name) {
            Name::Length => {
                let refused = self.length.is_some() || self.is_chunked;
                let length = number(value, 10).filter(|length| *length <= MAX_LENGTH);
                self.length = Some(length.ok_or(MALFORMED)?);
                refused
            }
            Name::Encoding => {
                let refused = self.is_old || self.is_chunked || self.length.is_some();
                self.is_chunked = true;
                refused || !value.eq_ignore_ascii_case(b"chunked")
            }
            Name::Host => std::mem::replace(&mut self.has_host, true),
            Name::Other => false,
        };
        if refused { Err(MALFORMED) } else { Ok(()) }
    }

    /// Ends the head. Returns the place after it.
    fn end(&self) -> Result<Place, Bad> {
        if !self.has_host && !self.is_old {
            return Err(MALFORMED);
        }
        Ok(match self.length {
            _ if self.is_chunked => Place::Line(LineKind::ChunkSize),
            None | Some(0) => Place::Line(LineKind::Request),
            Some(length) => Place::Body(length),
        })
    }
}

/// Checks a request line. Returns whether it is HTTP/1.0.
fn is_old(text: &[u8]) -> Result<bool, Bad> {
    let (text, is_old) = match text.strip_suffix(b" HTTP/1.1") {
        Some(text) => (text, false),
        None => (text.strip_suffix(b" HTTP/1.0").ok_or(MALFORMED)?, true),
    };
    let space = memchr::memchr(b' ', text).ok_or(MALFORMED)?;
    let (method, target) = (&text[..space], &text[space + 1..]);
    if target.len() > MAX_TARGET_BYTES {
        return Err(Bad(Why::TargetTooLong));
    }
    if !is_token(method) || !is_target(target) {
        return Err(MALFORMED);
    }
    Ok(is_old)
}

/// Returns whether `http` accepts the target, which is parsed unless it is a plain path.
fn is_target(target: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~%?&=+:@,;!$'()*".contains(byte);
    match target {
        [b'/', rest @ ..] if rest.iter().all(is_plain) => true,
        _ => target.iter().all(u8::is_ascii_graphic) && http::Uri::try_from(target).is_ok(),
    }
}

fn field(text: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    let colon = memchr::memchr(b':', text).ok_or(MALFORMED)?;
    let (name, value) = (&text[..colon], trimmed(&text[colon + 1..]));
    if is_token(name) && name.len() <= MAX_NAME_BYTES && !value.iter().any(is_control) {
        Ok((name, value))
    } else {
        Err(MALFORMED)
    }
}

fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

enum Name {
    Length,
    Encoding,
    Host,
    Other,
}

impl Name {
    fn of(name: &[u8]) -> Self {
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => Self::Host,
            14 if name.eq_ignore_ascii_case(b"content-length") => Self::Length,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => Self::Encoding,
            _ => Self::Other,
        }
    }
}

fn chunk_size(text: &[u8]) -> Result<u64, Bad> {
    let end = memchr::memchr(b';', text).unwrap_or(text.len());
    if end > 16 || text[end..].iter().any(is_control) {
        return Err(MALFORMED);
    }
    number(&text[..end], 16).ok_or(MALFORMED)
}

/// Parses a number that consists only of digits.
fn number(text: &[u8], radix: u32) -> Option<u64> {
    // `from_str_radix` accepts a sign.
    let digits = text.iter().all(u8::is_ascii_alphanumeric);
    let text = std::str::from_utf8(text).ok().filter(|_| digits)?;
    u64::from_str_radix(text, radix).ok()
}

/// Returns whether the text is a token (RFC 9110, section 5.6.2).
fn is_token(text: &[u8]) -> bool {
    const TOKEN: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            table[byte] = (byte as u8).is_ascii_alphanumeric();
            byte += 1;
        }
        let others = b"!#$%&'*+-.^_`|~";
        let mut at = 0;
        while at < others.len() {
            table[others[at] as usize] = true;
            at += 1;
        }
        table
    };
    !text.is_empty() && text.iter().all(|byte| TOKEN[usize::from(*byte)])
}

/// Rejects the beginning of a line that hyper would answer by itself: hyper parses an incomplete head as it arrives.
pub(super) fn begins(line: LineKind, part: &[u8]) -> Result<(), Bad> {
    let is_good = match (line, part) {
        (LineKind::Request | LineKind::Field, b"\r") => true,
        (LineKind::Request, part) => {
            let mut words = part.splitn(3, |byte| *byte == b' ');
            let (method, target, version) = (words.next(), words.next(), words.next());
            method.is_some_and(is_token)
                && target.is_none_or(|target| target.iter().all(u8::is_ascii_graphic))
                && (version.is_none() || target.is_some_and(is_target))
                && version.is_none_or(|version| {
                    [&b"HTTP/1.1\r"[..], b"HTTP/1.0\r"]
                        .iter()
                        .any(|all| all.starts_with(version))
                })
        }
        (LineKind::Field, part) => match memchr::memchr(b':', part) {
            None => is_token(part),
            Some(colon) => {
                let value = &part[colon + 1..];
                let value = value.strip_suffix(b"\r").unwrap_or(value);
                is_token(&part[..colon]) && !value.iter().any(is_control)
            }
        },
        _ => true,
    };
    if is_good { Ok(()) } else { Err(MALFORMED) }
}

/// Returns whether a byte is a control character not allowed in field values.
fn is_control(byte: &u8) -> bool {
    byte.is_ascii_control() && *byte != b'\t'
}

//! Where one request ends and the next begins, read strictly: the guard against request smuggling.
//!
//! A request is smuggled where two parties on its way disagree about that. hyper reads leniently what RFC 9112 lets a
//! recipient be lenient about: a `Content-Length` beside a `Transfer-Encoding` is dropped (§6.3), lines may end with a
//! bare LF (§2.2), a repeated length is one length, white space may follow a chunk's size. Some proxy before this router may have read
//! the same bytes the other way. So each byte that a client sends passes a second reader before hyper sees it, which knows
//! nothing but framing and refuses whatever more than one reading exists for. What it lets through, hyper cannot read
//! otherwise: that is tested against hyper itself.
//!
//! Refused, on HTTP/1 connections:
//! - `Transfer-Encoding` beside `Content-Length`, more than once, other than `chunked`, or in HTTP/1.0;
//! - a `Content-Length` that is not digits alone, does not fit 64 bits, or comes twice, even if it says the same;
//! - no `Host` or several in HTTP/1.1 (RFC 9112, section 3.2);
//! - lines that do not end with CRLF, with CR or NUL within, folded lines, names that are no tokens, white space before a
//!   colon, request lines of other than three parts with one space between them;
//! - chunk sizes that are not 1 to 16 hexadecimal digits, extensions that are long or hold control characters;
//! - trailers that speak of framing or routing.
//!
//! - fields whose values, and targets whose bytes, hyper would refuse: it would answer them by itself, with an empty body;
//! - heads that are longer, or have more fields, than the connection's limits.
//!
//! It goes line by line through heads and chunk sizes; bodies it steps over by their length. Only a line that arrives in
//! parts is copied. HTTP/2 frames it steps over too, and knows which header block is unfinished ([`http2`]). Rejected: to write an own parser in hyper's place (more to get wrong, and nothing gained: hyper's head is
//! needed anyway), and to look at hyper's parsed head (what was ambiguous is gone by then).

mod http2;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

use self::http2::Frames;

/// How an HTTP/2 connection begins (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest line with a chunk's size: digits and an extension.
const CHUNK_LINE_BYTES: usize = 256;
/// Longest line of a trailer; hyper takes this much of all of them.
const TRAILER_LINE_BYTES: usize = 16 * 1024;
/// Memory for a line in parts that is kept from one to the next.
const KEPT: usize = 1024;
/// Fields of a head: hyper's own limit.
const MAX_FIELDS: usize = 100;
/// Longest target: hyper's own limit.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;
/// Longest name of a field; `http` cannot hold one of 64 KiB.
const MAX_NAME_BYTES: usize = 8 * 1024;
/// Largest length of a body. hyper keeps a few beyond it for itself.
const MAX_LENGTH: u64 = i64::MAX as u64;

/// Reads along with a connection.
#[derive(Debug)]
pub struct Framing {
    place: Place,
    head: Head,
    /// The line that is being read, as far as it came in earlier parts.
    part: Vec<u8>,
    /// Bytes of the lines of an unfinished head, with empty lines before it.
    head_bytes: usize,
    max_head: usize,
    /// Requests that were read to their end.
    whole: u64,
    frames: Frames,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// So many bytes came, all of them HTTP/2's preface.
    Preface(usize),
    Line(Line),
    /// So many bytes of a body are to come, then a request.
    Body(u64),
    /// So many bytes of a chunk are to come, then its end.
    Chunk(u64),
    /// Frames of HTTP/2.
    Http2,
    /// Another protocol: whatever comes is left alone.
    Opaque,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Request,
    Field,
    ChunkSize,
    ChunkEnd,
    Trailer,
}

/// What a head has said so far of its body.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    is_old: bool,
    has_host: bool,
    length: Option<u64>,
    is_chunked: bool,
    fields: usize,
}

/// Why a line is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has more than one reading, or none.
    Malformed,
    /// Its target is too long.
    TargetTooLong,
    /// Its head is too long, or has too many fields.
    HeadTooLarge,
}

/// The bytes cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Where in the bytes given the line stands that is refused: no byte from there on may be used.
    pub at: usize,
    /// Whether it belongs to a head, not to a body.
    pub in_head: bool,
    /// Why.
    pub why: Why,
}

/// A line that is refused.
#[derive(Debug)]
struct Bad(Why);

const MALFORMED: Bad = Bad(Why::Malformed);

impl Framing {
    /// At the beginning of a connection. A head of more than `max_head` bytes is refused.
    #[must_use]
    pub fn new(max_head: usize) -> Self {
        Self {
            place: Place::Preface(0),
            head: Head::default(),
            part: Vec::new(),
            head_bytes: 0,
            max_head,
            whole: 0,
            frames: Frames::default(),
        }
    }

    /// From here on the connection speaks something else.
    pub fn is_upgraded(&mut self) {
        self.place = Place::Opaque;
        self.part = Vec::new();
    }

    /// Bytes of a head that has begun and not ended. Whoever parses it holds them.
    #[must_use]
    pub fn unfinished_head(&self) -> usize {
        match self.place {
            Place::Http2 => self.frames.unfinished_block(),
            _ => self.head_bytes + self.part.len(),
        }
    }

    /// The state of HTTP/2's header blocks: how many have begun, and whether the last is unfinished. `None` in HTTP/1.
    #[must_use]
    pub fn header_blocks(&self) -> Option<(u64, bool)> {
        (self.place == Place::Http2).then(|| self.frames.blocks())
    }

    /// Requests of HTTP/1 that were read to their end, and whether anything came after the last of them.
    #[must_use]
    pub fn requests(&self) -> (u64, bool) {
        let more = match self.place {
            Place::Line(Line::Request) => self.head_bytes > 0 || !self.part.is_empty(),
            Place::Preface(known) => known > 0,
            Place::Http2 | Place::Opaque | Place::Refused => false,
            _ => true,
        };
        (self.whole, more)
    }

    /// Reads what came next.
    ///
    /// # Errors
    /// If it has more than one reading, or none; and on every call after that.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let read = match self.place {
                Place::Opaque => return Ok(()),
                Place::Http2 => {
                    self.frames.read(rest);
                    return Ok(());
                }
                Place::Refused => Err(MALFORMED),
                Place::Preface(known) => Ok(self.preface(known, rest)),
                Place::Body(left) => {
                    let (read, left) = step(left, rest);
                    self.place = if left == 0 {
                        self.whole += 1;
                        Place::Line(Line::Request)
                    } else {
                        Place::Body(left)
                    };
                    Ok(read)
                }
                Place::Chunk(left) => {
                    let (read, left) = step(left, rest);
                    self.place = if left == 0 {
                        Place::Line(Line::ChunkEnd)
                    } else {
                        Place::Chunk(left)
                    };
                    Ok(read)
                }
                Place::Line(line) => self.line(line, rest),
            };
            match read {
                Ok(read) => at += read,
                Err(Bad(why)) => {
                    let in_head = matches!(self.place, Place::Line(Line::Request | Line::Field));
                    self.place = Place::Refused;
                    (self.part, self.head_bytes) = (Vec::new(), 0);
                    return Err(Refused { at, in_head, why });
                }
            }
        }
        Ok(())
    }

    /// HTTP/2 as long as it goes on like its preface; the first other byte makes all of it HTTP/1.
    fn preface(&mut self, known: usize, rest: &[u8]) -> usize {
        let alike = PREFACE[known..]
            .iter()
            .zip(rest)
            .take_while(|(ours, theirs)| ours == theirs)
            .count();
        let known = known + alike;
        if known == PREFACE.len() {
            self.place = Place::Http2;
        } else if alike == rest.len() {
            self.place = Place::Preface(known);
        } else {
            self.place = Place::Line(Line::Request);
            // It was the beginning of a request line. If it was more than a line, it holds a CR, and is refused with it.
            self.part.extend_from_slice(&PREFACE[..known]);
        }
        alike
    }

    /// Reads on in a line. Returns how many bytes belong to it.
    fn line(&mut self, line: Line, rest: &[u8]) -> Result<usize, Bad> {
        let end = memchr::memchr(b'\n', rest);
        let read = end.map_or(rest.len(), |end| end + 1);
        let bytes = self.part.len() + read;
        self.bound(line, bytes)?;
        if end.is_none() {
            self.part.extend_from_slice(rest);
            begins(line, &self.part)?;
            return Ok(read);
        }
        self.place = if self.part.is_empty() {
            self.head.line(line, &rest[..read])?
        } else {
            self.part.extend_from_slice(&rest[..read]);
            let place = self.head.line(line, &self.part)?;
            self.part.clear();
            self.part.shrink_to(KEPT);
            place
        };
        if line != Line::Request && self.place == Place::Line(Line::Request) {
            self.whole += 1;
        }
        match line {
            Line::Field if self.place != Place::Line(Line::Field) => self.head_bytes = 0,
            Line::Request | Line::Field => self.head_bytes += bytes,
            _ => {}
        }
        Ok(read)
    }

    /// Refuses a line that is this long so far, if that is too long.
    fn bound(&self, line: Line, bytes: usize) -> Result<(), Bad> {
        let (longest, why) = match line {
            Line::Request => (self.max_head - self.head_bytes, Why::TargetTooLong),
            Line::Field => (self.max_head - self.head_bytes, Why::HeadTooLarge),
            Line::Trailer => (TRAILER_LINE_BYTES, Why::Malformed),
            Line::ChunkSize => (CHUNK_LINE_BYTES, Why::Malformed),
            Line::ChunkEnd => (2, Why::Malformed),
        };
        if bytes > longest { Err(Bad(why)) } else { Ok(()) }
    }
}

/// Refuses what no line of a head begins with: hyper parses a head as it comes, and would answer such a one by itself.
fn begins(line: Line, part: &[u8]) -> Result<(), Bad> {
    let is_good = match (line, part) {
        (Line::Request | Line::Field, b"\r") => true,
        (Line::Request, part) => {
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
        (Line::Field, part) => match memchr::memchr(b':', part) {
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

/// Whether it is a control character that no value of a field has.
fn is_control(byte: &u8) -> bool {
    byte.is_ascii_control() && *byte != b'\t'
}

/// Steps over as much of `left` as there is.
fn step(left: u64, rest: &[u8]) -> (usize, u64) {
    let read = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
    (read, left - read as u64)
}

impl Head {
    /// Reads a whole line. Returns what comes after it.
    fn line(&mut self, line: Line, bytes: &[u8]) -> Result<Place, Bad> {
        let text = bytes.strip_suffix(b"\r\n").ok_or(MALFORMED)?;
        if memchr::memchr2(b'\r', 0, text).is_some() {
            return Err(MALFORMED);
        }
        Ok(match line {
            // An empty line before a request is passed over (RFC 9112, section 2.2).
            Line::Request if text.is_empty() => Place::Line(Line::Request),
            Line::Request => {
                *self = Self {
                    is_old: is_old(text)?,
                    ..Self::default()
                };
                Place::Line(Line::Field)
            }
            Line::Field if text.is_empty() => self.end()?,
            Line::Field => {
                self.field(text)?;
                Place::Line(Line::Field)
            }
            Line::ChunkSize => match chunk_size(text)? {
                0 => Place::Line(Line::Trailer),
                size => Place::Chunk(size),
            },
            Line::ChunkEnd if text.is_empty() => Place::Line(Line::ChunkSize),
            Line::ChunkEnd => return Err(MALFORMED),
            Line::Trailer if text.is_empty() => Place::Line(Line::Request),
            Line::Trailer => {
                let (name, _) = field(text)?;
                match Name::of(name) {
                    Name::Other => Place::Line(Line::Trailer),
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

    /// The head is over. Returns what comes after it.
    fn end(&self) -> Result<Place, Bad> {
        if !self.has_host && !self.is_old {
            return Err(MALFORMED);
        }
        Ok(match self.length {
            _ if self.is_chunked => Place::Line(Line::ChunkSize),
            None | Some(0) => Place::Line(Line::Request),
            Some(length) => Place::Body(length),
        })
    }
}

/// Whether a request line is of HTTP/1.0.
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

/// Whether it is a target that `http` takes, which reads all but plain paths.
fn is_target(target: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~%?&=+:@,;!$'()*".contains(byte);
    match target {
        [b'/', rest @ ..] if rest.iter().all(is_plain) => true,
        _ => target.iter().all(u8::is_ascii_graphic) && http::Uri::try_from(target).is_ok(),
    }
}

/// A field's name and value.
fn field(text: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    let colon = memchr::memchr(b':', text).ok_or(MALFORMED)?;
    let (name, value) = (&text[..colon], trimmed(&text[colon + 1..]));
    if is_token(name) && name.len() <= MAX_NAME_BYTES && !value.iter().any(is_control) {
        Ok((name, value))
    } else {
        Err(MALFORMED)
    }
}

/// Without the white space that may stand around a value.
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The fields that speak of framing.
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

/// A chunk's size, with or without an extension after it.
fn chunk_size(text: &[u8]) -> Result<u64, Bad> {
    let end = memchr::memchr(b';', text).unwrap_or(text.len());
    if end > 16 || text[end..].iter().any(is_control) {
        return Err(MALFORMED);
    }
    number(&text[..end], 16).ok_or(MALFORMED)
}

/// A number of digits alone.
fn number(text: &[u8], radix: u32) -> Option<u64> {
    // `from_str_radix` takes a sign.
    let digits = text.iter().all(u8::is_ascii_alphanumeric);
    let text = std::str::from_utf8(text).ok().filter(|_| digits)?;
    u64::from_str_radix(text, radix).ok()
}

/// RFC 9110, section 5.6.2.
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

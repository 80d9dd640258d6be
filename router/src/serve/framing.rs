//! Where one request ends and the next begins, read strictly: the guard against request smuggling.
//!
//! A request is smuggled where two parties on its way disagree about that. hyper is as lenient as RFC 9112 allows a
//! recipient to be: it drops a `Content-Length` beside a `Transfer-Encoding` (§6.3), ends lines at a bare LF (§2.2), takes a
//! repeated length for one length, and allows white space behind a chunk's size. A proxy in front of this router may have
//! read the same bytes the other way. So every byte that a client sends passes this reader before hyper sees it. It knows
//! nothing but framing, and refuses whatever has more than one reading. Tests show that hyper reads the rest the same way.
//!
//! Refused, on HTTP/1 connections:
//! - `Transfer-Encoding` beside `Content-Length`, more than once, other than `chunked`, or in HTTP/1.0;
//! - a `Content-Length` that is not digits alone, does not fit 64 bits, or comes twice, even if it says the same;
//! - no `Host` or several in HTTP/1.1 (RFC 9112, section 3.2);
//! - lines that do not end with CRLF, with CR or NUL within, folded lines, names that are no tokens, white space before a
//!   colon, request lines of other than three parts with one space between them;
//! - chunk sizes that are not 1 to 16 hexadecimal digits, extensions that are long or hold control characters;
//! - trailers that speak of framing or routing;
//! - values and targets that hyper refuses: it would answer them by itself, with an empty body;
//! - heads that are longer, or have more fields, than the connection's limits.
//!
//! [`Framing`] finds the lines and steps over bodies by their length; `lines` has the grammar of single lines. Only a line
//! that arrives in parts is copied. Frames of HTTP/2 are stepped over too ([`http2`] knows which header block is
//! unfinished).
//!
//! Rejected: a parser in hyper's place, since hyper's parsed head is needed anyway; and a look at that head, since what was
//! ambiguous is gone by then.

mod http2;
mod lines;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

use self::http2::Frames;
use self::lines::{Head, begins};

/// How an HTTP/2 connection begins (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest line with a chunk's size: digits and an extension.
const CHUNK_LINE_BYTES: usize = 256;
/// Longest line of a trailer; hyper takes this much of all of them.
const TRAILER_LINE_BYTES: usize = 16 * 1024;
/// Memory for a line in parts that is kept from one to the next.
const KEPT: usize = 1024;
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

/// Steps over as much of `left` as there is.
fn step(left: u64, rest: &[u8]) -> (usize, u64) {
    let read = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
    (read, left - read as u64)
}

//! Strict request framing: the guard against request smuggling.
//!
//! A request is smuggled where two parties on its way disagree about where it ends. hyper is as lenient as RFC 9112
//! allows a recipient to be, and a proxy in front of this router may have read the same bytes differently. So every
//! byte that a client sends passes this reader before hyper sees it. The reader checks only framing, and rejects
//! everything ambiguous (`docs/http.md`, section Framing), and what hyper would answer by itself, with an empty body.
//! Tests show that hyper reads all other input in the same way.
//!
//! [`Framing`] finds the lines and skips bodies by their length; `lines` has the grammar of single lines. Only a line
//! that arrives in parts is copied. HTTP/2 frames are skipped too ([`http2`] tracks unfinished header blocks).
//!
//! Alternatives that were rejected: a parser in hyper's place, because hyper's parsed head is needed anyway; and
//! checks on that head, because the ambiguity is gone by then.

mod http2;
mod lines;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

use self::http2::Http2Frames;
use self::lines::{RequestHead, begins};

/// The HTTP/2 connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length in bytes of the longest line with a chunk's size and its extension.
const CHUNK_LINE_BYTES: usize = 256;
/// Length in bytes of the longest line of a trailer; hyper's limit for all trailers together.
const TRAILER_LINE_BYTES: usize = 16 * 1024;
/// Capacity in bytes that is kept for partial lines.
const KEPT: usize = 1024;
/// Reader that checks the bytes of one connection.
#[derive(Debug)]
pub struct Framing {
    place: Place,
    head: RequestHead,
    /// Earlier parts of an incomplete line.
    part: Vec<u8>,
    /// Bytes of an unfinished head, including empty lines before it.
    head_bytes: usize,
    max_head: usize,
    /// Number of complete requests.
    whole: u64,
    frames: Http2Frames,
}

/// Element of the protocol that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The HTTP/2 preface, of which this number of bytes has come.
    Preface(usize),
    Line(LineKind),
    /// A body, of which this number of bytes remains before the next request.
    Body(u64),
    /// A chunk, of which this number of bytes remains before its end.
    Chunk(u64),
    Http2,
    /// Another protocol, whose bytes are not checked.
    Opaque,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    Request,
    Field,
    ChunkSize,
    ChunkEnd,
    Trailer,
}

/// Reason why a line is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The line is ambiguous or invalid.
    Malformed,
    /// The request's target is too long.
    TargetTooLong,
    /// The head is too long, or has too many fields.
    HeadTooLarge,
}

/// A rejected line. Nothing more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedLine {
    /// Offset of the rejected line in the given bytes: no byte from there on may be used.
    pub at: usize,
    /// Whether the line belongs to a head rather than a body.
    pub in_head: bool,
    pub why: Why,
}

#[derive(Debug)]
struct Bad(Why);

const MALFORMED: Bad = Bad(Why::Malformed);

impl Framing {
    /// Returns a reader for a new connection. Heads of more than `max_head` bytes are rejected.
    pub fn new(max_head: usize) -> Self {
        Self {
            place: Place::Preface(0),
            head: RequestHead::default(),
            part: Vec::new(),
            head_bytes: 0,
            max_head,
            whole: 0,
            frames: Http2Frames::default(),
        }
    }

    /// Stops checking, because the connection has switched to another protocol.
    pub fn on_upgrade(&mut self) {
        self.place = Place::Opaque;
        self.part = Vec::new();
        self.head_bytes = 0;
    }

    /// Returns the number of bytes of an unfinished head, which the parser buffers.
    pub fn unfinished_head(&self) -> usize {
        match self.place {
            Place::Http2 => self.frames.unfinished_block(),
            _ => self.head_bytes + self.part.len(),
        }
    }

    /// Returns the number of the unfinished head or HTTP/2 header block, if there is one. Empty lines do not begin a
    /// head.
    pub fn open_head(&self) -> Option<u64> {
        let is_open = match self.place {
            Place::Preface(known) => known > 0,
            Place::Line(LineKind::Request) => !matches!(self.part[..], [] | [b'\r']),
            Place::Line(LineKind::Field) => true,
            Place::Http2 => return self.frames.open_block(),
            _ => false,
        };
        is_open.then_some(self.whole)
    }

    /// Returns whether the connection uses HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.place == Place::Http2
    }

    /// Returns the number of complete HTTP/1 requests, and whether any bytes came after them.
    pub fn requests(&self) -> (u64, bool) {
        let more = match self.place {
            Place::Line(LineKind::Request) => self.head_bytes > 0 || !self.part.is_empty(),
            Place::Preface(known) => known > 0,
            Place::Http2 | Place::Opaque | Place::Refused => false,
            _ => true,
        };
        (self.whole, more)
    }

    /// Checks the next bytes. Fails if they are ambiguous or invalid, and on every call after that.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), RefusedLine> {
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
                        Place::Line(LineKind::Request)
                    } else {
                        Place::Body(left)
                    };
                    Ok(read)
                }
                Place::Chunk(left) => {
                    let (read, left) = step(left, rest);
                    self.place = if left == 0 {
                        Place::Line(LineKind::ChunkEnd)
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
                    let in_head = matches!(self.place, Place::Line(LineKind::Request | LineKind::Field));
                    self.place = Place::Refused;
                    (self.part, self.head_bytes) = (Vec::new(), 0);
                    return Err(RefusedLine { at, in_head, why });
                }
            }
        }
        Ok(())
    }

    /// Matches the HTTP/2 preface. At the first difference the bytes are treated as HTTP/1.
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
            self.place = Place::Line(LineKind::Request);
            // The matched part began a request line. If it was longer than a line, it contains a CR and is rejected.
            self.part.extend_from_slice(&PREFACE[..known]);
        }
        alike
    }

    /// Continues a line. Returns the number of bytes that belong to it.
    fn line(&mut self, line: LineKind, rest: &[u8]) -> Result<usize, Bad> {
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
        if line != LineKind::Request && self.place == Place::Line(LineKind::Request) {
            self.whole += 1;
        }
        match line {
            LineKind::Field if self.place != Place::Line(LineKind::Field) => self.head_bytes = 0,
            LineKind::Request | LineKind::Field => self.head_bytes += bytes,
            _ => {}
        }
        Ok(read)
    }

    fn bound(&self, line: LineKind, bytes: usize) -> Result<(), Bad> {
        let (longest, why) = match line {
            LineKind::Request => (self.max_head - self.head_bytes, Why::TargetTooLong),
            LineKind::Field => (self.max_head - self.head_bytes, Why::HeadTooLarge),
            LineKind::Trailer => (TRAILER_LINE_BYTES, Why::Malformed),
            LineKind::ChunkSize => (CHUNK_LINE_BYTES, Why::Malformed),
            LineKind::ChunkEnd => (2, Why::Malformed),
        };
        if bytes > longest { Err(Bad(why)) } else { Ok(()) }
    }
}

fn step(left: u64, rest: &[u8]) -> (usize, u64) {
    let read = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
    (read, left - read as u64)
}

//! A parser for server-sent events in a byte stream that may be cut anywhere.
//!
//! [`Lines`] yields each line as soon as it ends, without copying: a proxy must not wait for the empty line after a
//! token's. [`Events`] follows the [standard](https://html.spec.whatwg.org/multipage/server-sent-events.html) as far as
//! OpenAI's streams use it: `data` fields, joined by newlines, dispatched by an empty line; other fields are skipped.
//! Both accept LF, CRLF and CR, and buffer no more than a given bound. Empty lines between events have no meaning and
//! are skipped many at a time, so a stream of line ends costs no more than any other.

use memchr::memchr2;

#[cfg(test)]
mod tests;

/// Default bound of a line in bytes, enough for a token or a usage record with log-probabilities.
pub const LONGEST_LINE: usize = 1 << 20;
/// Default bound of an event in bytes.
pub const LONGEST_EVENT: usize = 4 << 20;

/// Splitter of a byte stream into lines. Only a line that spans chunks is copied; one beyond the bound is skipped.
#[derive(Debug)]
pub struct Lines {
    carry: Vec<u8>,
    longest: usize,
    skipping: bool,
    skipped: u64,
    /// Whether the last line ended in CR: a following LF belongs to it.
    after_cr: bool,
    /// Whether a line has come since the last empty one.
    in_event: bool,
}

/// Position of a stream within its grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPosition<'a> {
    /// Between two events.
    Between,
    /// Within an event, at the beginning of a line.
    InEvent {
        /// Whether the last line ended in CR: a following LF would belong to it.
        after_cr: bool,
    },
    /// Within this line, which is incomplete.
    InLine(&'a [u8]),
    /// Within a line longer than the bound.
    InLongLine,
}

impl Default for Lines {
    fn default() -> Self {
        Self::new(LONGEST_LINE)
    }
}

impl Lines {
    /// Returns a splitter with a bound of `longest` bytes per line.
    pub fn new(longest: usize) -> Self {
        Self {
            carry: Vec::new(),
            longest,
            skipping: false,
            skipped: 0,
            after_cr: false,
            in_event: false,
        }
    }

    /// Adds a chunk and yields each line that it completes, without the line ending. Of the empty lines, only one that
    /// ends an event is yielded.
    pub fn push(&mut self, mut chunk: &[u8], mut line: impl FnMut(&[u8])) {
        while let Some(&first) = chunk.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                chunk = &chunk[1..];
                continue;
            }
            if is_end(first) && matches!(self.position(), StreamPosition::Between) {
                let run = chunk
                    .iter()
                    .position(|byte| !is_end(*byte))
                    .unwrap_or(chunk.len());
                self.after_cr = chunk[run - 1] == b'\r';
                chunk = &chunk[run..];
                continue;
            }
            let Some(end) = end_of_line(chunk) else {
                self.keep(chunk);
                return;
            };
            let head = &chunk[..end];
            self.after_cr = chunk[end] == b'\r';
            chunk = &chunk[end + 1..];
            if self.carry.is_empty() && !self.skipping && head.len() <= self.longest {
                self.in_event = !head.is_empty();
                line(head);
                continue;
            }
            self.keep(head);
            self.in_event = true;
            if !std::mem::take(&mut self.skipping) {
                line(&self.carry);
            }
            self.carry.clear();
        }
    }

    fn keep(&mut self, piece: &[u8]) {
        if !self.skipping && self.carry.len() + piece.len() <= self.longest {
            self.carry.extend_from_slice(piece);
        } else if !std::mem::replace(&mut self.skipping, true) {
            self.skipped += 1;
            self.carry = Vec::new();
        }
    }

    /// Returns the number of buffered bytes of an incomplete line.
    pub fn held(&self) -> usize {
        self.carry.len()
    }

    /// Skips the rest of the buffered line, as if it were longer than the bound.
    pub fn skip(&mut self) {
        if !self.carry.is_empty() && !std::mem::replace(&mut self.skipping, true) {
            self.skipped += 1;
            self.carry = Vec::new();
        }
    }

    /// Returns the number of skipped lines.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the position of the stream, which determines what has to be closed before something else is written to
    /// it.
    pub fn position(&self) -> StreamPosition<'_> {
        if self.skipping {
            StreamPosition::InLongLine
        } else if !self.carry.is_empty() {
            StreamPosition::InLine(&self.carry)
        } else if self.in_event {
            StreamPosition::InEvent {
                after_cr: self.after_cr,
            }
        } else {
            StreamPosition::Between
        }
    }
}

/// Number of bytes of a line that are compared one by one, before a search whose start costs more.
const SHORT_LINE: usize = 4;

fn end_of_line(chunk: &[u8]) -> Option<usize> {
    let short = chunk.iter().take(SHORT_LINE).position(|byte| is_end(*byte));
    short.or_else(|| memchr2(b'\n', b'\r', chunk))
}

fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

/// Returns the payload of a `data:` line; `None` for any other line.
pub fn data(line: &[u8]) -> Option<&[u8]> {
    let payload = line.strip_prefix(b"data:")?;
    Some(payload.strip_prefix(b" ").unwrap_or(payload))
}

/// Error: the stream sent an event or a line of more than this number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {0} bytes")]
pub struct TooLong(pub usize);

/// Splitter of a stream into the data of its events.
#[derive(Debug)]
pub struct Events {
    lines: Lines,
    data: Vec<u8>,
    has_data: bool,
    longest: usize,
    failed: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self::new(LONGEST_EVENT)
    }
}

impl Events {
    /// Returns a splitter with a bound of `longest` bytes per event.
    pub fn new(longest: usize) -> Self {
        Self {
            lines: Lines::new(longest),
            data: Vec::new(),
            has_data: false,
            longest,
            failed: false,
        }
    }

    /// Yields the data of each event that these bytes complete. Fails, for good, if an event or a line is too long.
    pub fn push(&mut self, bytes: &[u8], mut on_event: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let Self {
            lines,
            data: event,
            has_data,
            longest,
            failed,
        } = self;
        if *failed {
            return Err(TooLong(*longest));
        }
        lines.push(bytes, |line| {
            if *failed {
                return;
            }
            if line.is_empty() {
                if std::mem::take(has_data) {
                    on_event(event);
                }
                event.clear();
            } else if let Some(value) = data(line) {
                if std::mem::replace(has_data, true) {
                    event.push(b'\n');
                }
                *failed = event.len() + value.len() > *longest;
                if !*failed {
                    event.extend_from_slice(value);
                }
            }
        });
        *failed |= lines.skipped() > 0;
        if *failed {
            *event = Vec::new();
            return Err(TooLong(*longest));
        }
        Ok(())
    }
}

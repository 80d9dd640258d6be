//! Server-sent events out of a byte stream that may be cut anywhere.
//!
//! Two readers, one splitter. [`Lines`] hands on each line as it ends, where it lies: a proxy looks at a token's line in
//! passing and must not wait for the empty line after it. [`Events`] follows the
//! [standard](https://html.spec.whatwg.org/multipage/server-sent-events.html) as far as OpenAI's streams use it: `data`
//! fields, joined by newlines, dispatched by an empty line; comments and other fields are passed over. Both take lines
//! that end in LF, CRLF or CR, and hold no more than they are told to.

use memchr::memchr2;

#[cfg(test)]
mod tests;

/// Longest line that is kept by default: a token or a usage record, with room for log-probabilities.
pub const LONGEST_LINE: usize = 1 << 20;
/// Longest event that is kept by default.
pub const LONGEST_EVENT: usize = 4 << 20;

/// Splits a byte stream into lines. A line that lies whole within a chunk is handed on where it lies; only one that spans
/// chunks is copied. One longer than the bound is skipped, not kept, and the next one is seen.
#[derive(Debug)]
pub struct Lines {
    /// The beginning of a line that has not ended yet.
    carry: Vec<u8>,
    longest: usize,
    skipping: bool,
    skipped: u64,
    /// The last line ended in CR: an LF that opens what follows belongs to it.
    after_cr: bool,
    /// Lines have come since the last empty one.
    in_event: bool,
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing<'a> {
    /// Between two events.
    Between,
    /// Within an event, at the beginning of a line.
    InEvent {
        /// The last line ended in CR: an LF that came next would belong to it.
        after_cr: bool,
    },
    /// Within this line.
    InLine(&'a [u8]),
    /// Within a line that was too long to be kept.
    InLongLine,
}

impl Default for Lines {
    fn default() -> Self {
        Self::new(LONGEST_LINE)
    }
}

impl Lines {
    /// For lines of at most this many bytes.
    #[must_use]
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

    /// Takes the next chunk and hands on each line completed by it, without its line ending.
    pub fn push(&mut self, mut chunk: &[u8], mut line: impl FnMut(&[u8])) {
        while let Some(&first) = chunk.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                chunk = &chunk[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', chunk) else {
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

    /// Bytes that are held of a line whose end has not come.
    #[must_use]
    pub fn held(&self) -> usize {
        self.carry.len()
    }

    /// Skips the rest of the line that is held, as one that is too long.
    pub fn skip(&mut self) {
        if !self.carry.is_empty() && !std::mem::replace(&mut self.skipping, true) {
            self.skipped += 1;
            self.carry = Vec::new();
        }
    }

    /// Lines that were too long.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Where the stream stands: what has to be closed before something else can be said on it.
    #[must_use]
    pub fn standing(&self) -> Standing<'_> {
        if self.skipping {
            Standing::InLongLine
        } else if !self.carry.is_empty() {
            Standing::InLine(&self.carry)
        } else if self.in_event {
            Standing::InEvent {
                after_cr: self.after_cr,
            }
        } else {
            Standing::Between
        }
    }
}

/// The payload of a `data:` line.
#[must_use]
pub fn data(line: &[u8]) -> Option<&[u8]> {
    let payload = line.strip_prefix(b"data:")?;
    Some(payload.strip_prefix(b" ").unwrap_or(payload))
}

/// The stream sent an event longer than the bound, in bytes: no token but a runaway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {0} bytes")]
pub struct TooLong(pub usize);

/// Splits a stream into the data of its events.
#[derive(Debug)]
pub struct Events {
    lines: Lines,
    /// The data of the event that has not ended yet.
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
    /// For events of at most this many bytes.
    #[must_use]
    pub fn new(longest: usize) -> Self {
        Self {
            lines: Lines::new(longest),
            data: Vec::new(),
            has_data: false,
            longest,
            failed: false,
        }
    }

    /// Takes the next bytes and hands the data of each event that they complete to `on_event`.
    ///
    /// # Errors
    /// If an event or a line is too long; from then on nothing more is read.
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

//! Server-sent events out of a byte stream that may be cut anywhere.
//!
//! Of the [standard](https://html.spec.whatwg.org/multipage/server-sent-events.html) this keeps what OpenAI's streams
//! use: `data` fields, joined by newlines, dispatched by an empty line; comments and other fields are passed over; lines
//! end in LF, CRLF or CR.

/// Longest event that is kept. A longer one is no token but a runaway.
pub const MAX_EVENT_BYTES: usize = 4 << 20;

/// The stream sent an event of more than [`MAX_EVENT_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {MAX_EVENT_BYTES} bytes")]
pub struct TooLong;

/// Splits a stream into the data of its events.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The line that has not ended yet.
    line: Vec<u8>,
    /// The data of the event that has not ended yet.
    data: Vec<u8>,
    has_data: bool,
    /// The last chunk ended in CR: an LF that opens the next one belongs to it.
    after_cr: bool,
}

impl Splitter {
    /// Takes the next bytes and hands each event that they complete to `on_event`.
    ///
    /// # Errors
    /// If an event is too long to be one.
    pub fn push(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(&[u8])) -> Result<(), TooLong> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(bytes);
                return self.bounded();
            };
            self.after_cr = bytes[end] == b'\r';
            if self.line.is_empty() {
                // The common case, a whole line in one chunk, is not copied twice.
                self.end_line(&bytes[..end], &mut on_event);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.end_line(&line, &mut on_event);
                line.clear();
                self.line = line;
            }
            self.bounded()?;
            bytes = &bytes[end + 1..];
        }
        Ok(())
    }

    fn end_line(&mut self, line: &[u8], on_event: &mut impl FnMut(&[u8])) {
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                on_event(&self.data);
            }
            self.data.clear();
        } else if let Some(value) = line.strip_prefix(b"data:") {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data
                .extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
    }

    fn bounded(&self) -> Result<(), TooLong> {
        if self.line.len() + self.data.len() > MAX_EVENT_BYTES {
            Err(TooLong)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for chunk in chunks {
            splitter
                .push(chunk, |event| {
                    events.push(String::from_utf8_lossy(event).into_owned())
                })
                .unwrap();
        }
        events
    }

    const STREAM: &str = "data: {\"a\":\"ä€😀\"}\n\n: comment\r\nevent: x\r\ndata:one\r\ndata: two\r\n\r\ndata\r\rdata: [DONE]\r\r";

    #[test]
    fn a_stream_cut_at_every_byte_yields_the_same_events() {
        let whole = events(&[STREAM.as_bytes()]);
        assert_eq!(whole, ["{\"a\":\"ä€😀\"}", "one\ntwo", "[DONE]"]);
        for cut in 0..=STREAM.len() {
            let (left, right) = STREAM.as_bytes().split_at(cut);
            assert_eq!(events(&[left, right]), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = STREAM.as_bytes().chunks(1).collect();
        assert_eq!(events(&single), whole);
    }

    #[test]
    fn an_event_that_never_ends_is_refused() {
        let mut splitter = Splitter::default();
        let chunk = vec![b'x'; MAX_EVENT_BYTES / 2];
        splitter.push(&chunk, |_| ()).unwrap();
        splitter.push(&chunk, |_| ()).unwrap();
        assert_eq!(splitter.push(b"x", |_| ()), Err(TooLong));
    }

    #[test]
    fn an_event_without_its_empty_line_is_not_one() {
        assert!(events(&[b"data: [DONE]\n"]).is_empty());
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(
            text in "(data: ?[a-z]{0,3}|:[a-z]|\n|\r|\r\n|x){0,20}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts {
                chunks.push(&bytes[from..cut]);
                from = cut;
            }
            chunks.push(&bytes[from..]);
            prop_assert_eq!(events(&chunks), events(&[bytes]));
        }
    }
}

//! Lines of a server-sent event stream, found in passing.
//!
//! Chunks split lines, and characters, anywhere. A line that lies whole within a chunk is handed on where it lies; only
//! a line that spans chunks is copied. A line longer than the bound is skipped, not kept.

/// Longest line that is looked at. Engines send a token or a usage record per line; this leaves room for log-probabilities.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Splits a byte stream into lines.
#[derive(Debug, Default)]
pub struct Lines {
    carry: Vec<u8>,
    skipping: bool,
}

impl Lines {
    /// Takes the next chunk and hands on each line completed by it, without its line ending.
    pub fn push(&mut self, mut chunk: &[u8], mut line: impl FnMut(&[u8])) {
        while let Some(end) = chunk.iter().position(|&byte| byte == b'\n') {
            let (head, rest) = chunk.split_at(end);
            chunk = &rest[1..];
            if self.skipping {
                self.skipping = false;
            } else if self.carry.is_empty() {
                line(trim_cr(head));
            } else if self.carry.len() + head.len() <= MAX_LINE_BYTES {
                self.carry.extend_from_slice(head);
                line(trim_cr(&self.carry));
            }
            self.carry.clear();
        }
        if self.skipping || self.carry.len() + chunk.len() > MAX_LINE_BYTES {
            self.skipping = true;
            self.carry = Vec::new();
        } else {
            self.carry.extend_from_slice(chunk);
        }
    }
}

/// The payload of a `data:` line.
#[must_use]
pub fn data(line: &[u8]) -> Option<&[u8]> {
    let payload = line.strip_prefix(b"data:")?;
    Some(payload.strip_prefix(b" ").unwrap_or(payload))
}

fn trim_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let (mut out, mut lines) = (Vec::new(), Lines::default());
        for chunk in chunks {
            lines.push(chunk, |line| out.push(String::from_utf8_lossy(line).into_owned()));
        }
        out
    }

    #[test]
    fn splitting_at_every_byte_changes_nothing() {
        let text = "data: {\"a\":\"é 漢字 🙂\"}\n\n: comment\r\ndata:[DONE]\n\n".as_bytes();
        let whole = lines(&[text]);
        assert_eq!(whole.len(), 5);
        for cut in 0..=text.len() {
            assert_eq!(lines(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(lines(&bytes), whole);
    }

    #[test]
    fn data_may_or_may_not_be_followed_by_a_space() {
        assert_eq!(data(b"data: x"), Some(&b"x"[..]));
        assert_eq!(data(b"data:x"), Some(&b"x"[..]));
        assert_eq!(data(b"event: x"), None);
    }

    #[test]
    fn a_line_without_end_is_skipped_and_the_next_one_is_seen() {
        let flood = vec![b'x'; MAX_LINE_BYTES / 2 + 1];
        let mut sink = Lines::default();
        let mut seen = Vec::new();
        for _ in 0..10 {
            sink.push(&flood, |line| seen.push(line.len()));
            assert!(sink.carry.capacity() <= MAX_LINE_BYTES * 2);
        }
        sink.push(b"tail\nnext\n", |line| seen.push(line.len()));
        assert_eq!(seen, [4]);
    }

    proptest! {
        #[test]
        fn it_equals_splitting_the_whole(chunks in prop::collection::vec("[a\n\r]{0,6}", 0..12)) {
            let whole: String = chunks.concat();
            let mut expected: Vec<String> = whole.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned()).collect();
            expected.pop();
            let pieces: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes()).collect();
            prop_assert_eq!(lines(&pieces), expected);
        }
    }
}

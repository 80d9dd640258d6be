//! The data of server-sent events, out of a stream that may be cut anywhere.

/// Longest event that is kept.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Splits a stream into the data of its events. One `data` line an event, as engines send them.
#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
}

impl Events {
    /// Takes the next bytes and hands the data of every complete line to `on_data`. `false` if a line is too long.
    pub fn push(&mut self, bytes: &[u8], mut on_data: impl FnMut(&[u8])) -> bool {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                if let Some(data) = self.line.trim_ascii().strip_prefix(b"data:") {
                    on_data(data.trim_ascii_start());
                }
                self.line.clear();
            } else if self.line.len() > MAX_EVENT_BYTES {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_cut_at_every_byte_yields_the_same_events() {
        let stream = "data: {\"ä\":1}\r\n\r\n: comment\n\ndata:[DONE]\n\n".as_bytes();
        for cut in 0..=stream.len() {
            let mut found = Vec::new();
            let mut events = Events::default();
            for part in [&stream[..cut], &stream[cut..]] {
                assert!(events.push(part, |data| {
                    found.push(String::from_utf8_lossy(data).into_owned())
                }));
            }
            assert_eq!(found, ["{\"ä\":1}", "[DONE]"], "cut at {cut}");
        }
    }
}

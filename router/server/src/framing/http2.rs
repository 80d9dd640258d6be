//! HTTP/2 frames (RFC 9113, section 4.1), parsed only to detect unfinished header blocks.
//!
//! A header block may take any number of frames, with no other frames between them. h2 bounds its size; only a time
//! limit stops a client that never ends it.

const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

#[derive(Debug, Default)]
pub(super) struct Http2Frames {
    head: [u8; HEAD],
    known: usize,
    left: usize,
    begun: u64,
    /// Number of bytes of the unfinished header block, if there is one.
    block: Option<usize>,
    /// Whether the current frame ends a header block.
    ends_block: bool,
}

impl Http2Frames {
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.known < HEAD {
                let taken = bytes.len().min(HEAD - self.known);
                self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
                self.known += taken;
                bytes = &bytes[taken..];
                if self.known < HEAD {
                    return;
                }
                self.begin();
            }
            let taken = bytes.len().min(self.left);
            self.left -= taken;
            bytes = &bytes[taken..];
            if let Some(block) = &mut self.block {
                *block += taken;
            }
            if self.left == 0 {
                self.known = 0;
                if std::mem::take(&mut self.ends_block) {
                    self.block = None;
                }
            }
        }
    }

    fn begin(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == HEADERS {
            self.begun += 1;
            self.block = Some(0);
        }
        if matches!(kind, HEADERS | CONTINUATION) {
            self.ends_block = flags & END_HEADERS != 0;
        }
    }

    pub(super) fn unfinished_block(&self) -> usize {
        self.block.unwrap_or(0)
    }

    /// Returns the number of the unfinished header block, if there is one.
    pub(super) fn open_block(&self) -> Option<u64> {
        self.block.map(|_| self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1][..], payload].concat()
    }

    #[test]
    fn a_block_is_unfinished_until_the_last_byte_of_its_last_frame_however_it_is_cut() {
        let whole = [
            frame(4, 0, &[0; 6]),
            frame(HEADERS, END_HEADERS, &[1; 5]),
            frame(0, 0, &[2; 300]),
            frame(HEADERS, 0, &[3; 7]),
            frame(CONTINUATION, 0, &[]),
            frame(CONTINUATION, END_HEADERS, &[4; 2]),
        ];
        let ends: Vec<usize> = whole
            .iter()
            .scan(0, |end, frame| {
                *end += frame.len();
                Some(*end)
            })
            .collect();
        let bytes = whole.concat();
        for step in [1, 2, 8, 9, 10, bytes.len()] {
            let (mut frames, mut at) = (Http2Frames::default(), 0);
            for piece in bytes.chunks(step) {
                frames.read(piece);
                at += piece.len();
                let begun = u64::from(at >= ends[0] + HEAD) + u64::from(at >= ends[2] + HEAD);
                let is_open =
                    (ends[0] + HEAD..ends[1]).contains(&at) || (ends[2] + HEAD..ends[5]).contains(&at);
                let open = is_open.then_some(begun);
                assert_eq!(frames.open_block(), open, "{at} bytes, {step} at a time");
            }
            assert_eq!(frames.unfinished_block(), 0);
        }
    }

    #[test]
    fn an_unfinished_block_is_as_large_as_its_payloads() {
        let mut frames = Http2Frames::default();
        frames.read(&frame(HEADERS, 0, &[0; 100]));
        frames.read(&frame(CONTINUATION, 0, &[0; 50])[..HEAD + 20]);
        assert_eq!(frames.unfinished_block(), 120);
    }
}

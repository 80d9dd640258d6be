//! Walks a string in blocks and rewrites its escapes.

use super::block::{BYTES, Marks, escapes};
use super::escape::spell_escapes;
use super::{Malformed, Scanner};

impl Scanner<'_> {
    /// Scans blocks to the string's end. Only the escape of a block's first byte depends on the previous block.
    #[inline(always)]
    pub(super) fn walk_string(
        &mut self,
        run: &mut usize,
        out: &mut impl Out,
        marks: impl Fn(&[u8; BYTES]) -> Option<Marks>,
    ) -> Result<(), Malformed> {
        // 1 if the previous block ended with a backslash that escapes this block's first byte.
        let mut carried = 0;
        loop {
            let Some(found) = marks(&self.block()) else {
                // Plain, except for the letter of an escape that begins in the previous block.
                if std::mem::take(&mut carried) != 0 && !b"bfnrt".contains(&self.bytes[self.at]) {
                    self.respell(1, run, out)?;
                }
                self.at += BYTES;
                continue;
            };
            let escapes = escapes(found.backslashes & !carried);
            let escaped = escapes << 1 | carried;
            let end = (found.quotes & !escaped).trailing_zeros();
            let inside = if end == 64 { u64::MAX } else { (1 << end) - 1 };
            if found.controls & inside != 0 {
                return Err(self.control(found.controls.trailing_zeros() as usize));
            }
            let longer = escaped & inside & !(found.quotes | found.backslashes | found.letters);
            if longer != 0 {
                self.respell(longer, run, out)?;
            }
            if end < 64 {
                self.at += end as usize + 1;
                return Ok(());
            }
            carried = escapes >> 63;
            self.at += BYTES;
        }
    }

    /// Returns the next 64 bytes, padded with NUL, which counts as a control character.
    #[inline]
    fn block(&self) -> [u8; BYTES] {
        let rest = &self.bytes[self.at..];
        if let Some(bytes) = rest.first_chunk() {
            return *bytes;
        }
        let mut bytes = [0; BYTES];
        bytes[..rest.len()].copy_from_slice(rest);
        bytes
    }

    #[cold]
    fn control(&mut self, at: usize) -> Malformed {
        self.at = (self.at + at).min(self.bytes.len());
        self.wrong("control characters in strings must be escaped")
    }

    /// Rewrites the escapes that have these letters, and those that follow, even from later blocks.
    #[inline]
    fn respell(&mut self, mut letters: u64, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        loop {
            letters &= from_bit(run.saturating_sub(self.at));
            if letters == 0 {
                return Ok(());
            }
            let mut at = self.at + letters.trailing_zeros() as usize;
            flush(self.bytes, *run, at - 1, out);
            let mut room = [0; BYTES];
            let length =
                spell_escapes(self.bytes, &mut at, &mut room).map_err(|what| Malformed { at, what })?;
            out.short(&room, length);
            *run = at;
        }
    }
}

#[inline]
fn from_bit(bit: usize) -> u64 {
    if bit < 64 { u64::MAX << bit } else { 0 }
}

/// Receiver of canonical bytes.
pub trait Out {
    /// Receives the next bytes.
    fn bytes(&mut self, bytes: &[u8]);

    /// Receives the first `length` bytes of a window.
    #[inline]
    fn short<const N: usize>(&mut self, window: &[u8; N], length: usize) {
        self.bytes(&window[..length]);
    }
}

impl<F: FnMut(&[u8])> Out for F {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self(bytes);
    }
}

#[inline]
pub(super) fn flush(bytes: &[u8], run: usize, end: usize, out: &mut impl Out) {
    if run >= end {
        return;
    }
    if let Some(window) = bytes[run..].first_chunk::<BYTES>()
        && end - run <= BYTES
    {
        out.short(window, end - run);
    } else {
        out.bytes(&bytes[run..end]);
    }
}

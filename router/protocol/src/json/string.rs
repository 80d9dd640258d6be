//! Scans strings and emits their canonical spelling.

use std::borrow::Cow;

use super::block::{BYTES, First, Marks, escapes, first_special, marks};
use super::escape::{decoded, spell_escapes};
use super::{Malformed, Scanner};

/// The inside of a string, as spelled in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted<'a> {
    inside: &'a [u8],
    has_escapes: bool,
}

impl<'a> Quoted<'a> {
    /// Returns the decoded text.
    #[must_use]
    pub fn text(self) -> Cow<'a, str> {
        decoded(self.inside)
    }

    /// Returns the canonical bytes if the string has no escapes.
    #[inline]
    #[must_use]
    pub fn plain(self) -> Option<&'a [u8]> {
        (!self.has_escapes).then_some(self.inside)
    }

    /// Returns the decoded text as UTF-8 bytes.
    #[inline]
    #[must_use]
    pub fn decoded(self) -> Cow<'a, [u8]> {
        if !self.has_escapes {
            return Cow::Borrowed(self.inside);
        }
        match self.text() {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }
}

impl<'a> Scanner<'a> {
    /// Consumes a string and emits its canonical bytes in pieces. A lone surrogate becomes U+FFFD.
    pub fn string(&mut self, out: &mut impl Out) -> Result<(), Malformed> {
        self.expect(b'"', "expected a string")?;
        let mut run = self.at;
        self.rest_of_string(&mut run, out)?;
        flush(self.bytes, run, self.at - 1, out);
        Ok(())
    }

    /// Consumes a string and returns it as spelled.
    #[inline]
    pub fn quoted(&mut self) -> Result<Quoted<'a>, Malformed> {
        self.expect(b'"', "expected a string")?;
        self.rest_of_quoted()
    }

    #[inline]
    pub(super) fn rest_of_quoted(&mut self) -> Result<Quoted<'a>, Malformed> {
        let start = self.at;
        if let Some(end) = self.short_string() {
            self.at = end + 1;
            return Ok(Quoted {
                inside: &self.bytes[start..end],
                has_escapes: false,
            });
        }
        self.long_string(&mut start.clone(), &mut Nothing)?;
        let inside = &self.bytes[start..self.at - 1];
        let has_escapes = memchr::memchr(b'\\', inside).is_some();
        Ok(Quoted { inside, has_escapes })
    }

    /// Returns the end of a plain string shorter than 32 bytes: keys, names, ids.
    #[inline]
    fn short_string(&self) -> Option<usize> {
        let (heads, _) = self.bytes.get(self.at..)?.as_chunks::<16>();
        for (number, head) in heads.iter().take(2).enumerate() {
            match first_special(head) {
                First::None => {}
                First::Quote(end) => return Some(self.at + 16 * number + end),
                First::Other => return None,
            }
        }
        None
    }

    /// Consumes the rest of a string. Canonical bytes from `run` to the scanner's position are pending; they are
    /// emitted only when an escape is rewritten.
    #[inline]
    pub(super) fn rest_of_string(&mut self, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        if let Some(end) = self.short_string() {
            self.at = end + 1;
            return Ok(());
        }
        self.long_string(run, out)
    }

    pub(super) fn long_string(&mut self, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        #[cfg(target_arch = "x86_64")]
        if let Some(done) = super::block::wider::walk_string(self, run, out) {
            return done;
        }
        self.walk_string(run, out, marks)
    }

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

/// Receives canonical bytes.
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

pub(super) struct Nothing;

impl Out for Nothing {
    #[inline]
    fn bytes(&mut self, _: &[u8]) {}
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

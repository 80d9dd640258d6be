//! Strings: found to their end, checked, and handed on in their shortest spelling.

use std::borrow::Cow;

use policy::fingerprint::spell;

use super::block::{BYTES, Block, escapes, first_special};
use super::escape::{decoded, escape};
use super::{Malformed, Scanner};

/// A string as it lies in the text, without its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted<'a> {
    inside: &'a [u8],
    has_escapes: bool,
}

impl<'a> Quoted<'a> {
    /// What it says.
    #[must_use]
    pub fn text(self) -> Cow<'a, str> {
        decoded(self.inside)
    }

    /// What it says, in UTF-8.
    #[inline]
    pub(super) fn decoded(self) -> Cow<'a, [u8]> {
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
    /// Passes over a string, which begins here, and hands on its canonical bytes in pieces.
    ///
    /// # Errors
    /// If it is not a JSON string. A lone surrogate is taken for U+FFFD.
    pub fn string(&mut self, out: &mut impl Out) -> Result<(), Malformed> {
        self.expect(b'"', "expected a string")?;
        let mut run = self.at;
        self.rest_of_string(&mut run, out)?;
        flush(self.bytes, run, self.at - 1, out);
        Ok(())
    }

    /// Passes over a string, which begins here, and returns it as it lies.
    ///
    /// # Errors
    /// If it is not a JSON string.
    #[inline]
    pub fn quoted(&mut self) -> Result<Quoted<'a>, Malformed> {
        self.expect(b'"', "expected a string")?;
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

    /// Where the string's end is, if it has fewer than sixteen bytes, all plain.
    #[inline]
    fn short_string(&self) -> Option<usize> {
        let head = self.bytes.get(self.at..)?.first_chunk()?;
        let end = first_special(head);
        (end < 16 && head[end] == b'"').then_some(self.at + end)
    }

    /// Passes over the rest of a string, from behind its opening quote. What is canonical and not yet handed on begins
    /// at `run` and goes on to where the scanner then is; only where an escape is written anew, is anything handed on.
    #[inline]
    pub(super) fn rest_of_string(&mut self, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        if let Some(end) = self.short_string() {
            self.at = end + 1;
            return Ok(());
        }
        self.long_string(run, out)
    }

    fn long_string(&mut self, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        loop {
            let block = self.block();
            if block.is_plain() {
                self.at += BYTES;
                continue;
            }
            let (quote, backslash) = (block.quotes(), block.backslashes());
            let escapes = escapes(backslash);
            let escaped = escapes << 1;
            let end = (quote & !escaped).trailing_zeros();
            let inside = if end == 64 { u64::MAX } else { (1 << end) - 1 };
            if block.has_control() && block.controls() & inside != 0 {
                return Err(self.control(block.controls().trailing_zeros() as usize));
            }
            if escaped & inside != 0 {
                let longer = escaped & inside & !(quote | backslash | block.letters());
                self.respell(longer, run, out)?;
            }
            if end < 64 {
                self.at += end as usize + 1;
                return Ok(());
            }
            // An escape that begins with the last byte is left to the next block; one may also reach into it.
            self.at = (self.at + BYTES - (escapes >> 63) as usize).max(*run);
        }
    }

    /// The next 64 bytes; what is missing at the end reads as control characters.
    #[inline]
    fn block(&self) -> Block {
        let rest = &self.bytes[self.at..];
        if let Some(bytes) = rest.first_chunk() {
            return Block::load(bytes);
        }
        let mut bytes = [0; BYTES];
        bytes[..rest.len()].copy_from_slice(rest);
        Block::load(&bytes)
    }

    #[cold]
    fn control(&mut self, at: usize) -> Malformed {
        self.at = (self.at + at).min(self.bytes.len());
        self.wrong("control characters in strings must be escaped")
    }

    /// Writes those escapes of the block anew whose letters are these.
    #[inline]
    fn respell(&mut self, mut letters: u64, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        while letters != 0 {
            let mut at = self.at + letters.trailing_zeros() as usize;
            letters &= letters - 1;
            // The second half of a pair was taken with the first.
            if at > *run {
                flush(self.bytes, *run, at - 1, out);
                let character = escape(self.bytes, &mut at).map_err(|what| Malformed { at, what })?;
                let mut room = [0; 8];
                let length = spell(character, &mut room);
                out.short(&room, length);
                *run = at;
            }
        }
        Ok(())
    }
}

/// Takes canonical bytes.
pub trait Out {
    /// The next bytes.
    fn bytes(&mut self, bytes: &[u8]);

    /// The next few bytes: the first `length` of a window.
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

/// Takes nothing: for what is only passed over.
pub(super) struct Nothing;

impl Out for Nothing {
    #[inline]
    fn bytes(&mut self, _: &[u8]) {}
}

/// Hands on what lies between two places.
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

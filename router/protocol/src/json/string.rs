//! Scans strings and emits their canonical spelling.

use std::borrow::Cow;

use super::block::{FirstSpecial, first_special, marks};
use super::escape::decoded;
use super::walk::{Out, flush};
use super::{Malformed, Scanner};

/// The inside of a string, as spelled in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted<'a> {
    inside: &'a [u8],
    has_escapes: bool,
}

impl<'a> Quoted<'a> {
    /// Returns the decoded text.
    pub fn text(self) -> Cow<'a, str> {
        decoded(self.inside)
    }

    /// Returns the canonical bytes if the string has no escapes.
    #[inline]
    pub fn plain(self) -> Option<&'a [u8]> {
        (!self.has_escapes).then_some(self.inside)
    }

    /// Returns the decoded text as UTF-8 bytes.
    #[inline]
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
                FirstSpecial::None => {}
                FirstSpecial::Quote(end) => return Some(self.at + 16 * number + end),
                FirstSpecial::Other => return None,
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
}

pub(super) struct Nothing;

impl Out for Nothing {
    #[inline]
    fn bytes(&mut self, _: &[u8]) {}
}

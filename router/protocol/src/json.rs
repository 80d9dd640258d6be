//! A JSON scanner that validates without building anything.
//!
//! The router needs a few small fields of a body and a hash over its large strings. So nothing is turned into values:
//! a [`Scanner`] checks the grammar (RFC 8259) as it goes, and hands on strings as they lie in the body. Strings are most
//! of a body, and are looked through [64 bytes at a time](block), where a block begins never waiting for what the one before
//! it holds. Nesting costs one bit a level and is bounded.
//!
//! What is handed on is *canonical*: a string in its shortest spelling ([`policy::fingerprint::spell`]), a value without
//! insignificant white space. Nearly all strings are written that way already, escapes included, so the bytes go on
//! where they lie; only an escape that a shorter spelling exists for (`\u00e9`, `\/`) is written anew.
//!
//! Rejected: decoding strings (a copy, and two calls for each escape: three times slower on code), and an index of the
//! whole body's quotes and brackets before the walk (as simdjson does), which would have to be stored and read again.

mod block;
mod escape;
mod string;
mod value;

pub use string::{Out, Quoted};

/// Where and why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Offset in bytes.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl Malformed {
    /// The error as a person would look for it: by line and column, both from 1.
    #[must_use]
    pub fn describe(&self, text: &[u8]) -> String {
        let before = &text[..self.at.min(text.len())];
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        let column = before.len() - memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1) + 1;
        format!("{} at line {line} column {column}", self.what)
    }
}

/// Reads JSON from the front of a byte string that is known to be UTF-8.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// A scanner at the start of a text.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Where it is.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// What was passed since an earlier [`Self::position`].
    #[must_use]
    pub fn since(&self, position: usize) -> &'a [u8] {
        self.bytes.get(position..self.at).unwrap_or_default()
    }

    /// The next byte that is no white space, without taking it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                next => return next.copied(),
            }
        }
    }

    /// Takes the next byte if it is this one.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Malformed> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(self.wrong(what))
        }
    }

    #[cold]
    fn wrong(&self, what: &'static str) -> Malformed {
        let what = if self.at >= self.bytes.len() {
            "the text ends too early"
        } else {
            what
        };
        Malformed { at: self.at, what }
    }

    /// Walks the members of an object; `member` is given each key and must pass over the value. Anything but an object
    /// is passed over.
    ///
    /// # Errors
    /// If it is not JSON.
    #[inline]
    pub fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &[u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if !self.take(b'{') {
            return self.skip().map(drop);
        }
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            member(self, &key.decoded())?;
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',', "expected `,` or `}`")?;
        }
    }

    /// Walks the elements of an array; `element` must pass over each. Anything but an array is passed over.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if !self.take(b'[') {
            return self.skip().map(drop);
        }
        if self.take(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if self.take(b']') {
                return Ok(());
            }
            self.expect(b',', "expected `,` or `]`")?;
        }
    }

    /// A member's value further on in the object that begins here: a scanner that stands before it. The first of that
    /// name, if all before it is JSON; this scanner stays where it is.
    #[must_use]
    pub fn ahead(&self, name: &[u8]) -> Option<Self> {
        let mut scanner = self.clone();
        if !scanner.take(b'{') {
            return None;
        }
        while let Ok(key) = scanner.key() {
            if *key.decoded() == *name {
                scanner.peek();
                return Some(scanner);
            }
            scanner.skip().ok()?;
            scanner.take(b',');
        }
        None
    }

    #[inline]
    fn key(&mut self) -> Result<Quoted<'a>, Malformed> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("expected a key in quotes"));
        }
        self.at += 1;
        let key = self.rest_of_quoted()?;
        self.expect(b':', "expected `:`")?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests;

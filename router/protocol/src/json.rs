//! A validating JSON scanner that builds no values.
//!
//! A [`Scanner`] checks the grammar (RFC 8259) and emits strings as slices of the body. It scans them in [blocks of 64
//! bytes](block). Nesting is bounded and costs one bit per level.
//!
//! Emitted bytes are *canonical*: strings in their shortest spelling ([`policy::fingerprint::spell`]), values without
//! insignificant white space. Only escapes with a shorter spelling (`\u00e9`, `\/`) are rewritten.
//!
//! Rejected: decoding strings (three times slower on code), and a prior index of all quotes and brackets (as in
//! simdjson), which must be stored and read again.

mod block;
mod escape;
mod string;
mod value;
mod walk;

pub use string::Quoted;
pub use walk::Out;

/// Position and reason of a syntax error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Offset in bytes.
    pub at: usize,
    /// Description of the error.
    pub what: &'static str,
}

impl Malformed {
    /// Formats the error with line and column, both counted from 1.
    pub fn describe(&self, text: &[u8]) -> String {
        let before = &text[..self.at.min(text.len())];
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        let column = before.len() - memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1) + 1;
        format!("{} at line {line} column {column}", self.what)
    }
}

/// Scanner of JSON in a byte string that is known to be UTF-8. Methods fail with [`Malformed`] if it is not JSON.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// Creates a scanner at the start of a text.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the bytes from an earlier [`Self::position`] to the current one.
    pub fn since(&self, position: usize) -> &'a [u8] {
        self.bytes.get(position..self.at).unwrap_or_default()
    }

    /// Skips white space and returns the next byte without consuming it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                next => return next.copied(),
            }
        }
    }

    /// Skips white space, and consumes the next byte if it equals `byte`. Returns whether it does.
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

    /// Walks an object's members. `member` receives each key and must consume the value. Skips any other value.
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

    /// Walks an array's elements; `element` must consume each. Skips any other value.
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

    /// Returns a scanner before the first value of `name` in the object that begins here; `None` if there is none.
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

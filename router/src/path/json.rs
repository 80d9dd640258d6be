//! A JSON scanner that validates without building anything.
//!
//! The router needs a few small fields of a body and a hash over its large strings. So nothing is turned into values:
//! [`Scanner::skip`] checks a value's grammar (RFC 8259) and returns the span where it lies, and strings are decoded in
//! pieces that are handed on where they lie, escapes aside. Strings are most of a body, and are passed over with
//! vectorised searches. Nesting costs one bit a level and is bounded.

use std::borrow::Cow;

use memchr::memchr2;

/// Deepest nesting that is taken. Engines stop far earlier.
const MAX_DEPTH: usize = 512;

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
    /// The text was checked before: control characters need not be looked for again.
    checked: bool,
}

impl<'a> Scanner<'a> {
    /// A scanner at the start of a text.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            checked: false,
        }
    }

    /// A scanner over a value that another one has passed over.
    #[must_use]
    pub fn again(value: &'a [u8]) -> Self {
        Self {
            bytes: value,
            at: 0,
            checked: true,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// The next byte that is no white space, without taking it.
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    /// Takes the next byte if it is this one.
    pub fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Malformed> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(self.wrong(what))
        }
    }

    fn wrong(&self, what: &'static str) -> Malformed {
        let what = if self.at >= self.bytes.len() {
            "the text ends too early"
        } else {
            what
        };
        Malformed { at: self.at, what }
    }

    /// Passes over one value and returns its span.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn skip(&mut self) -> Result<&'a [u8], Malformed> {
        let mut open = Nesting::default();
        self.peek();
        let start = self.at;
        loop {
            match self.peek() {
                Some(b'"') => self.skip_string()?,
                Some(b'{') => {
                    open.push(true).map_err(|what| self.wrong(what))?;
                    self.at += 1;
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    open.push(false).map_err(|what| self.wrong(what))?;
                    self.at += 1;
                    if self.peek() != Some(b']') {
                        continue;
                    }
                }
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.wrong("expected a value")),
            }
            if self.close(&mut open)? {
                return Ok(&self.bytes[start..self.at]);
            }
        }
    }

    /// Walks the members of an object; `member` is given each key and must pass over the value. Anything but an object
    /// is passed over.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.peek() != Some(b'{') {
            return self.skip().map(drop);
        }
        self.at += 1;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.peek();
            let start = self.at;
            self.key()?;
            let colon = self.at;
            let quoted = self.bytes[start..colon - 1].trim_ascii_end();
            member(self, text(quoted).unwrap_or_default())?;
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
        if self.peek() != Some(b'[') {
            return self.skip().map(drop);
        }
        self.at += 1;
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

    /// After a value: closes what ends here. Returns whether the outermost value is complete; else a value follows.
    fn close(&mut self, open: &mut Nesting) -> Result<bool, Malformed> {
        loop {
            let Some(in_object) = open.top() else {
                return Ok(true);
            };
            match (self.peek(), in_object) {
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    open.pop();
                }
                (Some(b','), true) => {
                    self.at += 1;
                    self.key()?;
                    return Ok(false);
                }
                (Some(b','), false) => {
                    self.at += 1;
                    return Ok(false);
                }
                (_, true) => return Err(self.wrong("expected `,` or `}`")),
                (_, false) => return Err(self.wrong("expected `,` or `]`")),
            }
        }
    }

    fn key(&mut self) -> Result<(), Malformed> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("expected a key in quotes"));
        }
        self.skip_string()?;
        self.expect(b':', "expected `:`")
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<(), Malformed> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.wrong("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Malformed> {
        self.at += usize::from(self.bytes[self.at] == b'-');
        match self.bytes.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.wrong("expected a digit")),
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start {
            Err(self.wrong("expected a digit"))
        } else {
            Ok(())
        }
    }

    fn skip_string(&mut self) -> Result<(), Malformed> {
        self.string(|_| ())
    }

    /// Passes over a string, which begins here, and hands on its decoded bytes in pieces.
    ///
    /// # Errors
    /// If it is not a JSON string. A lone surrogate decodes to U+FFFD.
    pub fn string(&mut self, mut piece: impl FnMut(&[u8])) -> Result<(), Malformed> {
        self.expect(b'"', "expected a string")?;
        loop {
            let rest = &self.bytes[self.at..];
            let Some(end) = memchr2(b'"', b'\\', rest) else {
                self.at = self.bytes.len();
                return Err(self.wrong("the string does not end"));
            };
            if !self.checked
                && let Some(control) = control(&rest[..end])
            {
                self.at += control;
                return Err(self.wrong("control characters in strings must be escaped"));
            }
            if end > 0 {
                piece(&rest[..end]);
            }
            self.at += end + 1;
            if rest[end] == b'"' {
                return Ok(());
            }
            self.escape(&mut piece)?;
        }
    }

    fn escape(&mut self, piece: &mut impl FnMut(&[u8])) -> Result<(), Malformed> {
        let Some(&letter) = self.bytes.get(self.at) else {
            return Err(self.wrong("the escape does not end"));
        };
        self.at += 1;
        let byte = match letter {
            b'"' | b'\\' | b'/' => letter,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let decoded = self.unicode()?;
                piece(decoded.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => {
                self.at -= 1;
                return Err(self.wrong("no such escape"));
            }
        };
        piece(&[byte]);
        Ok(())
    }

    fn unicode(&mut self) -> Result<char, Malformed> {
        let unit = self.hex()?;
        if !(0xD800..0xDC00).contains(&unit) {
            return Ok(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        // The first half of a pair: the second must follow, else the half stands alone.
        if !self.bytes[self.at..].starts_with(b"\\u") {
            return Ok(char::REPLACEMENT_CHARACTER);
        }
        let back = self.at;
        self.at += 2;
        let low = self.hex()?;
        if !(0xDC00..0xE000).contains(&low) {
            self.at = back;
            return Ok(char::REPLACEMENT_CHARACTER);
        }
        let pair = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        Ok(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self) -> Result<u32, Malformed> {
        let digits = self
            .bytes
            .get(self.at..self.at + 4)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let unit = digits
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.wrong("expected four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }
}

/// The first control character of a text. Checked as a whole first, which is what compilers vectorise.
fn control(text: &[u8]) -> Option<usize> {
    let any = text.iter().fold(false, |any, &byte| any | (byte < 0x20));
    if any {
        text.iter().position(|&byte| byte < 0x20)
    } else {
        None
    }
}

/// The open brackets, one bit each: whether it is an object.
#[derive(Default)]
struct Nesting {
    depth: usize,
    objects: [u64; MAX_DEPTH / 64],
}

impl Nesting {
    fn push(&mut self, object: bool) -> Result<(), &'static str> {
        if self.depth == MAX_DEPTH {
            return Err("nested too deeply");
        }
        let (word, bit) = (self.depth / 64, self.depth % 64);
        self.objects[word] = self.objects[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) {
        self.depth -= 1;
    }

    fn top(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.objects[last / 64] >> (last % 64) & 1 == 1)
    }
}

/// The members of an object, which must be a valid JSON value: each key, decoded, with the span of its value.
/// Anything but an object has none.
pub fn members<'a>(value: &'a [u8]) -> impl Iterator<Item = (Cow<'a, str>, &'a [u8])> {
    let mut scanner = Scanner::again(value);
    let mut more = scanner.take(b'{') && scanner.peek() != Some(b'}');
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let key = text(scanner.skip().ok()?)?;
        scanner.take(b':');
        let value = scanner.skip().ok()?;
        more = scanner.take(b',');
        Some((key, value))
    })
}

/// The elements of an array, which must be a valid JSON value. Anything but an array has none.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut scanner = Scanner::again(value);
    let mut more = scanner.take(b'[') && scanner.peek() != Some(b']');
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let element = scanner.skip().ok()?;
        more = scanner.take(b',');
        Some(element)
    })
}

/// A string value, decoded; borrowed where it has no escapes.
#[must_use]
pub fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    let mut decoded = Vec::with_capacity(inner.len());
    Scanner::new(value)
        .string(|piece| decoded.extend_from_slice(piece))
        .ok()?;
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

/// Hands on a valid JSON value without insignificant white space and with its strings decoded.
pub fn compact(value: &[u8], mut piece: impl FnMut(&[u8])) {
    let mut scanner = Scanner::again(value);
    while let Some(byte) = scanner.peek() {
        if byte == b'"' {
            piece(b"\"");
            if scanner.string(&mut piece).is_err() {
                return;
            }
            piece(b"\"");
        } else {
            piece(&[byte]);
            scanner.at += 1;
        }
    }
}

#[cfg(test)]
mod tests;

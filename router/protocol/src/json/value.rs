//! Skips whole values, or emits them without insignificant white space.

use super::string::Nothing;
use super::walk::{Out, flush};
use super::{Malformed, Scanner};

/// Maximum nesting depth; a deeper value is malformed.
pub(super) const MAX_DEPTH: usize = 512;

impl<'a> Scanner<'a> {
    /// Skips one value and returns its span.
    pub fn skip(&mut self) -> Result<&'a [u8], Malformed> {
        self.peek();
        let start = self.at;
        if self.bytes.get(start) == Some(&b'"') {
            self.at += 1;
            self.rest_of_string(&mut start.clone(), &mut Nothing)?;
        } else {
            self.value(&mut start.clone(), &mut Nothing)?;
        }
        Ok(&self.bytes[start..self.at])
    }

    /// Consumes one value and emits its canonical form in pieces.
    pub fn compact(&mut self, out: &mut impl Out) -> Result<(), Malformed> {
        self.peek();
        let mut run = self.at;
        self.value(&mut run, out)?;
        flush(self.bytes, run, self.at, out);
        Ok(())
    }

    /// Consumes one value. Canonical bytes from `run` to the scanner's position are pending.
    fn value(&mut self, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        let mut open = Nesting::default();
        loop {
            match self.next(run, out) {
                Some(b'"') => {
                    self.at += 1;
                    self.rest_of_string(run, out)?;
                }
                Some(b'{') => {
                    open.push(true).map_err(|what| self.wrong(what))?;
                    self.at += 1;
                    if self.next(run, out) != Some(b'}') {
                        self.member(run, out)?;
                        continue;
                    }
                }
                Some(b'[') => {
                    open.push(false).map_err(|what| self.wrong(what))?;
                    self.at += 1;
                    if self.next(run, out) != Some(b']') {
                        continue;
                    }
                }
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.wrong("expected a value")),
            }
            if self.close(&mut open, run, out)? {
                return Ok(());
            }
        }
    }

    /// Closes the containers that end after a value. Returns whether the outermost value is complete.
    fn close(&mut self, open: &mut Nesting, run: &mut usize, out: &mut impl Out) -> Result<bool, Malformed> {
        loop {
            // White space after the outermost value is not part of it.
            let Some(in_object) = open.top() else {
                return Ok(true);
            };
            match (self.next(run, out), in_object) {
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    open.pop();
                }
                (Some(b','), true) => {
                    self.at += 1;
                    self.next(run, out);
                    self.member(run, out)?;
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

    fn member(&mut self, run: &mut usize, out: &mut impl Out) -> Result<(), Malformed> {
        self.expect(b'"', "expected a key in quotes")?;
        self.rest_of_string(run, out)?;
        self.next(run, out);
        self.expect(b':', "expected `:`")
    }

    /// Works like [`Scanner::peek`], and flushes the pending bytes before white space.
    #[inline]
    fn next(&mut self, run: &mut usize, out: &mut impl Out) -> Option<u8> {
        let before = self.at;
        let next = self.peek();
        if self.at > before {
            flush(self.bytes, *run, before, out);
            *run = self.at;
        }
        next
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

    /// Consumes a token id: an integer of 32 bits without fraction or exponent. Leaves anything else.
    pub fn id(&mut self) -> Option<u32> {
        self.peek();
        let rest = &self.bytes[self.at..];
        let mut digits = rest.iter().map_while(|byte| char::from(*byte).to_digit(10));
        let first = digits.next()?;
        let (mut id, mut length) = (first, 1);
        for digit in digits {
            id = id.checked_mul(10)?.checked_add(digit)?;
            length += 1;
        }
        let is_whole = !matches!(rest.get(length), Some(b'.' | b'e' | b'E')) && (first > 0 || length == 1);
        if !is_whole {
            return None;
        }
        self.at += length;
        Some(id)
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
}

/// Open brackets, one bit each: set for objects.
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

//! A msgpack reader that borrows, does not allocate and does not recurse.

use super::WireError;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Nil.
    Nil,
    /// A boolean.
    Bool,
    /// An integer of any width.
    Integer,
    /// A floating-point number.
    Float,
    /// A string.
    String,
    /// A byte string.
    Bytes,
    /// An array.
    Array,
    /// A map.
    Map,
    /// An extension, or a byte that begins no value.
    Other,
}

/// Reads values one after another.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the offset of the next value.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns the number of unread bytes.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the next value's type.
    pub(super) fn peek(&self) -> Result<Type, WireError> {
        let marker = self.bytes.get(self.at).ok_or(WireError::Short(self.at))?;
        Ok(match marker {
            0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => Type::Integer,
            0x80..=0x8f | 0xde | 0xdf => Type::Map,
            0x90..=0x9f | 0xdc | 0xdd => Type::Array,
            0xa0..=0xbf | 0xd9..=0xdb => Type::String,
            0xc0 => Type::Nil,
            0xc2 | 0xc3 => Type::Bool,
            0xc4..=0xc6 => Type::Bytes,
            0xca | 0xcb => Type::Float,
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => Type::Other,
        })
    }

    /// Reads a nil. Returns false, reading nothing, if the next value is another one.
    pub(super) fn nil(&mut self) -> Result<bool, WireError> {
        let is_nil = self.peek()? == Type::Nil;
        self.at += usize::from(is_nil);
        Ok(is_nil)
    }

    /// Reads an integer, signed or unsigned.
    pub(super) fn integer(&mut self, field: &'static str) -> Result<i128, WireError> {
        self.expect(Type::Integer, field)?;
        let marker = self.byte()?;
        Ok(match marker {
            0xcc..=0xcf => self.big_endian(1 << (marker - 0xcc))?.into(),
            0xd0 => i128::from(self.big_endian(1)? as i8),
            0xd1 => i128::from(self.big_endian(2)? as i16),
            0xd2 => i128::from(self.big_endian(4)? as i32),
            0xd3 => i128::from(self.big_endian(8)? as i64),
            small => i128::from(small as i8),
        })
    }

    /// Reads the next value as a number; `None` if it is not one.
    pub(super) fn number(&mut self) -> Result<Option<f64>, WireError> {
        match self.peek()? {
            Type::Integer => Ok(Some(self.integer("")? as f64)),
            Type::Float => match self.byte()? {
                0xca => Ok(Some(f32::from_bits(self.length(4)?).into())),
                _ => Ok(Some(f64::from_bits(self.big_endian(8)?))),
            },
            _ => self.skip().map(|()| None),
        }
    }

    /// Reads an array's length.
    pub(super) fn array(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.expect(Type::Array, field)?;
        let marker = self.byte()?;
        match marker {
            0xdc => self.length(2),
            0xdd => self.length(4),
            small => Ok(u32::from(small & 0x0f)),
        }
    }

    /// Reads a map's length in pairs.
    pub(super) fn map(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.expect(Type::Map, field)?;
        let marker = self.byte()?;
        match marker {
            0xde => self.length(2),
            0xdf => self.length(4),
            small => Ok(u32::from(small & 0x0f)),
        }
    }

    /// Reads a string's bytes.
    pub(super) fn string(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        self.expect(Type::String, field)?;
        let marker = self.byte()?;
        let length = match marker {
            0xd9..=0xdb => self.length(1 << (marker - 0xd9))?,
            small => u32::from(small & 0x1f),
        };
        self.take(length as usize)
    }

    /// Reads a byte string.
    pub(super) fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        self.expect(Type::Bytes, field)?;
        let marker = self.byte()?;
        let length = self.length(1 << (marker.wrapping_sub(0xc4) & 3))?;
        self.take(length as usize)
    }

    /// Skips the next value at any depth. Each value takes at least one byte, so the count of values still to skip
    /// stays bounded by the remaining bytes.
    pub(super) fn skip(&mut self) -> Result<(), WireError> {
        let mut values: u64 = 1;
        while values > 0 {
            values -= 1;
            match self.peek()? {
                Type::Array => values += u64::from(self.array("")?),
                Type::Map => values += 2 * u64::from(self.map("")?),
                Type::String => drop(self.string("")?),
                Type::Bytes => drop(self.bytes("")?),
                _ => self.skip_scalar()?,
            }
        }
        Ok(())
    }

    fn skip_scalar(&mut self) -> Result<(), WireError> {
        let at = self.at;
        let length = match self.byte()? {
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 => 2,
            0xca | 0xce | 0xd2 => 4,
            0xcb | 0xcf | 0xd3 => 8,
            marker @ 0xd4..=0xd8 => 1 + (1 << (marker - 0xd4)),
            marker @ 0xc7..=0xc9 => 1 + self.length(1 << (marker - 0xc7))? as usize,
            0xc1 => {
                return Err(WireError::Type {
                    field: "value",
                    found: Type::Other,
                    at,
                });
            }
            _ => 0,
        };
        self.take(length).map(drop)
    }

    fn expect(&self, wanted: Type, field: &'static str) -> Result<(), WireError> {
        let found = self.peek()?;
        if found == wanted {
            return Ok(());
        }
        Err(WireError::Type {
            field,
            found,
            at: self.at,
        })
    }

    fn byte(&mut self) -> Result<u8, WireError> {
        let byte = self.bytes.get(self.at).ok_or(WireError::Short(self.at))?;
        self.at += 1;
        Ok(*byte)
    }

    fn length(&mut self, width: usize) -> Result<u32, WireError> {
        Ok(self.big_endian(width)? as u32)
    }

    fn big_endian(&mut self, width: usize) -> Result<u64, WireError> {
        let bytes = self.take(width)?;
        Ok(bytes
            .iter()
            .fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(length).ok_or(WireError::Short(self.at))?;
        let taken = self.bytes.get(self.at..end).ok_or(WireError::Short(self.at))?;
        self.at = end;
        Ok(taken)
    }
}

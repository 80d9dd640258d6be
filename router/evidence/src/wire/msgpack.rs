//! A msgpack reader that borrows, does not allocate and does not recurse. `rmp` reads each marker and number; its
//! `MessageLen`, which could skip a value, panics on extensions.

use rmp::Marker;
use rmp::decode::bytes::BytesReadError;
use rmp::decode::{self, Bytes, NumValueReadError};

use super::BatchError;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Nil,
    Bool,
    /// An integer of any width.
    Integer,
    Float,
    String,
    /// A byte string.
    Bytes,
    Array,
    Map,
    /// An extension, or a byte that begins no value.
    Other,
}

impl From<Marker> for Type {
    fn from(marker: Marker) -> Self {
        use Marker as M;
        match marker {
            M::Null => Self::Nil,
            M::False | M::True => Self::Bool,
            M::FixPos(_) | M::FixNeg(_) => Self::Integer,
            M::U8 | M::U16 | M::U32 | M::U64 | M::I8 | M::I16 | M::I32 | M::I64 => Self::Integer,
            M::F32 | M::F64 => Self::Float,
            M::FixStr(_) | M::Str8 | M::Str16 | M::Str32 => Self::String,
            M::Bin8 | M::Bin16 | M::Bin32 => Self::Bytes,
            M::FixArray(_) | M::Array16 | M::Array32 => Self::Array,
            M::FixMap(_) | M::Map16 | M::Map32 => Self::Map,
            _ => Self::Other,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            length: bytes.len(),
        }
    }

    pub(super) fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn peek(&self) -> Result<Type, BatchError> {
        let marker = self.rest.first().ok_or(BatchError::Short(self.at()))?;
        Ok(Marker::from_u8(*marker).into())
    }

    /// Reads a nil. Returns false and reads nothing if the next value is another one.
    pub(super) fn nil(&mut self) -> Result<bool, BatchError> {
        let is_nil = self.peek()? == Type::Nil;
        self.take(usize::from(is_nil))?;
        Ok(is_nil)
    }

    pub(super) fn integer(&mut self, field: &'static str) -> Result<i128, BatchError> {
        self.read(field, decode::read_int)
    }

    /// Reads the next value as a number; `None` if it is not one.
    pub(super) fn number(&mut self) -> Result<Option<f64>, BatchError> {
        match self.peek()? {
            Type::Integer => Ok(Some(self.integer("")? as f64)),
            Type::Float => self.float().map(Some),
            _ => self.skip().map(|()| None),
        }
    }

    pub(super) fn array(&mut self, field: &'static str) -> Result<u32, BatchError> {
        self.read(field, decode::read_array_len)
    }

    /// Reads a map's length in pairs.
    pub(super) fn map(&mut self, field: &'static str) -> Result<u32, BatchError> {
        self.read(field, decode::read_map_len)
    }

    pub(super) fn string(&mut self, field: &'static str) -> Result<&'a [u8], BatchError> {
        let length = self.read(field, decode::read_str_len)?;
        self.take(length as usize)
    }

    pub(super) fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], BatchError> {
        let length = self.read(field, decode::read_bin_len)?;
        self.take(length as usize)
    }

    /// Skips the next value at any depth. The remaining bytes bound the count of values still to skip.
    pub(super) fn skip(&mut self) -> Result<(), BatchError> {
        let mut values: u64 = 1;
        while values > 0 {
            values -= 1;
            match self.peek()? {
                Type::Nil | Type::Bool => drop(self.take(1)?),
                Type::Integer => drop(self.integer("")?),
                Type::Float => drop(self.float()?),
                Type::String => drop(self.string("")?),
                Type::Bytes => drop(self.bytes("")?),
                Type::Array => values += u64::from(self.array("")?),
                Type::Map => values += 2 * u64::from(self.map("")?),
                Type::Other => {
                    let extension = self.read("value", decode::read_ext_meta)?;
                    self.take(extension.size as usize)?;
                }
            }
        }
        Ok(())
    }

    fn float(&mut self) -> Result<f64, BatchError> {
        match self.rest.first().map(|&marker| Marker::from_u8(marker)) {
            Some(Marker::F32) => self.read("", decode::read_f32).map(f64::from),
            _ => self.read("", decode::read_f64),
        }
    }

    fn read<T, E: Into<NumValueReadError<BytesReadError>>>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Bytes<'a>) -> Result<T, E>,
    ) -> Result<T, BatchError> {
        let (at, mut bytes) = (self.at(), Bytes::new(self.rest));
        let value = read(&mut bytes).map_err(|error| match error.into() {
            NumValueReadError::TypeMismatch(marker) => BatchError::Type {
                field,
                found: marker.into(),
                at,
            },
            _ => BatchError::Short(at),
        })?;
        self.rest = bytes.remaining_slice();
        Ok(value)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], BatchError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(BatchError::Short(self.at()))?;
        self.rest = rest;
        Ok(taken)
    }
}

//! JSON in UTF-16 or UTF-32, which some servers accept in binary messages: converts its characters to bytes, so that
//! its keys can be searched.

/// Decodes one message. Its encoding follows from its first four bytes (RFC 4627, section 3, and byte order marks).
/// Characters beyond ASCII become [`OTHER`], since no key that is searched contains them.
#[derive(Debug, Default)]
pub(super) struct Units {
    /// The bytes of an incomplete unit, or of a message whose encoding is not known yet.
    carry: [u8; WIDEST],
    has: usize,
    encoding: Option<Encoding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Encoding {
    /// Bytes of a unit.
    size: usize,
    is_big_endian: bool,
}

const WIDEST: usize = 4;
const OTHER: u8 = 0x80;
const UTF_8: Encoding = Encoding {
    size: 1,
    is_big_endian: false,
};

impl Units {
    /// Replaces bytes of the message by those to search: none while fewer than four bytes have arrived.
    pub(super) fn push(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let bytes = match self.encoding {
            Some(encoding) if encoding == UTF_8 => return bytes,
            Some(_) => bytes,
            None => match self.begin(bytes) {
                Some(bytes) => bytes,
                None => return Vec::new(),
            },
        };
        let encoding = self.encoding.unwrap_or(UTF_8);
        if encoding == UTF_8 {
            return bytes;
        }
        let mut out = Vec::with_capacity(bytes.len() / encoding.size + 1);
        for byte in bytes {
            self.carry[self.has] = byte;
            self.has += 1;
            if self.has == encoding.size {
                self.has = 0;
                out.push(encoding.ascii(&self.carry[..encoding.size]));
            }
        }
        out
    }

    /// Determines the encoding. Returns the bytes from the message's beginning, once there are enough.
    fn begin(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let mut all = self.carry[..self.has].to_vec();
        all.extend(bytes);
        let Some(first) = all.first_chunk::<WIDEST>() else {
            self.carry[..all.len()].copy_from_slice(&all);
            self.has = all.len();
            return None;
        };
        self.encoding = Some(Encoding::of(*first));
        self.has = 0;
        Some(all)
    }
}

impl Encoding {
    fn of(first: [u8; WIDEST]) -> Self {
        let of = |size, is_big_endian| Self { size, is_big_endian };
        match first {
            [0, 0, 0, 0] => UTF_8,
            [0xff, 0xfe, 0, 0] | [_, 0, 0, 0] => of(4, false),
            [0, 0, 0xfe, 0xff] | [0, 0, 0, _] => of(4, true),
            [0, 0, ..] => UTF_8,
            [0xff, 0xfe, ..] | [_, 0, ..] => of(2, false),
            [0xfe, 0xff, ..] | [0, ..] => of(2, true),
            _ => UTF_8,
        }
    }

    fn ascii(self, unit: &[u8]) -> u8 {
        let (last, rest) = match self.is_big_endian {
            true => unit.split_last(),
            false => unit.split_first(),
        }
        .unwrap_or((&OTHER, &[]));
        match last.is_ascii() && rest.iter().all(|byte| *byte == 0) {
            true => *last,
            false => OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_is_the_same_in_every_encoding_and_in_any_pieces() {
        // The low byte of U+4E22 is a quotation mark.
        let text = "{\"a\u{4e22}\": \"kv\"}";
        let expected: Vec<u8> = text
            .chars()
            .map(|c| if c.is_ascii() { c as u8 } else { OTHER })
            .collect();
        let marked = |text: &str| format!("\u{feff}{text}");
        let utf_16 = |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect();
        let utf_32 =
            |text: &str, bytes: fn(u32) -> [u8; 4]| text.chars().flat_map(|c| bytes(c as u32)).collect();
        let encoded: [Vec<u8>; 8] = [
            utf_16(text, u16::to_le_bytes),
            utf_16(text, u16::to_be_bytes),
            utf_32(text, u32::to_le_bytes),
            utf_32(text, u32::to_be_bytes),
            utf_16(&marked(text), u16::to_le_bytes),
            utf_16(&marked(text), u16::to_be_bytes),
            utf_32(&marked(text), u32::to_le_bytes),
            utf_32(&marked(text), u32::to_be_bytes),
        ];
        for message in encoded {
            for size in 1..9 {
                let mut units = Units::default();
                let pieces = message.chunks(size);
                let found: Vec<u8> = pieces.flat_map(|piece| units.push(piece.to_vec())).collect();
                let found = found.strip_prefix(&[OTHER]).unwrap_or(&found);
                assert_eq!(found, expected, "{size} {message:?}");
            }
        }
    }

    #[test]
    fn utf_8_and_other_bytes_stay() {
        for message in [
            &b"{\"a\":1}"[..],
            "{\"ä\":1}".as_bytes(),
            &[0, 0, 0, 0, 0],
            b"\xef\xbb\xbf{}",
        ] {
            let mut units = Units::default();
            let found: Vec<u8> = message
                .chunks(2)
                .flat_map(|piece| units.push(piece.to_vec()))
                .collect();
            assert_eq!(found, message);
        }
    }
}

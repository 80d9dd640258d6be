//! The framing of response bodies (RFC 9112, sections 6 and 7).
//!
//! Input may be cut anywhere. The body data of one read becomes one frame, whatever chunks it has: an engine that
//! writes a chunk per token would otherwise cause a frame and a write per token.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Largest number of bytes of chunk extensions in one body. They are not used.
const MAX_EXTENSIONS: usize = 16 * 1024;
const MAX_TRAILERS: usize = 16 * 1024;
const MAX_TRAILER_FIELDS: usize = 64;

/// Framing of a body, which determines its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// The body has this number of bytes.
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyDecoderState {
    Length(u64),
    UntilClose,
    /// In a chunk's size, so far this one; the flag says whether it has a digit yet.
    Size(u64, bool),
    /// After the size, before the end of the line.
    Extension(u64),
    /// After the carriage return behind a size.
    SizeEnd(u64),
    Data(u64),
    /// After the data of a chunk.
    DataEnd,
    DataEnded,
    Trailers,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid chunked body")]
pub(super) struct MalformedChunk;

#[derive(Debug)]
pub(super) struct BodyDecoder {
    state: BodyDecoderState,
    extensions: usize,
    trailers: Vec<u8>,
}

impl BodyDecoder {
    pub(super) fn new(framing: BodyFraming) -> Self {
        let state = match framing {
            BodyFraming::Length(0) => BodyDecoderState::Done,
            BodyFraming::Length(length) => BodyDecoderState::Length(length),
            BodyFraming::Chunked => BodyDecoderState::Size(0, false),
            BodyFraming::UntilClose => BodyDecoderState::UntilClose,
        };
        Self {
            state,
            extensions: 0,
            trailers: Vec::new(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == BodyDecoderState::Done
    }

    /// Handles the end of the connection. Returns whether the body is complete.
    pub(super) fn close(&mut self) -> bool {
        if self.state == BodyDecoderState::UntilClose {
            self.state = BodyDecoderState::Done;
        }
        self.is_done()
    }

    /// Returns the number of bytes still to come, if known.
    pub(super) fn left(&self) -> Option<u64> {
        match self.state {
            BodyDecoderState::Length(left) => Some(left),
            BodyDecoderState::Done => Some(0),
            _ => None,
        }
    }

    /// Decodes bytes and appends the body data to `out`. Returns how many were consumed: all, unless the body ends
    /// before. Fails if the chunked coding is violated.
    pub(super) fn take(&mut self, wire: &[u8], out: &mut Vec<u8>) -> Result<usize, MalformedChunk> {
        let mut at = 0;
        while at < wire.len() {
            self.state = match self.state {
                BodyDecoderState::Done => break,
                BodyDecoderState::Length(left) => match copy(left, &wire[at..], out, &mut at) {
                    0 => BodyDecoderState::Done,
                    left => BodyDecoderState::Length(left),
                },
                BodyDecoderState::UntilClose => {
                    out.extend_from_slice(&wire[at..]);
                    at = wire.len();
                    BodyDecoderState::UntilClose
                }
                BodyDecoderState::Data(left) => match copy(left, &wire[at..], out, &mut at) {
                    0 => BodyDecoderState::DataEnd,
                    left => BodyDecoderState::Data(left),
                },
                BodyDecoderState::Trailers => {
                    at += 1;
                    self.trailer(wire[at - 1])?
                }
                // The common case: a token's chunk has no extensions and comes in one piece.
                BodyDecoderState::Size(0, false) if let Some((size, length)) = whole_size(&wire[at..]) => {
                    at += length;
                    if size == 0 {
                        BodyDecoderState::Trailers
                    } else {
                        BodyDecoderState::Data(size)
                    }
                }
                BodyDecoderState::DataEnd if wire[at..].starts_with(b"\r\n") => {
                    at += 2;
                    BodyDecoderState::Size(0, false)
                }
                state => {
                    at += 1;
                    self.line(state, wire[at - 1])?
                }
            };
        }
        Ok(at)
    }

    /// Consumes one byte between the data of two chunks.
    fn line(&mut self, state: BodyDecoderState, byte: u8) -> Result<BodyDecoderState, MalformedChunk> {
        Ok(match (state, byte) {
            (BodyDecoderState::Size(size, _), digit) if digit.is_ascii_hexdigit() => {
                let digit = char::from(digit).to_digit(16).ok_or(MalformedChunk)?;
                let size = size.checked_mul(16).ok_or(MalformedChunk)?;
                BodyDecoderState::Size(size | u64::from(digit), true)
            }
            (BodyDecoderState::Size(size, true) | BodyDecoderState::Extension(size), b'\r') => {
                BodyDecoderState::SizeEnd(size)
            }
            (BodyDecoderState::Size(size, true), b';' | b' ' | b'\t') => BodyDecoderState::Extension(size),
            (BodyDecoderState::Extension(size), byte) if byte != b'\n' => {
                self.extensions += 1;
                if self.extensions > MAX_EXTENSIONS {
                    return Err(MalformedChunk);
                }
                BodyDecoderState::Extension(size)
            }
            (BodyDecoderState::SizeEnd(0), b'\n') => BodyDecoderState::Trailers,
            (BodyDecoderState::SizeEnd(size), b'\n') => BodyDecoderState::Data(size),
            (BodyDecoderState::DataEnd, b'\r') => BodyDecoderState::DataEnded,
            (BodyDecoderState::DataEnded, b'\n') => BodyDecoderState::Size(0, false),
            _ => return Err(MalformedChunk),
        })
    }

    fn trailer(&mut self, byte: u8) -> Result<BodyDecoderState, MalformedChunk> {
        self.trailers.push(byte);
        if self.trailers.len() > MAX_TRAILERS {
            return Err(MalformedChunk);
        }
        let ended = self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n");
        Ok(if ended {
            BodyDecoderState::Done
        } else {
            BodyDecoderState::Trailers
        })
    }

    /// Takes the trailers of a complete body, if there are any that parse.
    pub(super) fn trailers(&mut self) -> Option<HeaderMap> {
        let bytes = std::mem::take(&mut self.trailers);
        if bytes.len() <= 2 || !self.is_done() {
            return None;
        }
        let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
        let httparse::Status::Complete((_, fields)) = httparse::parse_headers(&bytes, &mut fields).ok()?
        else {
            return None;
        };
        let mut trailers = HeaderMap::with_capacity(fields.len());
        for field in fields {
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
            trailers.append(name, HeaderValue::from_bytes(field.value).ok()?);
        }
        Some(trailers)
    }
}

/// Parses a chunk's size, if its line is complete and has no extensions. Returns the size and the length of the line.
fn whole_size(wire: &[u8]) -> Option<(u64, usize)> {
    const DIGITS: usize = 15;
    let mut size = 0;
    for (at, &byte) in wire.iter().take(DIGITS + 1).enumerate() {
        if byte == b'\r' {
            return (at > 0 && wire.get(at + 1) == Some(&b'\n')).then_some((size, at + 2));
        }
        size = size << 4 | u64::from(char::from(byte).to_digit(16)?);
    }
    None
}

/// Copies at most `left` bytes of `wire`. Returns how many of `left` are still to come.
fn copy(left: u64, wire: &[u8], out: &mut Vec<u8>, at: &mut usize) -> u64 {
    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(wire.len());
    out.extend_from_slice(&wire[..taken]);
    *at += taken;
    left - taken as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes a body from pieces. Returns the body, the bytes after it and whether it is complete.
    fn read(framing: BodyFraming, pieces: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>, bool), MalformedChunk> {
        let mut decoder = BodyDecoder::new(framing);
        let (mut body, mut behind) = (Vec::new(), Vec::new());
        for piece in pieces {
            let taken = decoder.take(piece, &mut body)?;
            behind.extend_from_slice(&piece[taken..]);
        }
        Ok((body, behind, decoder.is_done()))
    }

    #[test]
    fn malformed_chunked_bodies_are_rejected() {
        for wire in [
            "x\r\n",
            "\r\n",
            "5\nhello",
            "5\r\nhello\n",
            "5\r\nhelloX",
            "-5\r\n",
            "0x5\r\n",
            "5 5\nh",
            " 5\r\nhello\r\n",
            "10000000000000000\r\n",
            "5\r\rhello",
        ] {
            assert_eq!(
                read(BodyFraming::Chunked, &[wire.as_bytes()]),
                Err(MalformedChunk),
                "{wire:?}"
            );
        }
        let endless = [b"5;".as_slice(), &[b'x'; MAX_EXTENSIONS + 1]].concat();
        assert_eq!(read(BodyFraming::Chunked, &[&endless]), Err(MalformedChunk));
        let endless = [b"0\r\nx: ".as_slice(), &[b'x'; MAX_TRAILERS + 1]].concat();
        assert_eq!(read(BodyFraming::Chunked, &[&endless]), Err(MalformedChunk));
    }

    #[test]
    fn trailers_are_parsed_and_later_bytes_are_not_consumed() {
        let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
        let wire = b"3;a=b\r\nabc\r\n0\r\nX-One: 1\r\nx-two: 2\r\n\r\nHTTP/1.1";
        let mut body = Vec::new();
        let taken = decoder.take(wire, &mut body).unwrap();
        assert_eq!(
            (&body[..], &wire[taken..], decoder.is_done()),
            (&b"abc"[..], &b"HTTP/1.1"[..], true)
        );
        let trailers = decoder.trailers().unwrap();
        assert_eq!(
            (&trailers["x-one"], &trailers["x-two"]),
            (&HeaderValue::from_static("1"), &HeaderValue::from_static("2"))
        );
    }

    #[test]
    fn only_a_body_delimited_by_the_connections_end_is_complete_there() {
        let mut decoder = BodyDecoder::new(BodyFraming::UntilClose);
        assert!(!decoder.is_done() && decoder.close());
        for framing in [BodyFraming::Length(1), BodyFraming::Chunked] {
            assert!(!BodyDecoder::new(framing).close());
        }
    }

    proptest! {
        #[test]
        fn chunking_and_cuts_do_not_change_the_body(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            upper in any::<bool>(),
        ) {
            let body = chunks.concat();
            let mut wire = Vec::new();
            for chunk in &chunks {
                let size = if upper { format!("{:X}\r\n", chunk.len()) } else { format!("{:04x} ;e\r\n", chunk.len()) };
                wire.extend_from_slice(size.as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");
            wire.extend_from_slice(b"behind");
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len())).collect();
            at.extend([0, wire.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &wire[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(BodyFraming::Chunked, &pieces).unwrap(), (body.clone(), b"behind".to_vec(), true));

            let plain = [&body[..], b"behind"].concat();
            let pieces: Vec<&[u8]> = plain.chunks(7).collect();
            let length = BodyFraming::Length(body.len() as u64);
            prop_assert_eq!(read(length, &pieces).unwrap(), (body, b"behind".to_vec(), true));
        }
    }
}

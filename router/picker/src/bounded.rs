//! Bounds the memory of a gateway's messages, before decoding and while they wait.
//!
//! A message is buffered until it is complete, and may contain a request's whole body. So its bytes count against
//! `limits.max_unread_bytes` from the first on, like bodies on the data port. A decoded head takes many times its
//! encoded size, so everything other than bodies has a separate bound and is counted by its decoded size.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

use super::wire::{BODY_TAGS, ProcessingRequest, ProcessingResponse};
use tailroute_http::body::{BodyError, PolledFrame};
use tailroute_http::byte_reservation::ByteReservation;

/// Largest number of bytes of a message other than bodies: heads, attributes and metadata.
pub(super) const MOST_BESIDE_BODIES: usize = 256 * 1024;
/// Largest number of decoded bytes per encoded byte other than bodies: an empty header takes two bytes.
const DECODED_BYTES: usize = 48;
/// Length of the flag and the length before each message.
const PREFIX_BYTES: usize = 5;

pub(super) fn overloaded() -> Status {
    Status::resource_exhausted("what clients and gateways have sent exceeds limits.max_unread_bytes")
}

/// The body of a stream, with the bytes of its incomplete message counted.
pub(super) struct CountedBody {
    body: Incoming,
    prefix: [u8; PREFIX_BYTES],
    /// Number of bytes of the prefix received.
    has: usize,
    rest: usize,
    held: usize,
    room: ByteReservation,
}

impl CountedBody {
    pub(super) fn new(body: Incoming, room: ByteReservation) -> Self {
        Self {
            body,
            prefix: [0; PREFIX_BYTES],
            has: 0,
            rest: 0,
            held: 0,
            room,
        }
    }

    /// Counts received bytes. Returns whether the bound allows them.
    fn arrive(&mut self, mut data: &[u8]) -> bool {
        while !data.is_empty() {
            if self.has < PREFIX_BYTES {
                let taken = data.len().min(PREFIX_BYTES - self.has);
                self.prefix[self.has..self.has + taken].copy_from_slice(&data[..taken]);
                self.has += taken;
                data = &data[taken..];
                if self.has < PREFIX_BYTES {
                    break;
                }
                let [_, length @ ..] = self.prefix;
                self.rest = u32::from_be_bytes(length) as usize;
            }
            let taken = data.len().min(self.rest);
            (self.held, self.rest) = (self.held + taken, self.rest - taken);
            data = &data[taken..];
            if self.rest == 0 {
                (self.has, self.held) = (0, 0);
            }
        }
        self.room.resize(self.held)
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            let frame = frame?;
            match frame.data_ref() {
                Some(data) if !this.arrive(data) => Err(overloaded().into()),
                _ => Ok(frame),
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

pub(super) struct SizedMessage {
    pub(super) message: ProcessingRequest,
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BoundedCodec;

type Prost = ProstCodec<ProcessingResponse, ProcessingRequest>;

impl Codec for BoundedCodec {
    type Encode = ProcessingResponse;
    type Decode = SizedMessage;
    type Encoder = <Prost as Codec>::Encoder;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        Prost::default().encoder()
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Decoder for BoundedCodec {
    type Item = SizedMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<SizedMessage>, Status> {
        let malformed = |error: prost::DecodeError| Status::internal(error.to_string());
        let beside = beside_bodies(from.chunk()).map_err(malformed)?;
        if beside > MOST_BESIDE_BODIES {
            return Err(Status::out_of_range(format!(
                "a message has {beside} bytes beside pieces of bodies; at most {MOST_BESIDE_BODIES} are taken"
            )));
        }
        let bytes = from.remaining() + beside * DECODED_BYTES;
        let message = ProcessingRequest::decode(from).map_err(malformed)?;
        Ok(Some(SizedMessage { message, bytes }))
    }
}

/// Returns the number of bytes of a message that are not body data.
fn beside_bodies(mut message: &[u8]) -> Result<usize, prost::DecodeError> {
    let mut beside = 0;
    while !message.is_empty() {
        let before = message.len();
        let (tag, kind) = decode_key(&mut message)?;
        skip_field(kind, tag, &mut message, DecodeContext::default())?;
        if !BODY_TAGS.contains(&tag) {
            beside += before - message.len();
        }
    }
    Ok(beside)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::super::wire::{HttpBody, Metadata, RequestPart};
    use super::*;

    #[test]
    fn bytes_other_than_bodies_are_counted() {
        let piece = ProcessingRequest {
            request: Some(RequestPart::RequestBody(HttpBody {
                body: vec![7; 1000].into(),
                end_of_stream: true,
            })),
            ..ProcessingRequest::default()
        };
        assert_eq!(beside_bodies(&piece.encode_to_vec()).unwrap(), 0);
        let noted = ProcessingRequest {
            metadata_context: Some(Metadata::default()),
            ..piece
        };
        assert_eq!(beside_bodies(&noted.encode_to_vec()).unwrap(), 2);
        assert!(beside_bodies(&[0xff; 20]).is_err());
    }

    #[test]
    fn a_decoded_head_takes_at_most_its_counted_bytes() {
        assert!(size_of::<super::super::wire::HeaderValue>() <= 2 * DECODED_BYTES);
    }
}

//! Bodies of requests to workers and of responses to clients.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Error of a body: the peer's stream broke or timed out.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Result of polling a body's frames; `None` at the end of the body.
pub type PolledFrame = Option<Result<Frame<Bytes>, BodyError>>;

/// A body in either direction. It is boxed once per request, and no chunk is.
pub enum Body {
    /// A body that only yields frames.
    Frames(UnsyncBoxBody<Bytes, BodyError>),
    /// A body that can also write its data into a caller's buffer.
    Pieces(Box<dyn Pieces + Send + Unpin>),
}

/// A body that can write its data into a caller's buffer, so that a token's few bytes need no allocation of their own.
pub trait Pieces: HttpBody<Data = Bytes, Error = BodyError> {
    /// Appends the next data to `out`, or returns a frame that is not followed by more pieces.
    fn poll_piece(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<BodyPiece>;
}

/// Result of polling for a piece.
#[derive(Debug)]
pub enum BodyPiece {
    /// Data was appended, and more may come.
    Added,
    /// Nothing was appended: the last data, trailers, an error or the end of the body; or data of more than
    /// [`MOST_BYTES`].
    Frame(PolledFrame),
}

/// Size in bytes of the longest data that is appended as a piece.
pub const MOST_BYTES: usize = 64 * 1024;

/// Returns a body that is complete in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    streaming(Full::new(bytes.into()))
}

/// Returns a body that forwards the frames of another one as they come.
pub fn streaming<B>(body: B) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    Body::Frames(body.map_err(Into::into).boxed_unsync())
}

impl Body {
    /// Polls for a piece; see [`Pieces::poll_piece`].
    pub fn poll_piece(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<BodyPiece> {
        match self {
            Self::Frames(frames) => poll_piece_of(frames, cx, out),
            Self::Pieces(pieces) => pieces.poll_piece(cx, out),
        }
    }
}

/// Returns the size hint of a body of which `first` bytes were read already.
pub fn hint_with(first: usize, rest: &SizeHint) -> SizeHint {
    let first = first as u64;
    let mut hint = SizeHint::new();
    if let Some(upper) = rest.upper() {
        hint.set_upper(upper + first);
    }
    hint.set_lower(rest.lower() + first);
    hint
}

/// Implements [`Pieces::poll_piece`] for a body that only yields frames.
pub fn poll_piece_of<B>(mut body: B, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<BodyPiece>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    Pin::new(&mut body).poll_frame(cx).map(|given| {
        let data = match &given {
            Some(Ok(frame)) if !body.is_end_stream() => frame.data_ref(),
            _ => None,
        };
        match data {
            Some(data) if data.len() <= MOST_BYTES => {
                out.extend_from_slice(data);
                BodyPiece::Added
            }
            _ => BodyPiece::Frame(given.map(|frame| frame.map_err(Into::into))),
        }
    })
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        match self.get_mut() {
            Self::Frames(frames) => Pin::new(frames).poll_frame(cx),
            Self::Pieces(pieces) => Pin::new(pieces).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Frames(frames) => frames.is_end_stream(),
            Self::Pieces(pieces) => pieces.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Frames(frames) => frames.size_hint(),
            Self::Pieces(pieces) => pieces.size_hint(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Body")
    }
}

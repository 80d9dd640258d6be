//! What goes to workers and what goes to clients.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// A body error: the other side's stream broke, or took too long.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// What a body gives at a time, if it gives anything.
pub type Given = Option<Result<Frame<Bytes>, BodyError>>;

/// A body in either direction. Boxed once per request, never per chunk.
pub enum Body {
    /// One that gives frames.
    Frames(UnsyncBoxBody<Bytes, BodyError>),
    /// One that can give pieces as well.
    Pieces(Box<dyn Pieces + Send + Unpin>),
}

/// A body whose data can be written where it is needed, so that a token's few bytes need no memory of their own.
pub trait Pieces: HttpBody<Data = Bytes, Error = BodyError> {
    /// Adds the next data to `out`, or gives what is no piece to be followed by others.
    fn poll_piece(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<Piece>;
}

/// What came of asking for a piece.
#[derive(Debug)]
pub enum Piece {
    /// It is there, and more may come.
    Added,
    /// The last data, trailers, an error or the end; or data that is too long for a piece.
    Given(Given),
}

/// Longest data of a frame that is a piece.
pub const MOST_BYTES: usize = 64 * 1024;

/// A body that is already whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    streaming(Full::new(bytes.into()))
}

/// A body that streams through as it comes.
pub fn streaming<B>(body: B) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    Body::Frames(body.map_err(Into::into).boxed_unsync())
}

impl Body {
    /// As [`Pieces::poll_piece`] has it.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<Piece> {
        match self {
            Self::Frames(frames) => poll_piece_of(frames, cx, out),
            Self::Pieces(pieces) => pieces.poll_piece(cx, out),
        }
    }
}

/// The next piece of a body that gives frames only.
pub fn poll_piece_of<B>(mut body: B, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<Piece>
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
                Piece::Added
            }
            _ => Piece::Given(given.map(|frame| frame.map_err(Into::into))),
        }
    })
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Given> {
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

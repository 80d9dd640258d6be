//! A response body in pieces, which ends only once nearly all of it is written.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Longest piece. A connection buffers several before it writes.
const PIECE: usize = 32 << 10;

/// A body with a guard that is held until its end.
#[derive(Debug)]
pub(super) struct GuardedBody<T> {
    body: Body,
    rest: Bytes,
    _held: T,
}

impl<T> GuardedBody<T> {
    pub(super) fn new(body: Body, held: T) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            _held: held,
        }
    }
}

impl<T: Unpin> http_body::Body for GuardedBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match ready!(http_body::Body::poll_frame(Pin::new(&mut this.body), cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = http_body::Body::size_hint(&self.body);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

//! A gateway's messages about one request, with the request's body as a readable stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream as _;
use http_body::{Body as HttpBody, Frame};
use tonic::{Status, Streaming};

use super::bounded::{SizedMessage, overloaded};
use super::wire::{ProcessingRequest, RequestPart};
use state::State;
use tailroute_http::body::{BodyError, PolledFrame};
use tailroute_http::byte_reservation::ByteReservation;

pub(super) struct Inbox {
    state: Arc<State>,
    incoming: Streaming<SizedMessage>,
    /// Reservation of memory for the latest message, until the next one arrives or it is taken.
    room: Option<ByteReservation>,
    /// Message that arrived while the gateway's hang-up was awaited.
    kept: Option<ProcessingRequest>,
}

impl Inbox {
    pub(super) fn new(state: &Arc<State>, incoming: Streaming<SizedMessage>) -> Self {
        Self {
            state: Arc::clone(state),
            incoming,
            room: None,
            kept: None,
        }
    }

    /// Takes the reservation of memory for the latest message, to be held as long as the message is.
    pub(super) fn take_room(&mut self) -> Option<ByteReservation> {
        self.room.take()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<ProcessingRequest>, Status>> {
        if let Some(kept) = self.kept.take() {
            return Poll::Ready(Ok(Some(kept)));
        }
        self.room = None;
        let Some(next) = ready!(Pin::new(&mut self.incoming).poll_next(cx)) else {
            return Poll::Ready(Ok(None));
        };
        let SizedMessage { message, bytes } = next?;
        let mut room = self.state.request_reservation();
        if !room.grow(bytes) {
            return Poll::Ready(Err(overloaded()));
        }
        self.room = Some(room);
        Poll::Ready(Ok(Some(message)))
    }

    /// Returns the next message; `None` at the end. Fails if the stream was reset or a message is invalid.
    pub(super) async fn next(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Waits until the gateway closes or resets the stream. If a message arrives instead, it is kept, and this never
    /// completes: only one message is read ahead.
    pub(super) async fn hung_up(&mut self) {
        std::future::poll_fn(|cx| {
            if self.kept.is_some() {
                return Poll::Pending;
            }
            match self.poll(cx) {
                Poll::Ready(Ok(Some(message))) => {
                    self.kept = Some(message);
                    Poll::Pending
                }
                Poll::Ready(Ok(None) | Err(_)) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
    }

    /// Returns the request's body, which is to arrive next.
    pub(super) fn body(&mut self, is_one_piece: bool) -> RequestBody<'_> {
        RequestBody {
            inbox: self,
            is_one_piece,
            is_over: false,
            ended_by_trailers: false,
        }
    }
}

pub(super) struct RequestBody<'a> {
    inbox: &'a mut Inbox,
    /// Whether the first message contains the whole body, even if it does not mark the end: trailers may follow.
    is_one_piece: bool,
    is_over: bool,
    /// Whether trailers, which must be answered, ended the body.
    pub(super) ended_by_trailers: bool,
}

impl HttpBody for RequestBody<'_> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let body = self.get_mut();
        if body.is_over {
            return Poll::Ready(None);
        }
        let message = match body.inbox.poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(Ok(message)) => message,
        };
        // The reader of the body accounts for the bytes that it keeps.
        drop(body.inbox.take_room());
        match message.and_then(|message| message.request) {
            Some(RequestPart::RequestBody(piece)) => {
                body.is_over = piece.end_of_stream || body.is_one_piece;
                Poll::Ready(Some(Ok(Frame::data(piece.body))))
            }
            Some(RequestPart::RequestTrailers(_)) => {
                body.is_over = true;
                body.ended_by_trailers = true;
                Poll::Ready(None)
            }
            _ => Poll::Ready(Some(Err(
                "the gateway went on without the rest of the body".into()
            ))),
        }
    }
}

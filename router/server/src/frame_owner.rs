//! Tracks whether hyper or the fast path ([`fast_path`](super::fast_path)) polls a response's frames.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body as HttpBody, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::progress::OpenRequest;
use tailroute_http::body::{Body, BodyError, PolledFrame};

/// Encoding of the response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// HTTP/1.1: chunked, unless the response has a length.
    Chunks,
    /// HTTP/1 without chunks: HTTP/1.0, and responses to `HEAD`.
    Plain,
    /// HTTP/2: each response is sent by a task of its own.
    Streams,
}

impl Carrier {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        match request.version() {
            Version::HTTP_11 if request.method() != Method::HEAD => Self::Chunks,
            version if version <= Version::HTTP_11 => Self::Plain,
            _ => Self::Streams,
        }
    }
}

#[derive(Debug)]
pub(super) enum FrameOwner {
    Hyper,
    /// hyper polls; while it waits, the fast path may take over ([`fast_path`](super::fast_path)).
    Offered,
    /// The fast path polls; hyper waits.
    FastPath,
    /// hyper polls again, beginning with a result that the fast path could not write.
    Left(PolledFrame),
    /// The body is complete.
    Over,
}

impl FrameOwner {
    /// Returns the initial state: only chunked responses may use the fast path.
    pub(super) fn of(answer: &Response<Body>, carrier: Carrier) -> Self {
        if carrier == Carrier::Chunks && has_no_length(answer) {
            Self::Offered
        } else {
            Self::Hyper
        }
    }
}

#[derive(Debug)]
pub(super) struct Held {
    /// Body of the response; `None` once it was dropped.
    pub(super) body: Option<Body>,
    /// Time at which the last frame was taken; `None` before the first, and while the next one is awaited.
    pub(super) handed_out: Option<Instant>,
    pub(super) due: Option<Instant>,
    /// Open request, until hyper drops the response or it is dropped as stalled.
    pub(super) request: Option<OpenRequest>,
    pub(super) owner: FrameOwner,
}

/// Results of hyper's polls, for the connection's task.
#[derive(Debug, Default)]
pub(super) struct PollResults {
    /// Response that hyper waits for and that may use the fast path.
    pub(super) offer: Option<Arc<Mutex<Held>>>,
    /// Body that hyper has finished. It is dropped after hyper has written, because dropping it does work.
    pub(super) whole: Option<Body>,
}

/// Returns whether hyper sends the response in chunks to a client that supports them.
fn has_no_length(answer: &Response<Body>) -> bool {
    answer.status() == StatusCode::OK
        && !answer.headers().contains_key(CONTENT_LENGTH)
        && answer.body().size_hint().exact().is_none()
}

pub(super) struct WatchedBody {
    pub(super) held: Arc<Mutex<Held>>,
    pub(super) handed: Arc<Mutex<PollResults>>,
    pub(super) carrier: Carrier,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let mut held = self.held.lock();
        match std::mem::replace(&mut held.owner, FrameOwner::Offered) {
            FrameOwner::Hyper => held.owner = FrameOwner::Hyper,
            FrameOwner::Offered => {}
            FrameOwner::FastPath => {
                held.owner = FrameOwner::FastPath;
                return Poll::Pending;
            }
            FrameOwner::Left(frame) => return Poll::Ready(frame),
            FrameOwner::Over => {
                held.owner = FrameOwner::Over;
                return Poll::Ready(None);
            }
        }
        let Some(body) = &mut held.body else {
            return Poll::Ready(Some(Err("the client did not read it in time".into())));
        };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        let is_last = body.is_end_stream() || matches!(polled, Poll::Ready(None));
        held.handed_out = polled.is_ready().then(Instant::now);
        if is_last && polled.is_ready() && self.carrier == Carrier::Streams {
            // hyper keeps the response until the client's window has room for its end, which may never happen.
            held.owner = FrameOwner::Over;
            let body = held.body.take();
            drop(held);
            drop(body);
            return polled;
        }
        if polled.is_pending() && matches!(held.owner, FrameOwner::Offered) {
            self.handed.lock().offer = Some(Arc::clone(&self.held));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let held = self.held.lock();
        match held.owner {
            FrameOwner::Left(_) => false,
            FrameOwner::Over => true,
            _ => held.body.as_ref().is_some_and(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.held
            .lock()
            .body
            .as_ref()
            .map_or_else(SizeHint::new, Body::size_hint)
    }
}

impl Drop for WatchedBody {
    /// Closes the request, because hyper has dropped the response.
    fn drop(&mut self) {
        let mut held = self.held.lock();
        let (body, _request) = (held.body.take(), held.request.take());
        drop(held);
        if self.carrier != Carrier::Streams {
            let before = std::mem::replace(&mut self.handed.lock().whole, body);
            drop(before);
        }
    }
}

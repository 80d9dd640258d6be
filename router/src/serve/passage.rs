//! Who asks for an answer's frames: hyper, or its connection, by which a stream's pieces go past hyper
//! ([`express`](super::express)).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::stalled::Held;
use tailroute_http::body::{Body, BodyError};

/// How answers to a request are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// HTTP/1.1: in chunks, unless they have a length.
    Chunks,
    /// HTTP/1, without chunks.
    Plain,
    /// HTTP/2: each is sent by a task of its own.
    Streams,
}

impl Carrier {
    /// How this request's answer is.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        match request.version() {
            Version::HTTP_11 if request.method() != Method::HEAD => Self::Chunks,
            version if version <= Version::HTTP_11 => Self::Plain,
            _ => Self::Streams,
        }
    }
}

/// Who asks for an answer's frames.
#[derive(Debug)]
pub(super) enum Passage {
    /// hyper, for all of them.
    Hyper,
    /// hyper; while it waits, its connection may ([`express`](super::express)).
    Offered,
    /// The connection: hyper waits.
    Express,
    /// hyper again, for what the connection could not hand on.
    Left(Option<Result<Frame<Bytes>, BodyError>>),
    /// Nobody: it is over.
    Over,
}

impl Passage {
    /// That of an answer: only chunks may go past hyper.
    pub(super) fn of(answer: &Response<Body>, carrier: Carrier) -> Self {
        if carrier == Carrier::Chunks && has_no_length(answer) {
            Self::Offered
        } else {
            Self::Hyper
        }
    }
}

/// What hyper's side of an answer leaves to its connection.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// The one that hyper waits for, and whose pieces may go past it.
    pub(super) offer: Option<Arc<Mutex<Held>>>,
    /// One that hyper is done with: to be dropped after hyper has written, as what is behind it has work to do then.
    pub(super) whole: Option<Body>,
}

/// Whether hyper sends it in chunks, if the client can be sent any.
fn has_no_length(answer: &Response<Body>) -> bool {
    answer.status() == StatusCode::OK
        && !answer.headers().contains_key(CONTENT_LENGTH)
        && answer.body().size_hint().exact().is_none()
}

/// An answer as hyper sees it.
pub(super) struct Watched {
    pub(super) held: Arc<Mutex<Held>>,
    pub(super) handed: Arc<Mutex<Handed>>,
    pub(super) carrier: Carrier,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut held = self.held.lock();
        match std::mem::replace(&mut held.passage, Passage::Offered) {
            Passage::Hyper => held.passage = Passage::Hyper,
            Passage::Offered => {}
            Passage::Express => {
                held.passage = Passage::Express;
                return Poll::Pending;
            }
            Passage::Left(frame) => return Poll::Ready(frame),
            Passage::Over => {
                held.passage = Passage::Over;
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
            // hyper keeps it until the client's window has room for its end, which may be never.
            held.passage = Passage::Over;
            let body = held.body.take();
            drop(held);
            drop(body);
            return polled;
        }
        if polled.is_pending() && matches!(held.passage, Passage::Offered) {
            self.handed.lock().offer = Some(Arc::clone(&self.held));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let held = self.held.lock();
        match held.passage {
            Passage::Left(_) => false,
            Passage::Over => true,
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

impl Drop for Watched {
    /// hyper wants no more of it: nor does its connection. The request is not open any more.
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

//! The answer on its way to the client: each chunk leaves as it came, and is looked at in passing.
//!
//! Dropping the body, as happens when the client leaves, drops the connection to the worker with it. A stream that
//! breaks off must not look complete: an event stream is given a last event that says what happened ([`mend`], wherever
//! it broke off), and then the connection is cut instead of being ended.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use tracing::warn;

use super::learn::{Flight, Outcome};
use super::mend;
use super::watch::Watch;
use crate::body::BodyError;
use crate::error::ApiError;

/// A worker's answer on its way to the client.
pub struct Tap {
    inner: Incoming,
    watch: Watch,
    flight: Option<Flight>,
    /// The outcome if all of it passes.
    outcome: Outcome,
    idle: Pin<Box<Sleep>>,
    idle_timeout: Duration,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    failing: Failing,
}

/// The end of a stream that broke off.
#[derive(Debug)]
enum Failing {
    No,
    /// The last event has been handed out; let it be flushed.
    Said(BodyError),
    /// Cut the connection.
    Cut(BodyError),
}

impl Tap {
    /// Taps an answer.
    #[must_use]
    pub fn new(
        inner: Incoming,
        watch: Watch,
        flight: Flight,
        outcome: Outcome,
        idle_timeout: Duration,
    ) -> Self {
        let idle = Box::pin(tokio::time::sleep(idle_timeout));
        let cut = Box::pin(flight.app().when_cut_off());
        let mut tap = Self {
            inner,
            watch,
            flight: Some(flight),
            outcome,
            idle,
            idle_timeout,
            cut,
            failing: Failing::No,
        };
        if tap.inner.is_end_stream() {
            tap.ended();
        }
        tap
    }

    fn passed(&mut self, data: &Bytes) {
        let Some(flight) = &mut self.flight else { return };
        flight.worker().saw_bytes(data.len());
        self.watch.push(data, |piece| flight.reply(piece));
        if self.watch.first_token && self.outcome == Outcome::Ok {
            flight.first_token(self.watch.is_stream());
        }
    }

    fn ended(&mut self) {
        let Some(mut flight) = self.flight.take() else {
            return;
        };
        self.watch.end(|piece| flight.reply(piece));
        let complete = self.watch.complete || self.outcome != Outcome::Ok;
        let outcome = if complete { self.outcome } else { Outcome::Broken };
        flight.end(outcome, Some(self.watch.seen()), complete);
    }

    /// The stream broke: say so where there is a way to, then cut it.
    fn broke(&mut self, error: BodyError, told: &ApiError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(flight) = self.flight.take() {
            warn!(worker = flight.worker().name(), %error, "the answer broke off");
            flight.end(Outcome::Broken, Some(self.watch.seen()), false);
        }
        let Some(standing) = self.watch.standing() else {
            return Poll::Ready(Some(Err(error)));
        };
        self.failing = Failing::Said(error);
        Poll::Ready(Some(Ok(Frame::data(mend::last_words(standing, &told.json())))))
    }
}

impl HttpBody for Tap {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let tap = self.get_mut();
        match std::mem::replace(&mut tap.failing, Failing::No) {
            Failing::No => {}
            Failing::Said(error) => {
                // One turn of the loop without a frame makes the server flush what it has.
                tap.failing = Failing::Cut(error);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Failing::Cut(error) => return Poll::Ready(Some(Err(error))),
        }
        match Pin::new(&mut tap.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    tap.passed(data);
                }
                tap.idle.as_mut().reset(Instant::now() + tap.idle_timeout);
                if tap.inner.is_end_stream() {
                    tap.ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => tap.broke(error.into(), &ApiError::WorkerFailed),
            Poll::Ready(None) => {
                tap.ended();
                Poll::Ready(None)
            }
            Poll::Pending if tap.idle.as_mut().poll(cx).is_ready() => {
                let told = ApiError::WorkerTimeout(tap.idle_timeout);
                tap.broke("the worker stopped sending".into(), &told)
            }
            Poll::Pending if tap.cut.as_mut().poll(cx).is_ready() => {
                tap.broke("the drain limit was reached".into(), &ApiError::Draining)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.failing, Failing::No) && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

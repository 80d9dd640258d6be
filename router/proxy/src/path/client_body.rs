//! A client's body that is streamed to a worker, bounded in size and time.
//!
//! A body that breaks off or exceeds its bounds ends with an error, so the worker never receives a truncated request as
//! complete. The cause is kept to answer the client and to spare the worker.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::inspect::{Inspector, Refused, Search};
use protocol::error::ApiError;
use protocol::model::Named;
use state::{Routing, State};
use tailroute_http::body::{self, BodyError, PolledFrame};
use tailroute_http::byte_reservation::ByteReservation;

/// A body slower than this after `limits.body_timeout_s` is aborted.
const LEAST_BYTES_PER_S: u64 = 1024;

/// The time that a client may take for its body. It grows with the bytes received, but no pause may exceed the timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    began: Instant,
    last: Instant,
    received: u64,
    timeout: Duration,
}

impl Pace {
    pub(super) fn new(timeout: Duration) -> Self {
        let began = Instant::now();
        Self {
            began,
            last: began,
            received: 0,
            timeout,
        }
    }

    /// Records bytes that arrived.
    pub(super) fn received(&mut self, bytes: usize) {
        self.received += bytes as u64;
        self.last = Instant::now();
    }

    /// Returns when the body is late unless more bytes arrive.
    pub(super) fn until(&self) -> Instant {
        let grown = Duration::from_secs(self.received / LEAST_BYTES_PER_S);
        (self.began + grown).min(self.last) + self.timeout
    }
}

pub struct ClientBody {
    /// Bytes that were read to find the model.
    first: Option<Bytes>,
    /// Reservation of memory for `first`, held until the response begins.
    room: Option<ByteReservation>,
    inner: Incoming,
    received: usize,
    max: usize,
    pace: Pace,
    timer: Option<Pin<Box<Sleep>>>,
    broken: Option<Broken>,
    inspector: Inspector,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Off,
    TooLarge,
    TooSlow,
    Refused(Refused),
}

impl ClientBody {
    /// Wraps the body of a request with this head.
    pub fn new(routing: &Routing, head: &HeaderMap, inner: Incoming) -> Self {
        let live = routing.live();
        let limits = &live.limits;
        Self {
            first: None,
            room: None,
            inner,
            received: 0,
            max: limits.max_body_bytes.get(),
            pace: Pace::new(limits.body_timeout),
            timer: None,
            broken: None,
            inspector: Inspector::new(routing, head),
            ended: false,
        }
    }

    /// Returns the error that ended the body, if any.
    pub fn failure(&self) -> Option<ApiError> {
        self.broken.map(|broken| match broken {
            Broken::Off => ApiError::BodyCutShort,
            Broken::TooLarge => ApiError::BodyTooLarge(self.max),
            Broken::TooSlow => ApiError::RequestTimeout(self.pace.timeout),
            Broken::Refused(refused) => refused.into(),
        })
    }

    /// Returns whether the body has arrived completely.
    pub fn is_here(&self) -> bool {
        self.ended || self.is_end_stream()
    }

    /// Reads the body as far as needed to find the model. Fails if the body exceeds its bounds.
    pub async fn model(&mut self, state: &State, search: Search) -> Result<Named, ApiError> {
        let (mut seen, mut room) = (BytesMut::new(), state.request_reservation());
        while !self.inspector.is_over(search) {
            match self.frame().await {
                None => break,
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if !room.grow(data.len()) {
                        return Err(ApiError::Overloaded);
                    }
                    seen.extend_from_slice(&data);
                }
                Some(Err(_)) => return Err(self.failure().unwrap_or(ApiError::BodyCutShort)),
            }
        }
        let seen = seen.freeze();
        let named = self.inspector.model(&seen);
        self.first = Some(seen).filter(|seen| !seen.is_empty());
        self.room = Some(room);
        Ok(named)
    }

    fn breaks(&mut self, broken: Broken) -> Poll<PolledFrame> {
        self.broken = Some(broken);
        Poll::Ready(Some(Err("the client's body failed or exceeded its limit".into())))
    }

    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let until = self.pace.until();
            if until <= Instant::now() {
                return true;
            }
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            timer.as_mut().reset(until);
        }
    }
}

impl HttpBody for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let body = self.get_mut();
        if let Some(broken) = body.broken {
            return body.breaks(broken);
        }
        if let Some(first) = body.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match Pin::new(&mut body.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                body.pace.received(bytes);
                body.received += bytes;
                if body.received > body.max {
                    return body.breaks(Broken::TooLarge);
                }
                if let Some(data) = frame.data_ref()
                    && let Err(refused) = body.inspector.push(data)
                {
                    return body.breaks(Broken::Refused(refused));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => body.breaks(Broken::Off),
            Poll::Ready(None) => {
                body.ended = true;
                Poll::Ready(None)
            }
            Poll::Pending if body.is_late(cx) => body.breaks(Broken::TooSlow),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len);
        body::hint_with(first, &self.inner.size_hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_for_a_body_grows_with_its_bytes_but_no_pause_exceeds_the_timeout() {
        let (mut pace, began) = (Pace::new(Duration::from_secs(60)), Instant::now());
        let after = |pace: &Pace| (pace.until() - began).as_secs();
        assert_eq!(after(&pace), 60);
        tokio::time::advance(Duration::from_secs(50)).await;
        pace.received(10 * 1024);
        assert_eq!(after(&pace), 70, "ten seconds more for ten KiB");
        pace.received(1 << 20);
        assert_eq!(after(&pace), 110, "a pause of sixty seconds");
    }
}

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

use super::inspect::{Inspector, Refused};
use crate::Proxy;
use protocol::error::ApiError;
use tailroute_http::body::{self, BodyError, PolledFrame};

/// A body slower than this after `limits.body_timeout_s` is aborted.
const LEAST_BYTES_PER_S: u64 = 1024;

/// A client's body.
pub struct ClientBody {
    /// Bytes that were read to find the model.
    first: Option<Bytes>,
    inner: Incoming,
    received: usize,
    last: Instant,
    max: usize,
    began: Instant,
    timeout: Duration,
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
    pub fn new(proxy: &Proxy, head: &HeaderMap, inner: Incoming) -> Self {
        let live = proxy.state.live();
        let limits = &live.limits;
        Self {
            first: None,
            inner,
            received: 0,
            last: Instant::now(),
            max: limits.max_body_bytes.get(),
            began: Instant::now(),
            timeout: limits.body_timeout,
            timer: None,
            broken: None,
            inspector: Inspector::new(proxy, head),
            ended: false,
        }
    }

    /// The error that ended the body, if any.
    pub fn failure(&self) -> Option<ApiError> {
        self.broken.map(|broken| match broken {
            Broken::Off => ApiError::BodyCutShort,
            Broken::TooLarge => ApiError::BodyTooLarge(self.max),
            Broken::TooSlow => ApiError::RequestTimeout(self.timeout),
            Broken::Refused(refused) => refused.into(),
        })
    }

    /// Whether the body is complete.
    pub fn is_here(&self) -> bool {
        self.ended || self.is_end_stream()
    }

    /// Reads the beginning of a multipart form to find the model. Fails if the body exceeds its bounds.
    pub async fn model(&mut self, proxy: &Proxy) -> Result<Option<String>, ApiError> {
        let (mut seen, mut room) = (BytesMut::new(), proxy.state.unread());
        while !self.inspector.knows_model() {
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
        self.first = Some(seen.freeze()).filter(|seen| !seen.is_empty());
        Ok(self.inspector.model())
    }

    fn breaks(&mut self, broken: Broken) -> Poll<PolledFrame> {
        self.broken = Some(broken);
        Poll::Ready(Some(Err("the client's body failed or exceeded its limit".into())))
    }

    /// Whether the body timed out. The time allowed grows with the bytes received, but no pause may exceed the timeout.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let grown = Duration::from_secs(self.received as u64 / LEAST_BYTES_PER_S);
            let until = (self.began + grown).min(self.last) + self.timeout;
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
                body.last = Instant::now();
                body.received += frame.data_ref().map_or(0, Bytes::len);
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

//! The response body on its way to the client: relays each chunk unchanged and observes it.
//!
//! Dropping the body, as when the client leaves, closes the connection to the worker. A stream that breaks off must not
//! look complete: an event stream gets a last event with the error ([`mend`]), then the connection is cut.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::flight::AttemptOutcome;
use super::observe::Observer;
use super::watchdog::{CUT_OFF, Overrun, Watchdog};
use protocol::error::ApiError;
use protocol::headers;
use protocol::mend;
use tailroute_http::body::{self, BodyError, BodyPiece, MOST_BYTES, Pieces, PolledFrame};
use tailroute_http::upstream::ResponseBody;

/// The response body sent to the client.
pub struct Tap {
    /// First field, so that it is dropped first: in-flight state is released before the worker's connection closes.
    observer: Observer,
    first: Option<Frame<Bytes>>,
    inner: ResponseBody,
    watchdog: Watchdog,
    failing: Failing,
    /// Whether the whole body was handed to hyper. The flight ends when the body is dropped, which is after the write if
    /// the socket accepts it (before it, over HTTP/2).
    is_over: bool,
}

#[derive(Debug)]
enum Failing {
    No,
    /// The last event was sent and must be flushed.
    Said(BodyError),
    Cut(BodyError),
}

impl Tap {
    /// Wraps a response, of which `first` was already read.
    pub fn new(
        first: Option<Frame<Bytes>>,
        inner: ResponseBody,
        observer: Observer,
        watchdog: Watchdog,
    ) -> Self {
        let mut tap = Self {
            first,
            inner,
            observer,
            watchdog,
            failing: Failing::No,
            is_over: false,
        };
        if tap.is_end_stream() {
            tap.observer.finish();
        }
        tap
    }

    fn hand_on(&mut self, mut frame: Frame<Bytes>) -> Poll<PolledFrame> {
        frame.trailers_mut().into_iter().for_each(headers::strip_trailers);
        if let Some(data) = frame.data_ref() {
            self.watchdog.saw(self.observer.passed(data));
        }
        if self.inner.is_end_stream() {
            self.observer.catch_up();
            if !self.observer.stops_short() {
                self.finish();
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn on_frame(&mut self, cx: &mut Context<'_>, given: PolledFrame) -> Poll<PolledFrame> {
        match given {
            Some(Ok(frame)) => self.hand_on(frame),
            Some(Err(error)) => self.fail(cx, error),
            None => {
                self.observer.catch_up();
                if self.observer.stops_short() {
                    let error = "the stream ended without a completion marker".into();
                    return self.fail(cx, error);
                }
                self.finish();
                Poll::Ready(None)
            }
        }
    }

    fn poll_watchdog(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let overrun = ready!(self.watchdog.poll(cx));
        self.overran(cx, overrun)
    }

    fn finish(&mut self) {
        self.is_over = true;
        self.observer.on_complete();
    }

    fn overran(&mut self, cx: &mut Context<'_>, overrun: Overrun) -> Poll<PolledFrame> {
        let error = overrun.cause();
        self.observer
            .overran(overrun, |flight| flight.log_failure(&error, CUT_OFF));
        self.end(cx, error, &self.watchdog.told(overrun))
    }

    fn fail(&mut self, cx: &mut Context<'_>, error: BodyError) -> Poll<PolledFrame> {
        self.observer.fail(AttemptOutcome::Broken, |flight| {
            flight.log_failure(&error, CUT_OFF)
        });
        self.end(cx, error, &ApiError::WorkerBrokeOff)
    }

    /// Ends a broken stream: sends an error event if possible, then cuts the connection.
    fn end(&mut self, cx: &mut Context<'_>, error: BodyError, told: &ApiError) -> Poll<PolledFrame> {
        let family = self.observer.family();
        // An error that the worker has sent is the last one.
        let position = self.observer.position().filter(|_| !self.observer.has_error());
        let Some(position) = position else {
            // The response head may be unsent. Returning pending flushes it, so that the client sees a broken response.
            self.failing = Failing::Cut(error);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        self.failing = Failing::Said(error);
        Poll::Ready(Some(Ok(Frame::data(mend::last_words(
            position,
            &told.json_for(family),
            family,
        )))))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if self.is_over {
            self.observer.finish();
        }
    }
}

impl Pieces for Tap {
    fn poll_piece(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<BodyPiece> {
        if self.first.is_some() && self.inner.is_end_stream() || !matches!(self.failing, Failing::No) {
            return Pin::new(self).poll_frame(cx).map(BodyPiece::Frame);
        }
        match self.first.take().map(Frame::into_data) {
            Some(Ok(data)) if data.len() <= MOST_BYTES => {
                self.watchdog.saw(self.observer.passed(&data));
                out.extend_from_slice(&data);
                return Poll::Ready(BodyPiece::Added);
            }
            Some(Ok(data)) => return self.hand_on(Frame::data(data)).map(BodyPiece::Frame),
            Some(Err(trailers)) => return self.hand_on(trailers).map(BodyPiece::Frame),
            None => {}
        }
        let before = out.len();
        match self.inner.poll_piece(cx, out) {
            Poll::Ready(BodyPiece::Added) => {
                self.watchdog.saw(self.observer.passed(&out[before..]));
                Poll::Ready(BodyPiece::Added)
            }
            Poll::Ready(BodyPiece::Frame(given)) => self.on_frame(cx, given).map(BodyPiece::Frame),
            Poll::Pending => self.poll_watchdog(cx).map(BodyPiece::Frame),
        }
    }
}

impl HttpBody for Tap {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let tap = self.get_mut();
        match std::mem::replace(&mut tap.failing, Failing::No) {
            Failing::No => {}
            Failing::Said(error) => {
                // Returning pending once makes the server flush its buffer.
                tap.failing = Failing::Cut(error);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Failing::Cut(error) => return Poll::Ready(Some(Err(error))),
        }
        if let Some(first) = tap.first.take() {
            return tap.hand_on(first);
        }
        match Pin::new(&mut tap.inner).poll_frame(cx) {
            Poll::Ready(given) => tap.on_frame(cx, given),
            Poll::Pending => tap.poll_watchdog(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.failing, Failing::No)
            && self.first.is_none()
            && self.inner.is_end_stream()
            && !self.observer.stops_short()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self
            .first
            .as_ref()
            .and_then(Frame::data_ref)
            .map_or(0, Bytes::len);
        body::hint_with(first, &self.inner.size_hint())
    }
}

#[cfg(test)]
mod tests;

//! Responses in progress: hyper and the fast path ([`fast_path`](super::fast_path)) poll a body in turn. A response whose
//! client does not read is dropped.
//!
//! hyper polls a response only when there is room for its next frame, so a client that does not read also blocks the
//! response's own timeouts; in HTTP/2 those of one stream. So each connection watches its responses from outside: one
//! whose last frame was taken, without a poll for the next one, for `limits.idle_timeout_s` or past its request's
//! deadline, is dropped with its request to the worker. A connection without reads then ends as an idle one does.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body as HttpBody, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::progress::OpenRequest;
use tailroute_http::body::{self, Body, BodyError, PolledFrame};

/// Polling interval for a response that is past its deadline and would be stalled without another read.
const LOOK: Duration = Duration::from_secs(1);

/// Deadline of the whole response, as a response extension.
#[derive(Clone, Copy, Debug)]
pub struct Due(pub Instant);

/// A connection's responses in progress.
#[derive(Debug)]
pub(super) struct Answers {
    patience: Duration,
    sending: Mutex<Sending>,
    sooner: Notify,
    /// Results of hyper's polls, for the connection's task.
    results: Mutex<PollResults>,
}

#[derive(Debug, Default)]
struct Sending {
    answers: Vec<Weak<Mutex<SharedBody>>>,
    /// Time of the next check, before which no response can be stalled; `None` without responses.
    next_look: Option<Instant>,
}

impl Answers {
    /// `patience` is the longest time without a poll.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            sending: Mutex::default(),
            sooner: Notify::new(),
            results: Mutex::default(),
        }
    }

    pub(super) fn send(
        self: Arc<Self>,
        mut answer: Response<Body>,
        carrier: Carrier,
        request: OpenRequest,
    ) -> Response<Body> {
        if answer.body().is_end_stream() {
            return answer;
        }
        let owner = FrameOwner::of(&answer, carrier);
        let due = answer.extensions_mut().remove::<Due>().map(|due| due.0);
        answer.map(|body| {
            let shared = Arc::new(Mutex::new(SharedBody {
                body: Some(body),
                taken_at: None,
                due,
                request: Some(request),
                owner,
            }));
            let mut sending = self.sending.lock();
            sending.answers.retain(|other| other.strong_count() > 0);
            sending.answers.push(Arc::downgrade(&shared));
            // Without a deadline, a response cannot be stalled before those present at the last check.
            let is_sooner = |at| due.is_some_and(|due| due < at);
            if sending.next_look.is_none_or(is_sooner) {
                self.sooner.notify_one();
            }
            drop(sending);
            body::streaming(HyperBody {
                shared,
                answers: self,
                carrier,
            })
        })
    }

    pub(super) fn take_results(&self) -> PollResults {
        std::mem::take(&mut self.results.lock())
    }

    pub(super) fn are_any(&self) -> bool {
        let sending = self.sending.lock();
        sending.answers.iter().any(|answer| answer.strong_count() > 0)
    }

    /// Drops stalled responses, and never returns. A healthy response is checked once per `patience`.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            match self.give_up() {
                None => self.sooner.notified().await,
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.sooner.notified()).await;
                }
            }
        }
    }

    /// Drops stalled responses. Returns the time of the next check, if any response is being sent.
    fn give_up(&self) -> Option<Instant> {
        let now = Instant::now();
        let (mut given_up, mut next_look) = (Vec::new(), None::<Instant>);
        let mut sending = self.sending.lock();
        sending.answers.retain(|shared| {
            let Some(shared) = shared.upgrade() else {
                return false;
            };
            let mut shared = shared.lock();
            let at = shared.stuck_at(now, self.patience);
            if at <= now {
                given_up.push((shared.body.take(), shared.request.take()));
            } else {
                next_look = Some(next_look.map_or(at, |next| next.min(at)));
            }
            shared.request.is_some()
        });
        sending.next_look = next_look;
        drop(sending);
        // Dropped without locks held: this frees the worker and admits the next request.
        drop(given_up);
        next_look
    }
}

/// Encoding of the response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// HTTP/1.1: chunked, unless the response has a length.
    Chunks,
    /// HTTP/1 without chunks: HTTP/1.0, and responses to `HEAD`.
    Plain,
    /// HTTP/2: one task sends one response.
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

/// A response's body, which hyper and the fast path poll in turn.
#[derive(Debug)]
pub(super) struct SharedBody {
    /// Body of the response; `None` once it was dropped.
    pub(super) body: Option<Body>,
    /// Time at which the last frame was taken; `None` before the first, and while the next one is awaited.
    pub(super) taken_at: Option<Instant>,
    due: Option<Instant>,
    /// Open request, until hyper drops the response or it is dropped as stalled.
    request: Option<OpenRequest>,
    pub(super) owner: FrameOwner,
}

#[derive(Debug, Default)]
pub(super) struct PollResults {
    /// Response that hyper waits for and that may use the fast path.
    pub(super) offer: Option<Arc<Mutex<SharedBody>>>,
    /// Body that hyper has finished. It is dropped after hyper has written, because dropping it does work.
    whole: Option<Body>,
}

impl SharedBody {
    /// Returns the time at which the response stalls without further polls; while its next frame is awaited, the
    /// earliest such time.
    fn stuck_at(&self, now: Instant, patience: Duration) -> Instant {
        let silent = self.taken_at.unwrap_or(now) + patience;
        let due = self.due.map(|due| match self.taken_at {
            None if due <= now => now + LOOK,
            _ => due,
        });
        due.map_or(silent, |due| due.min(silent))
    }
}

/// The part that polls the frames of a body.
#[derive(Debug)]
pub(super) enum FrameOwner {
    Hyper,
    /// hyper polls; while it waits, the fast path may take over.
    Offered,
    /// The fast path polls; hyper waits.
    FastPath,
    /// hyper polls again, beginning with a result that the fast path could not write.
    Left(PolledFrame),
    /// The body is complete.
    Over,
}

impl FrameOwner {
    /// Returns the initial state: only responses that hyper sends in chunks may use the fast path.
    fn of(answer: &Response<Body>, carrier: Carrier) -> Self {
        let is_chunked = carrier == Carrier::Chunks
            && answer.status() == StatusCode::OK
            && !answer.headers().contains_key(CONTENT_LENGTH)
            && answer.body().size_hint().exact().is_none();
        if is_chunked { Self::Offered } else { Self::Hyper }
    }
}

/// A response's body as hyper polls it.
struct HyperBody {
    shared: Arc<Mutex<SharedBody>>,
    answers: Arc<Answers>,
    carrier: Carrier,
}

impl HttpBody for HyperBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let mut shared = self.shared.lock();
        match std::mem::replace(&mut shared.owner, FrameOwner::Offered) {
            FrameOwner::Hyper => shared.owner = FrameOwner::Hyper,
            FrameOwner::Offered => {}
            FrameOwner::FastPath => {
                shared.owner = FrameOwner::FastPath;
                return Poll::Pending;
            }
            FrameOwner::Left(frame) => return Poll::Ready(frame),
            FrameOwner::Over => {
                shared.owner = FrameOwner::Over;
                return Poll::Ready(None);
            }
        }
        let Some(body) = &mut shared.body else {
            return Poll::Ready(Some(Err("the client did not read it in time".into())));
        };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        let is_last = body.is_end_stream() || matches!(polled, Poll::Ready(None));
        shared.taken_at = polled.is_ready().then(Instant::now);
        if is_last && polled.is_ready() && self.carrier == Carrier::Streams {
            // hyper keeps the response until the client's window has room for its end, which may never happen.
            shared.owner = FrameOwner::Over;
            let body = shared.body.take();
            drop(shared);
            drop(body);
            return polled;
        }
        if polled.is_pending() && matches!(shared.owner, FrameOwner::Offered) {
            self.answers.results.lock().offer = Some(Arc::clone(&self.shared));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let shared = self.shared.lock();
        match shared.owner {
            FrameOwner::Left(_) => false,
            FrameOwner::Over => true,
            _ => shared.body.as_ref().is_some_and(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.shared
            .lock()
            .body
            .as_ref()
            .map_or_else(SizeHint::new, Body::size_hint)
    }
}

impl Drop for HyperBody {
    /// Closes the request, because hyper has dropped the response.
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        let (body, _request) = (shared.body.take(), shared.request.take());
        drop(shared);
        if self.carrier != Carrier::Streams {
            let before = std::mem::replace(&mut self.answers.results.lock().whole, body);
            drop(before);
        }
    }
}

#[cfg(test)]
mod tests;

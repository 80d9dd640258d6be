//! Answers of which the client takes nothing.
//!
//! Who does not read is not asked for more: hyper polls an answer only when there is room for its next frame, so nothing
//! within the answer can notice that its time is up, and a worker would be held for as long as the client likes. In
//! HTTP/2 that goes for each stream, while the connection is well. So each connection looks from outside at the answers
//! that it is sending: one whose last frame was handed out, and no other asked for, for `limits.idle_timeout_s` or past
//! its request's deadline, is dropped, and with it all that is behind it. Its client gets an error where it reads on.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::body::{self, Body, BodyError};
use crate::path::Due;

/// Longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// The answers that a connection is sending.
#[derive(Debug)]
pub(super) struct Answers {
    patience: Duration,
    sending: Mutex<Vec<Weak<Mutex<Held>>>>,
    one_more: Notify,
}

/// An answer on its way.
#[derive(Debug)]
struct Held {
    /// `None` once it was given up.
    body: Option<Body>,
    /// When its last frame was handed out, if no other was asked for since.
    handed_out: Option<Instant>,
    /// When all of it has to be there.
    due: Option<Instant>,
}

impl Held {
    fn is_stuck(&self, now: Instant, patience: Duration) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        self.handed_out.is_some_and(|at| is_due || at + patience <= now)
    }
}

impl Answers {
    /// None yet. A client may take nothing of one for so long.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            sending: Mutex::default(),
            one_more: Notify::new(),
        }
    }

    /// An answer that is going to be sent.
    pub(super) fn send(&self, mut answer: Response<Body>) -> Response<Body> {
        if answer.body().is_end_stream() {
            return answer;
        }
        let due = answer.extensions_mut().remove::<Due>().map(|due| due.0);
        answer.map(|body| {
            let held = Arc::new(Mutex::new(Held {
                body: Some(body),
                handed_out: None,
                due,
            }));
            let mut sending = self.sending.lock();
            sending.retain(|other| other.strong_count() > 0);
            sending.push(Arc::downgrade(&held));
            drop(sending);
            self.one_more.notify_one();
            body::streaming(Watched(held))
        })
    }

    /// Gives up those that are stuck, for ever.
    pub(super) async fn watch(&self) -> Infallible {
        loop {
            if !self.give_up() {
                self.one_more.notified().await;
            }
            tokio::time::sleep((self.patience / 4).min(LOOK)).await;
        }
    }

    /// Gives up those that are stuck. Returns whether any is being sent.
    fn give_up(&self) -> bool {
        let now = Instant::now();
        let mut given_up = Vec::new();
        let mut sending = self.sending.lock();
        sending.retain(|held| {
            let Some(held) = held.upgrade() else { return false };
            let mut held = held.lock();
            if held.is_stuck(now, self.patience) {
                given_up.extend(held.body.take());
            }
            held.body.is_some()
        });
        let any = !sending.is_empty();
        drop(sending);
        // Here, and not while anything is locked: it frees the worker, and lets the next request in.
        drop(given_up);
        any
    }
}

/// An answer as hyper sees it.
struct Watched(Arc<Mutex<Held>>);

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut held = self.0.lock();
        let Some(body) = &mut held.body else {
            return Poll::Ready(Some(Err("the client did not read it in time".into())));
        };
        let polled = Pin::new(body).poll_frame(cx);
        held.handed_out = polled.is_ready().then(Instant::now);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .lock()
            .body
            .as_ref()
            .map_or_else(SizeHint::new, Body::size_hint)
    }
}

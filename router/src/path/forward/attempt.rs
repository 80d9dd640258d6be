//! One attempt to have a turn answered by one worker, and what its end means.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

use super::super::context::RequestContext;
use super::super::flight::{Charged, Flight, Outcome};
use super::super::retry::{self, Failure};
use super::super::select::Choice;
use super::{TurnRequest, request};
use crate::app::App;
use crate::decisions;
use fleet::Worker;
use fleet::breaker::BreakerPass;
use fleet::health::Probe;
use protocol::error::ApiError;
use tailroute_http::body::BodyError;
use tailroute_http::upstream::{self, Reply};
use telemetry::traces::AttemptSpan;

/// A turn that was sent to a worker. Dropping it cancels it there at once.
pub(super) struct Sent {
    flight: Box<Flight>,
    reply: Reply,
    /// The head of the answer, while its first piece is waited for.
    head: Option<Response<upstream::Answer>>,
    sequence: u64,
    /// The terms of the choice, if they were asked for.
    explained: Option<HeaderValue>,
    /// The head of the answer has to be there.
    until: Instant,
    limit: Duration,
    /// An answer counts as there when its first piece is, not when its head is.
    peeks: bool,
    span: AttemptSpan,
}

/// What came of waiting.
pub(super) enum Head {
    /// The head of an answer, and its first piece if that was waited for.
    Answer(Response<upstream::Answer>, Option<Frame<Bytes>>),
    /// No head.
    Lost(upstream::Error),
    /// A head, and then nothing.
    Broke(BodyError),
    /// Nothing in time.
    Late,
}

impl Head {
    /// Whether it is an answer that can be passed on, rather than a worker that failed or would not.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Answer(response, _) if Failure::of_status(response.status()).is_none())
    }
}

/// An answer that goes to the client.
pub(super) struct Answer {
    pub(super) response: Response<upstream::Answer>,
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) flight: Box<Flight>,
    pub(super) sequence: u64,
    pub(super) explained: Option<HeaderValue>,
    pub(super) span: AttemptSpan,
}

/// What an attempt's end means.
pub(super) enum Verdict {
    /// There is an answer.
    Answer(Box<Answer>),
    /// It is tried elsewhere, which has been paid for.
    Again(&'static str),
    /// The client is told so; the request has been counted.
    Failed(ApiError),
    /// The same, of a request that reached no worker.
    NotReached(ApiError),
}

impl Sent {
    /// Sends a turn to the worker that was chosen.
    ///
    /// # Errors
    /// If no request can be made for it.
    pub(super) fn start(
        request: &TurnRequest<'_>,
        choice: &Choice,
        pass: BreakerPass,
        charged: &Charged,
    ) -> Result<Self, ApiError> {
        let TurnRequest {
            context, head, turn, ..
        } = *request;
        let app = context.app;
        // First: from here on the breaker's pass is held by a guard.
        let mut flight = Flight::start(app, turn, choice, pass, Arc::clone(charged));
        let outgoing = request::turn_request(app, head, request.body.clone(), turn, choice);
        let mut outgoing = match outgoing {
            Ok(outgoing) => outgoing,
            Err(error) => {
                warn!(worker = choice.worker.name(), %error, "cannot build the worker's request");
                flight.end(Outcome::NotReached);
                return Err(ApiError::WorkerFailed);
            }
        };
        let span = context.trace.attempt(choice, outgoing.headers_mut());
        flight.traced(span.note());
        let limit = app.live().limits.first_byte_timeout;
        let until = Instant::now() + limit;
        Ok(Self {
            flight,
            span,
            reply: app.send(&choice.worker, outgoing),
            head: None,
            sequence: choice.decision.sequence,
            explained: turn
                .explain
                .then(|| decisions::view::header(app, &choice.decision))
                .flatten(),
            until: context.deadline.head().map_or(until, |head| head.min(until)),
            limit,
            peeks: app.config.failure.hedge_after.is_some(),
        })
    }

    pub(super) fn worker_name(&self) -> Arc<str> {
        self.flight.worker().name().into()
    }

    /// Waits for the head of the answer.
    pub(super) async fn wait(mut self) -> (Self, Head) {
        let head = self.head().await;
        (self, head)
    }

    /// The same; may be given up and taken up again.
    pub(super) async fn head(&mut self) -> Head {
        let mut answer = pin!(answer(&mut self.reply, &mut self.head, self.peeks));
        let sent_first = poll_fn(|cx| {
            let answered = answer.as_mut().poll(cx);
            self.flight.is_out();
            answered
        });
        timeout_at(self.until, sent_first).await.unwrap_or(Head::Late)
    }

    /// Another worker was faster: this one is told to stop, by hanging up.
    pub(super) fn outrun(self) {
        self.span.end(Outcome::Outrun.as_str(), None);
        self.flight.end(Outcome::Outrun);
    }

    /// Decides what becomes of the request. `may_retry` is asked where the attempt failed, and pays for a retry.
    pub(super) fn judge(
        self,
        request: &TurnRequest<'_>,
        head: Head,
        mut may_retry: impl FnMut(Failure) -> bool,
    ) -> Verdict {
        let RequestContext { app, deadline, .. } = *request.context;
        let late = Instant::now() >= self.until;
        match head {
            Head::Answer(response, first) => match Failure::of_status(response.status()) {
                Some(failure) if may_retry(failure) => {
                    self.lost(failure, Outcome::NotReached);
                    Verdict::Again("the worker refused the request")
                }
                _ => Verdict::Answer(Box::new(Answer {
                    response,
                    first,
                    flight: self.flight,
                    sequence: self.sequence,
                    explained: self.explained,
                    span: self.span,
                })),
            },
            Head::Lost(error) => {
                let failure = Failure::of(&error);
                note(app, self.flight.worker(), &error, failure);
                self.broke(failure, may_retry(failure))
            }
            Head::Broke(error) => {
                let worker = &*self.worker_name();
                warn!(worker, %error, "the response ended before its first byte");
                self.broke(Failure::Lost, may_retry(Failure::Lost))
            }
            // The request's own deadline passed, whatever the worker does.
            Head::Late if late && deadline.head().is_some_and(|at| at <= self.until) => {
                let worker = &*self.worker_name();
                debug!(worker, "no response before the request's deadline");
                self.lost(Failure::DeadlinePassed, Outcome::Deadline);
                Verdict::Failed(deadline.exceeded())
            }
            Head::Late => {
                let (worker, limit) = (&*self.worker_name(), self.limit);
                warn!(worker, limit_s = limit.as_secs_f64(), "the worker timed out");
                self.lost(Failure::TimedOut, Outcome::WorkerError);
                Verdict::Failed(ApiError::WorkerTimeout(limit))
            }
        }
    }

    /// The connection was not there, or broke.
    fn broke(self, failure: Failure, again: bool) -> Verdict {
        let begun = failure.may_have_begun();
        self.lost(
            failure,
            if begun && !again {
                Outcome::WorkerError
            } else {
                Outcome::NotReached
            },
        );
        match (again, begun) {
            (true, _) => Verdict::Again("the connection was lost"),
            (false, true) => Verdict::Failed(ApiError::WorkerFailed),
            (false, false) => Verdict::NotReached(ApiError::WorkerFailed),
        }
    }

    /// Ends an attempt that brought no answer for the client.
    fn lost(mut self, failure: Failure, outcome: Outcome) {
        if failure.is_the_workers() {
            self.flight.charge();
        }
        let begun = failure == Failure::Lost;
        let span = if begun { Outcome::WorkerError } else { outcome };
        self.span.end(span.as_str(), None);
        self.flight.end(outcome);
    }
}

async fn answer(reply: &mut Reply, head: &mut Option<Response<upstream::Answer>>, peeks: bool) -> Head {
    let mut response = match head.take() {
        Some(response) => response,
        None => match reply.await {
            Ok(response) => response,
            Err(error) => return Head::Lost(error),
        },
    };
    if !peeks || !response.status().is_success() {
        return Head::Answer(response, None);
    }
    // Kept outside while it waits, so that it is not lost if the waiting is given up.
    match head.insert(response).frame().await {
        Some(Err(error)) => Head::Broke(error),
        first => match head.take() {
            Some(whole) => {
                response = whole;
                Head::Answer(response, first.and_then(Result::ok))
            }
            None => Head::Late,
        },
    }
}

/// Logs why no answer came. A connection that did not come up counts as a failed probe.
pub(super) fn note(app: &App, worker: &Worker, error: &upstream::Error, failure: Failure) {
    match failure {
        Failure::NoConnection => {
            debug!(worker = worker.name(), %error, "no connection");
            let is_busy = retry::is_slow_to_connect(error) && worker.with_load(|load| load.in_flight > 1);
            app.note_health(worker, if is_busy { Probe::Late } else { Probe::Bad });
        }
        Failure::Unsent => debug!(worker = worker.name(), %error, "not sent"),
        _ => warn!(worker = worker.name(), %error, "no answer"),
    }
}

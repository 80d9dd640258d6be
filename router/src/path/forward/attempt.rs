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

use super::super::choose::Choice;
use super::super::learn::{Charged, Flight, Outcome};
use super::begun::{self, Lost};
use super::{Errand, request};
use crate::app::App;
use crate::decisions;
use crate::error::ApiError;
use crate::fleet::Worker;
use crate::fleet::breaker::Pass;
use crate::fleet::health::Probe;
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
        matches!(self, Self::Answer(response, _) if !begun::declines(response.status()))
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
        errand: &Errand<'_>,
        choice: &Choice,
        pass: Pass,
        charged: &Charged,
    ) -> Result<Self, ApiError> {
        let Errand { app, head, turn, .. } = *errand;
        // First of all: from here on the breaker's pass is held by a guard.
        let mut flight = Flight::start(app, turn, choice, pass, Arc::clone(charged));
        let request = request::turn_request(app, head, errand.body.clone(), turn, choice);
        let mut request = match request {
            Ok(request) => request,
            Err(error) => {
                warn!(worker = choice.worker.name(), %error, "no request could be made for it");
                flight.not_reached();
                return Err(ApiError::WorkerFailed);
            }
        };
        let span = errand.trace.attempt(choice, request.headers_mut());
        flight.traced(span.note());
        let limit = app.live().limits.first_byte_timeout;
        let until = Instant::now() + limit;
        Ok(Self {
            flight,
            span,
            reply: app.send(&choice.worker, request),
            head: None,
            sequence: choice.decision.sequence,
            explained: turn
                .explain
                .then(|| decisions::view::header(app, &choice.decision))
                .flatten(),
            until: errand.deadline.head().map_or(until, |head| head.min(until)),
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
        self.flight.end(Outcome::Outrun, None, false);
    }

    /// What the end means. `has_alternative`: a worker is in use that was not asked. `may_retry` is asked, with whether a
    /// retry can do no harm, where one would help; it pays.
    pub(super) fn judge(
        self,
        errand: &Errand<'_>,
        head: Head,
        has_alternative: bool,
        mut may_retry: impl FnMut(bool) -> bool,
    ) -> Verdict {
        let name = self.worker_name();
        let late = Instant::now() >= self.until;
        let Self {
            mut flight,
            sequence,
            explained,
            limit,
            span,
            ..
        } = self;
        let request = errand.head;
        let idempotent = || begun::is_idempotent(&request.method, request.uri.path(), &request.headers);
        match head {
            Head::Answer(response, first) => {
                // What one worker declines is not for those that fail by themselves.
                if begun::declines(response.status()) && has_alternative && may_retry(true) {
                    if begun::is_failure(response.status()) {
                        flight.charge();
                    }
                    span.end(Outcome::NotReached.as_str(), None);
                    flight.not_reached();
                    return Verdict::Again("it does not take the request");
                }
                Verdict::Answer(Box::new(Answer {
                    response,
                    first,
                    flight,
                    sequence,
                    explained,
                    span,
                }))
            }
            Head::Lost(error) => {
                let lost = Lost::of(&error);
                note(errand.app, flight.worker(), &error, lost);
                let harmless = lost != Lost::MayHaveBegun || idempotent();
                lost_one((flight, &span), lost, may_retry(harmless))
            }
            Head::Broke(error) => {
                warn!(worker = &*name, %error, "the answer broke off before its first byte");
                lost_one((flight, &span), Lost::MayHaveBegun, may_retry(idempotent()))
            }
            // The request's own time is up, whatever the worker does.
            Head::Late if late && errand.deadline.head().is_some_and(|at| at <= self.until) => {
                debug!(worker = &*name, "no answer before the request's deadline");
                span.end(Outcome::Deadline.as_str(), None);
                flight.end(Outcome::Deadline, None, false);
                Verdict::Failed(errand.deadline.exceeded())
            }
            Head::Late => {
                warn!(
                    worker = &*name,
                    limit_s = limit.as_secs_f64(),
                    "no answer in time"
                );
                span.end(Outcome::WorkerError.as_str(), None);
                flight.end(Outcome::WorkerError, None, false);
                Verdict::Failed(ApiError::WorkerTimeout(limit))
            }
        }
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

fn lost_one((flight, span): (Box<Flight>, &AttemptSpan), lost: Lost, again: bool) -> Verdict {
    let outcome = if lost == Lost::MayHaveBegun {
        Outcome::WorkerError
    } else {
        Outcome::NotReached
    };
    span.end(outcome.as_str(), None);
    if lost != Lost::MayHaveBegun {
        flight.not_reached();
    } else if again {
        let mut flight = flight;
        flight.charge();
        flight.not_reached();
    } else {
        flight.end(Outcome::WorkerError, None, false);
    }
    match (again, lost) {
        (true, _) => Verdict::Again("it was lost on the way"),
        (false, Lost::MayHaveBegun) => Verdict::Failed(ApiError::WorkerFailed),
        (false, _) => Verdict::NotReached(ApiError::WorkerFailed),
    }
}

/// Says in the log what was lost, and learns from a connection that did not come up.
pub(super) fn note(app: &App, worker: &Worker, error: &upstream::Error, lost: Lost) {
    match lost {
        Lost::NoConnection => {
            debug!(worker = worker.name(), %error, "no connection");
            let is_busy = begun::is_slow_to_connect(error) && worker.with_load(|load| load.in_flight > 1);
            app.note_health(worker, if is_busy { Probe::Late } else { Probe::Bad });
        }
        Lost::Unsent => debug!(worker = worker.name(), %error, "not sent"),
        Lost::MayHaveBegun => warn!(worker = worker.name(), %error, "no answer"),
    }
}

//! One attempt to answer a turn, and what follows from its result.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use super::super::context::RequestContext;
use super::super::flight::{AttemptEnd, AttemptOutcome, Flight};
use super::super::retry::{self, Charged, Failure};
use super::super::select::Choice;
use super::super::watchdog::Overrun;
use super::TurnRequest;
use crate::decisions;
use fleet::Worker;
use fleet::breaker::BreakerPass;
use fleet::health::Probe;
use protocol::error::ApiError;
use protocol::lacks_model::lacks_model;
use protocol::verdict::Verdict;
use state::State;
use tailroute_http::body::BodyError;
use tailroute_http::upstream::{self, PendingResponse};

/// Longest time that the head of a response is held back for its first piece. A worker that refuses a request or fails
/// at once says so in this time, and the request may be sent elsewhere. A stream that takes longer has begun.
const REFUSAL: Duration = Duration::from_millis(100);
/// Longest wait for the body of a 503 or 404, which says whether the worker declined or lacks the model.
pub(super) const REASON: Duration = Duration::from_secs(1);

/// A turn sent to a worker. Dropping it cancels the request.
pub(super) struct PendingTurn {
    flight: Box<Flight>,
    reply: PendingResponse,
    /// The response head, while its first piece is awaited.
    head: Option<Response<upstream::ResponseBody>>,
    sequence: u64,
    explained: Option<HeaderValue>,
    since: Instant,
    until: Instant,
    limit: Duration,
    /// Whether a response counts as started at its first piece, rather than at its head.
    peeks: bool,
}

#[expect(clippy::large_enum_variant, reason = "nearly every head is an answer")]
pub(super) enum Head {
    /// The response head, its first piece if that was awaited, and the verdict on them.
    Answer(Response<upstream::ResponseBody>, Option<Frame<Bytes>>, Verdict),
    /// The connection failed before a head arrived.
    Lost(upstream::Error),
    /// The body failed before its first piece.
    Broke(BodyError),
    /// The time limit passed.
    Late,
}

impl Head {
    /// Returns whether the head is of a response to relay, rather than of a failure or refusal.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Answer(response, _, verdict)
            if Failure::of_answer(response.status(), *verdict).is_none())
    }

    /// Returns the kind of a 404; `None` for anything else.
    pub(super) fn not_found(&self) -> Option<NotFound> {
        let Self::Answer(response, first, _) = self else {
            return None;
        };
        let body = first.as_ref().and_then(Frame::data_ref);
        (response.status() == StatusCode::NOT_FOUND).then(|| match body {
            Some(body) if lacks_model(body) => NotFound::Denied,
            _ => NotFound::Unsaid,
        })
    }
}

/// The meaning of a 404 for the requested model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotFound {
    /// The worker lacks the model.
    Denied,
    /// The response does not say what is missing.
    Unsaid,
}

pub(super) struct AttemptResponse {
    pub(super) response: Response<upstream::ResponseBody>,
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) verdict: Verdict,
    pub(super) flight: Box<Flight>,
    pub(super) sequence: u64,
    pub(super) explained: Option<HeaderValue>,
    pub(super) sent: Instant,
}

pub(super) enum AttemptResult {
    /// The response is relayed.
    Answer(Box<AttemptResponse>),
    /// The request is retried on another worker. The retry budget was charged.
    Again(Failure),
    /// The client gets this error. The request was counted.
    Failed(ApiError),
    /// The client gets this error. The request reached no worker.
    NotReached(ApiError),
}

impl PendingTurn {
    /// Sends a turn to the chosen worker. Fails if the request cannot be built.
    pub(super) fn start(
        request: &TurnRequest<'_>,
        choice: &Choice,
        pass: BreakerPass,
        charged: &Charged,
    ) -> Result<Self, ApiError> {
        let TurnRequest {
            context, head, turn, ..
        } = *request;
        let proxy = context.proxy;
        let flight = Flight::start(proxy, context.trace, turn, choice, pass, Arc::clone(charged));
        let (flight, outgoing) = flight.request(head, request.body.clone(), choice)?;
        let limit = proxy.state.routing.live().limits.first_byte_timeout;
        let since = Instant::now();
        let until = since + limit;
        Ok(Self {
            since,
            flight,
            reply: proxy.send(&choice.worker, outgoing),
            head: None,
            sequence: choice.decision.sequence,
            explained: turn
                .explain
                .then(|| decisions::view::header(&proxy.state.routing, &choice.decision))
                .flatten(),
            until: context.deadline.head().map_or(until, |head| head.min(until)),
            limit,
            peeks: proxy.state.config.failure.hedge_after.is_some(),
        })
    }

    pub(super) fn worker_name(&self) -> Arc<str> {
        self.worker().name().into()
    }

    pub(super) fn worker(&self) -> &Arc<Worker> {
        self.flight.worker()
    }

    /// Waits for the response head. Cancel safe.
    pub(super) async fn head(&mut self) -> Head {
        let mut answer = pin!(answer(&mut self.reply, &mut self.head, self.peeks));
        let sent_first = poll_fn(|cx| {
            let answered = answer.as_mut().poll(cx);
            self.flight.mark_sent();
            answered
        });
        timeout_at(self.until, sent_first).await.unwrap_or(Head::Late)
    }

    /// Cancels the attempt. Another worker was faster.
    pub(super) fn outrun(self) {
        self.flight.end(AttemptOutcome::Outrun);
    }

    /// Decides how the request proceeds. `may_retry` is called if the attempt failed, and charges the retry budget.
    pub(super) fn judge(
        mut self,
        request: &TurnRequest<'_>,
        head: Head,
        mut may_retry: impl FnMut(Failure) -> bool,
    ) -> AttemptResult {
        let RequestContext { proxy, deadline, .. } = *request.context;
        let late = Instant::now() >= self.until;
        match head {
            Head::Answer(response, first, verdict) => {
                let status = response.status();
                match Failure::of_answer(status, verdict) {
                    Some(failure) if may_retry(failure) => {
                        self.lost(failure, AttemptOutcome::NotReached);
                        AttemptResult::Again(failure)
                    }
                    // No stream begins with a refusal.
                    Some(failure @ Failure::Declined(_)) if status.is_success() => {
                        self.lost(failure, AttemptOutcome::of(status, verdict));
                        AttemptResult::Failed(ApiError::WorkersBusy)
                    }
                    _ => AttemptResult::Answer(Box::new(self.answered(response, first, verdict))),
                }
            }
            Head::Lost(error) => {
                let failure = Failure::of(&error);
                note(&proxy.state, self.flight.worker(), &error, failure);
                self.fail(failure, may_retry(failure))
            }
            Head::Broke(error) => {
                self.flight
                    .log_failure(&error, "the response ended before its first byte");
                self.fail(Failure::Lost, may_retry(Failure::Lost))
            }
            // The request's own deadline passed.
            Head::Late if late && deadline.head().is_some_and(|at| at <= self.until) => {
                let worker = &*self.worker_name();
                debug!(worker, "no response before the request's deadline");
                self.lost(Failure::DeadlinePassed, AttemptOutcome::Deadline);
                AttemptResult::Failed(deadline.exceeded())
            }
            Head::Late => {
                let limit = self.limit;
                let error = format_args!("no response within {} s", limit.as_secs_f64());
                self.flight.log_failure(&error, "the worker timed out");
                self.flight.spare_if_busy(Overrun::NotBegun(limit));
                self.lost(Failure::TimedOut, AttemptOutcome::WorkerError);
                AttemptResult::Failed(ApiError::WorkerTimeout(limit))
            }
        }
    }

    fn answered(
        self,
        response: Response<upstream::ResponseBody>,
        first: Option<Frame<Bytes>>,
        verdict: Verdict,
    ) -> AttemptResponse {
        AttemptResponse {
            response,
            first,
            verdict,
            flight: self.flight,
            sequence: self.sequence,
            explained: self.explained,
            sent: self.since,
        }
    }

    fn fail(self, failure: Failure, again: bool) -> AttemptResult {
        let begun = failure.may_have_begun();
        self.lost(
            failure,
            if begun && !again {
                AttemptOutcome::WorkerError
            } else {
                AttemptOutcome::NotReached
            },
        );
        match (again, begun) {
            (true, _) => AttemptResult::Again(failure),
            (false, true) => AttemptResult::Failed(ApiError::WorkerFailed),
            (false, false) => AttemptResult::NotReached(ApiError::WorkerFailed),
        }
    }

    /// Ends an attempt without a response to relay.
    fn lost(mut self, failure: Failure, outcome: AttemptOutcome) {
        let of_attempt = match failure {
            Failure::Lost => Some(AttemptOutcome::WorkerError),
            Failure::ErrorInBody => Some(AttemptOutcome::ErrorInBody),
            _ => None,
        };
        match failure {
            Failure::Declined(push_back) => self.flight.declined(push_back),
            failure if failure.is_the_workers() => self.flight.charge(),
            _ => {}
        }
        self.flight.end(AttemptEnd {
            of_attempt,
            ..outcome.into()
        });
    }
}

async fn answer(
    reply: &mut PendingResponse,
    head: &mut Option<Response<upstream::ResponseBody>>,
    peeks: bool,
) -> Head {
    let response = match head.take() {
        Some(response) => response,
        None => match reply.await {
            Ok(response) => response,
            Err(error) => return Head::Lost(error),
        },
    };
    let status = response.status();
    let by_head = Verdict::of_head(status, response.headers());
    // The body of a 404 says what was not found.
    let reads_on = status == StatusCode::NOT_FOUND || (peeks && status.is_success());
    if let Some(verdict) = by_head.filter(|_| !reads_on) {
        return Head::Answer(response, None, verdict);
    }
    // Stored in `head` while it waits, so that cancellation does not lose it.
    let first = head.insert(response).frame();
    let first = match (peeks, status.is_success()) {
        (true, true) => first.await,
        (false, true) => timeout(REFUSAL, first).await.unwrap_or(None),
        (_, false) => timeout(REASON, first).await.unwrap_or(None),
    };
    match (first, head.take()) {
        (Some(Err(error)), _) if status.is_success() => Head::Broke(error),
        (first, Some(response)) => {
            let first = first.and_then(Result::ok);
            let body = first
                .as_ref()
                .and_then(Frame::data_ref)
                .map_or(&b""[..], |data| &data[..]);
            let verdict = by_head.unwrap_or_else(|| Verdict::of_body(status, response.headers(), body));
            Head::Answer(response, first, verdict)
        }
        (_, None) => Head::Late,
    }
}

/// Logs why no response came. A failed connection counts as a failed probe, or as a late one if it timed out on a busy
/// worker.
pub(in crate::path) fn note(state: &State, worker: &Worker, error: &upstream::Error, failure: Failure) {
    match failure {
        Failure::NoConnection => {
            if worker.unreachable.is_due(state.routing.clock.now()) {
                warn!(worker = worker.name(), url = %worker.spec.url, %error, "cannot connect to the worker");
            }
            debug!(worker = worker.name(), %error, "no connection");
            let is_busy = retry::is_slow_to_connect(error) && worker.with_load(|load| load.in_flight > 1);
            state.note_health(worker, if is_busy { Probe::Late } else { Probe::Bad });
        }
        Failure::Unsent => debug!(worker = worker.name(), %error, "not sent"),
        _ => state.routing.log_failure(worker, error, "no answer"),
    }
}

#[cfg(test)]
mod tests;

//! To a worker and back: the same bytes out, the answer streamed through, another worker while that can do no harm.
//!
//! | file | contents |
//! |---|---|
//! | `request` | a turn as it goes out: the client's bytes, and what the router adds |
//! | `attempt` | one attempt on one worker, and what its end means |
//! | `deadline` | how long a request may take |
//! | `hedge` | a second worker beside one that is late |
//! | `pass` | requests that pass unread |

mod attempt;
mod deadline;
mod hedge;
pub(crate) mod pass;
mod request;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use policy::ids::WorkerId;
use tracing::warn;

use self::attempt::{Answer, Sent, Verdict};
pub use self::deadline::Deadline;
pub use self::pass::Wanted;
pub(crate) use self::pass::pass;
pub(crate) use self::request::turn_request;
use super::context::RequestContext;
use super::flight::{Flight, Outcome};
use super::retry::{self, RetryState};
use super::select::{self, Choice};
use super::tap::Tap;
use super::turn::Turn;
use super::watchdog::Watchdog;
use crate::app::{App, RequestPermit};
use fleet::Worker;
use fleet::breaker::BreakerPass;
use protocol::error::ApiError;
use protocol::headers;
use protocol::watch::Watch;
use tailroute_http::body::Body;

/// A turn to be answered by some worker.
#[derive(Clone, Copy)]
pub(crate) struct TurnRequest<'a> {
    /// What every stage knows of it.
    pub(crate) context: &'a RequestContext<'a>,
    /// The client's request head.
    pub(crate) head: &'a Parts,
    /// The request body as engines get it.
    pub(crate) body: &'a Bytes,
    /// The turn.
    pub(crate) turn: &'a Arc<Turn>,
}

/// Sends a turn until a worker takes it, as far as the [retry policy](super::retry) allows. Returns the answer, whose
/// body is still on its way.
///
/// # Errors
/// If no worker is ready or none is reached. A worker that fails on it, and a deadline that passes, are answers.
pub(crate) async fn deliver(
    request: TurnRequest<'_>,
    place: &mut Option<RequestPermit>,
) -> Result<Response<Body>, ApiError> {
    let app = request.context.app;
    let mut state = RetryState::new(app);
    loop {
        let (choice, pass) = select_admitted(app, request.turn, &mut state.tried)?;
        let (has_alternative, may_go_elsewhere) = (choice.has_alternative(), choice.may_go_elsewhere);
        let sent = Sent::start(&request, &choice, pass, &state.charged)?;
        if let Some(place) = place {
            place.sent();
        }
        state.tried.push(choice.worker.id);
        let (sent, head) = match app.config.failure.hedge_after {
            // Boxed, as few configurations hedge: the common future has no room for a second attempt.
            Some(after) if has_alternative => Box::pin(hedge::race(&request, sent, after, &mut state)).await,
            _ => sent.wait().await,
        };
        let worker = sent.worker_name();
        let verdict = sent.judge(&request, head, |failure| {
            // What one worker declines does not go to those that fail by themselves.
            let has_other = may_go_elsewhere && (has_alternative || !failure.is_declined());
            state.may_retry(app, failure, request.head, || has_other)
        });
        match verdict {
            Verdict::Answer(answer) => return Ok(answered(&request, *answer, place.take())),
            Verdict::Again(why) => {
                warn!(worker = &*worker, why, "trying another worker");
                app.metrics.retry(&worker);
            }
            Verdict::Failed(error) => {
                if matches!(error, ApiError::DeadlineExceeded(_)) {
                    // The worker may have computed until then: the key pays.
                    drop(place.take());
                }
                return Ok(error.response_for(request.turn.endpoint.family()));
            }
            Verdict::NotReached(error) => return Err(error),
        }
    }
}

/// Chooses a worker that was not tried, and gets past its breaker.
///
/// # Errors
/// If no worker is ready.
pub(crate) fn select_admitted(
    app: &App,
    turn: &Turn,
    tried: &mut Vec<WorkerId>,
) -> Result<(Choice, BreakerPass), ApiError> {
    let attempts = tried.len();
    let mut turned_away: Option<Choice> = None;
    loop {
        let choice = match select::select(app, turn, tried) {
            Ok(choice) => choice,
            Err(error) => {
                // All others are being probed by another request: one of them is better than none.
                tried.truncate(attempts);
                let choice = turned_away.ok_or(error)?;
                let pass = choice.worker.admit(app.clock.now(), true);
                return pass.map(|pass| (choice, pass)).ok_or(ApiError::NoWorkerReady);
            }
        };
        if let Some(pass) = choice.worker.admit(app.clock.now(), choice.regardless) {
            return Ok((choice, pass));
        }
        // Another request has just begun to probe this worker.
        tried.push(choice.worker.id);
        turned_away.get_or_insert(choice);
    }
}

/// The outcome that an answer's status means, if all of it passes.
pub(crate) fn outcome(status: StatusCode, flight: &mut Flight) -> Outcome {
    let outcome = match status.as_u16() {
        500.. => Outcome::WorkerError,
        400.. => Outcome::ClientError,
        _ => Outcome::Ok,
    };
    if outcome == Outcome::WorkerError && !retry::is_failure(status) {
        flight.spare();
    }
    outcome
}

/// The answer as the client gets it.
fn answered(request: &TurnRequest<'_>, answer: Answer, place: Option<RequestPermit>) -> Response<Body> {
    let Answer {
        response,
        first,
        mut flight,
        sequence,
        explained,
        span,
    } = answer;
    flight.keep(place);
    let outcome = outcome(response.status(), &mut flight);
    let (mut parts, incoming) = response.into_parts();
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let watch = Watch::new(
        request.turn.endpoint,
        content_type,
        parts.headers.contains_key(CONTENT_ENCODING),
    )
    .within(request.context.app.copied());
    mark(&mut parts.headers, flight.worker(), Some(sequence));
    if let Some(terms) = explained {
        parts.headers.insert(headers::EXPLAIN, terms);
    }
    parts.version = Version::HTTP_11;
    let watchdog = Watchdog::new(request.context.app, request.context.deadline);
    let tap = Tap::new((first, incoming), watch, (flight, span), outcome, watchdog);
    Response::from_parts(parts, Body::Pieces(Box::new(tap)))
}

/// Makes a worker's answer ready for the client: removes the headers of the worker's connection and those that only the
/// router may set, then names the worker and the decision.
pub(crate) fn mark(answer: &mut HeaderMap, worker: &Worker, decision: Option<u64>) {
    headers::strip_hop_by_hop(answer);
    headers::strip_routers_own(answer);
    if let Ok(name) = HeaderValue::from_str(worker.name()) {
        answer.insert(headers::WORKER, name);
    }
    if let Some(decision) = decision {
        answer.insert(headers::DECISION, HeaderValue::from(decision));
    }
}

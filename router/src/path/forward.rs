//! To a worker and back: the same bytes out, the answer streamed through, another worker while that can do no harm.
//!
//! | file | what it knows |
//! |---|---|
//! | `request` | a turn as it goes out: the client's bytes, and what the router adds |
//! | `attempt` | one attempt on one worker, and what its end means |
//! | `begun` | whether the worker may have begun, exactly |
//! | `deadline` | how long a request may take |
//! | `hedge` | a second worker beside one that is late |
//! | `pass` | what is passed on without being understood |
//!
//! What a request may cost beyond one attempt is bounded three times: by `limits.retries` for itself, by the retry
//! budget for all of them together, and by its deadline.

mod attempt;
pub mod begun;
mod deadline;
mod hedge;
pub(crate) mod pass;
mod request;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use policy::ids::WorkerId;
use tracing::warn;

use self::attempt::{Answer, Sent, Verdict};
pub use self::deadline::Deadline;
pub use self::pass::{Wanted, pass};
pub(crate) use self::request::turn_request;
use super::choose::{self, Choice, Turn};
use super::headers;
use super::learn::{Charged, Flight, Outcome};
use super::tap::Tap;
use super::watch::Watch;
use super::watchdog::Watchdog;
use crate::app::{App, Place};
use crate::error::ApiError;
use crate::fleet::Worker;
use crate::fleet::breaker::Pass;
use tailroute_http::body::Body;
use telemetry::traces::Trace;

/// A turn to be answered by some worker.
#[derive(Clone, Copy)]
pub struct Errand<'a> {
    /// The router.
    pub app: &'a Arc<App>,
    /// The client's request head.
    pub head: &'a http::request::Parts,
    /// The client's request body.
    pub body: &'a Bytes,
    /// The turn.
    pub turn: &'a Turn,
    /// When it has to have been answered.
    pub deadline: Deadline,
    /// Where what happens is written down.
    pub trace: &'a Trace,
}

/// What a request has cost so far.
#[derive(Debug, Default)]
struct Ledger {
    /// Workers that it is not sent to (again).
    tried: Vec<WorkerId>,
    retries: u32,
    charged: Charged,
}

impl Ledger {
    /// Whether it may be tried again, given that there is another worker. If so, that is paid for.
    fn may_retry(&mut self, app: &App) -> bool {
        if self.retries >= app.live().limits.retries {
            return false;
        }
        if !app.retries.lock().take(app.clock.now()) {
            app.metrics.retry_refused();
            return false;
        }
        self.retries += 1;
        true
    }
}

/// Sends a turn until a worker takes it, as long as none can have begun on it, and returns the answer, whose body is still
/// on its way.
///
/// # Errors
/// If no worker is ready or none is reached. A worker that fails on it, and a deadline that passes, are answers.
pub async fn deliver(errand: Errand<'_>, place: &mut Option<Place>) -> Result<Response<Body>, ApiError> {
    let app = errand.app;
    app.retries.lock().request(app.clock.now());
    let mut ledger = Ledger::default();
    loop {
        let (choice, pass) = choose_admitted(app, errand.turn, &mut ledger.tried)?;
        let (has_alternative, may_go_elsewhere) = (choice.has_alternative(), choice.may_go_elsewhere);
        let sent = Sent::start(&errand, &choice, pass, &ledger.charged)?;
        if let Some(place) = place {
            place.sent();
        }
        ledger.tried.push(choice.worker.id);
        let (sent, head) = match app.config.failure.hedge_after {
            // Boxed: hardly anybody hedges, and each request would carry room for a second attempt.
            Some(after) if has_alternative => Box::pin(hedge::race(&errand, sent, after, &mut ledger)).await,
            _ => sent.wait().await,
        };
        let worker = sent.worker_name();
        let may_retry = |harmless: bool| harmless && may_go_elsewhere && ledger.may_retry(app);
        match sent.judge(&errand, head, has_alternative, may_retry) {
            Verdict::Answer(answer) => return Ok(answered(&errand, *answer, place.take())),
            Verdict::Again(why) => {
                warn!(worker = &*worker, why, "trying another worker");
                app.metrics.retry(&worker);
            }
            Verdict::Failed(error) => {
                if matches!(error, ApiError::DeadlineExceeded(_)) {
                    // The worker may have computed as much as it could until then.
                    drop(place.take());
                }
                return Ok(error.response_for(errand.turn.endpoint.family()));
            }
            Verdict::NotReached(error) => return Err(error),
        }
    }
}

/// Chooses a worker that was not tried, and gets past its breaker.
///
/// # Errors
/// If no worker is ready.
pub(crate) fn choose_admitted(
    app: &App,
    turn: &Turn,
    tried: &mut Vec<WorkerId>,
) -> Result<(Choice, Pass), ApiError> {
    let attempts = tried.len();
    let mut turned_away: Option<Choice> = None;
    loop {
        let choice = match choose::choose(app, turn, tried) {
            Ok(choice) => choice,
            Err(error) => {
                // Nobody is left but those that another request tries just now: one of them is more than none.
                tried.truncate(attempts);
                let choice = turned_away.ok_or(error)?;
                let pass = choice.worker.admit(app.clock.now(), true);
                return pass.map(|pass| (choice, pass)).ok_or(ApiError::NoWorkerReady);
            }
        };
        if let Some(pass) = choice.worker.admit(app.clock.now(), choice.regardless) {
            return Ok((choice, pass));
        }
        // Another request has just begun to try this worker.
        tried.push(choice.worker.id);
        turned_away.get_or_insert(choice);
    }
}

/// What an answer's status means for its turn, and for the worker whose it is.
pub(crate) fn outcome(status: StatusCode, flight: &mut Flight) -> Outcome {
    let outcome = match status.as_u16() {
        500.. => Outcome::WorkerError,
        400.. => Outcome::ClientError,
        _ => Outcome::Ok,
    };
    if outcome == Outcome::WorkerError && !begun::is_failure(status) {
        flight.spare();
    }
    outcome
}

/// The answer as the client gets it.
fn answered(errand: &Errand<'_>, answer: Answer, place: Option<Place>) -> Response<Body> {
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
        errand.turn.endpoint,
        content_type,
        parts.headers.contains_key(CONTENT_ENCODING),
    )
    .within(errand.app.copied());
    mark(&mut parts.headers, flight.worker(), Some(sequence));
    if let Some(terms) = explained {
        parts.headers.insert(headers::EXPLAIN, terms);
    }
    parts.version = Version::HTTP_11;
    let watchdog = Watchdog::new(errand.app, errand.deadline);
    let tap = Tap::new((first, incoming), watch, (flight, span), outcome, watchdog);
    Response::from_parts(parts, Body::Pieces(Box::new(tap)))
}

/// Makes a worker's answer ready for the client: what concerns the worker's connection goes, and so does what only the
/// router says. Then says where the answer came from.
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

//! Forwards a turn to a worker and streams the response back. Retries on another worker while that is safe.

mod attempt;
mod hedge;
pub mod judged;
pub mod pass;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, Version};
use http_body::Frame;
use policy::ids::WorkerId;
use tracing::debug;

pub(in crate::path) use self::attempt::note;
use self::attempt::{AttemptResponse, AttemptResult, NotFound, PendingTurn};
pub use self::pass::Wanted;
pub(crate) use self::pass::pass;
use super::context::RequestContext;
use super::models;
use super::observe::Observer;
use super::retry::{Failure, RetryState};
use super::select::{self, Choice};
use super::tap::Tap;
use super::turn::Turn;
use super::watchdog::Watchdog;
use crate::RequestPermit;
use fleet::Worker;
use fleet::breaker::BreakerPass;
use protocol::error::ApiError;
use protocol::verdict::Verdict;
use protocol::watch::Watch;
use protocol::{headers, references};
use state::Routing;
use tailroute_http::body::Body;

#[derive(Clone, Copy)]
pub(crate) struct TurnRequest<'a> {
    pub(crate) context: &'a RequestContext<'a>,
    pub(crate) head: &'a Parts,
    /// The request body to send to engines.
    pub(crate) body: &'a Bytes,
    pub(crate) turn: &'a Arc<Turn>,
}

/// Sends a turn to workers until one answers, within the [retry policy](super::retry). The response body may still be
/// streaming. Fails if no worker is ready, none is reached, or the request cannot be built. If a worker failed or a
/// deadline passed, that is an `Ok` response with an error.
pub(crate) async fn deliver(
    request: TurnRequest<'_>,
    permit: &mut Option<RequestPermit>,
) -> Result<Response<Body>, ApiError> {
    let proxy = request.context.proxy;
    let mut state = RetryState::new(&proxy.state.routing);
    loop {
        let (mut sent, has_alternative, may_go_elsewhere) = {
            let (choice, pass) = select_admitted(&proxy.state.routing, request.turn, &mut state.tried)?;
            let sent = PendingTurn::start(&request, &choice, pass, &state.charged)?;
            state.tried.push(choice.worker.id);
            (sent, choice.has_alternative, choice.may_go_elsewhere)
        };
        if let Some(permit) = permit {
            permit.sent();
        }
        let head = match proxy.state.config.failure.hedge_after {
            // Boxed to keep the common future small: few configurations hedge.
            Some(after) if has_alternative => {
                Box::pin(hedge::race(&request, &mut sent, after, &mut state)).await
            }
            _ => sent.head().await,
        };
        let worker = sent.worker_name();
        // Boxed to keep the common future small.
        let elsewhere = match head.not_found() {
            Some(found) => {
                let worker = Arc::clone(sent.worker());
                Box::pin(elsewhere(&request, worker, found, &state.tried)).await
            }
            None => None,
        };
        let next = sent.judge(&request, head, |failure| {
            // A request that one worker refused is not sent to workers outside normal use.
            let has_other = match (failure, elsewhere) {
                (Failure::NoModel, Some(NotFound::Denied)) => return true,
                (Failure::NoModel, elsewhere) => elsewhere.is_some(),
                _ => may_go_elsewhere && (has_alternative || !failure.is_refusal()),
            };
            state.may_retry(&proxy.state.routing, failure, request.head, || has_other)
        });
        match next {
            AttemptResult::Answer(answer) => return Ok(answered(&request, *answer, permit.take())),
            AttemptResult::Again(failure) => {
                again(&proxy.state.routing, &worker, failure);
            }
            AttemptResult::Failed(error) => {
                if matches!(error, ApiError::DeadlineExceeded(_)) {
                    // The worker may have computed until then, so the key is charged.
                    drop(permit.take());
                }
                return Ok(error.response_for(request.turn.endpoint.facts().family));
            }
            AttemptResult::NotReached(error) => return Err(error),
        }
    }
}

/// Returns what a worker's 404 means if another worker can serve the turn; `None` if none can, or if the turn continues
/// a stored response. Corrects the known model lists.
async fn elsewhere(
    request: &TurnRequest<'_>,
    worker: Arc<Worker>,
    found: NotFound,
    tried: &[WorkerId],
) -> Option<NotFound> {
    let turn = request.turn;
    let asked = (&*turn.model, found == NotFound::Denied);
    let among = |other: &Worker| turn.may_go_to(other);
    let is_there =
        models::recheck_elsewhere(&request.context.proxy.state.routing, &worker, asked, tried, among).await;
    // A stored response is on one worker.
    (is_there && turn.pinned_to.is_none()).then_some(found)
}

/// Selects an untried worker whose breaker admits the request, or one of those that do not if no other remains.
pub fn select_admitted(
    routing: &Routing,
    turn: &Turn,
    tried: &mut Vec<WorkerId>,
) -> Result<(Choice, BreakerPass), ApiError> {
    let attempts = tried.len();
    let mut turned_away: Option<Choice> = None;
    loop {
        let choice = match select::select(routing, turn, tried) {
            Ok(choice) => choice,
            Err(error) => {
                // Every other worker has its trial request in flight. One of them is better than none.
                tried.truncate(attempts);
                let choice = turned_away.ok_or(error)?;
                let pass = choice.worker.admit(choice.at, true);
                return pass.map(|pass| (choice, pass)).ok_or(ApiError::NoWorkerReady);
            }
        };
        if let Some(pass) = choice.worker.admit(choice.at, choice.regardless) {
            return Ok((choice, pass));
        }
        // Another request has just become this worker's trial.
        tried.push(choice.worker.id);
        turned_away.get_or_insert(choice);
    }
}

/// Counts a retry.
fn again(routing: &Routing, worker: &str, failure: Failure) {
    debug!(worker, ?failure, "trying another worker");
    routing.metrics.retry(worker);
}

fn answered(
    request: &TurnRequest<'_>,
    answer: AttemptResponse,
    permit: Option<RequestPermit>,
) -> Response<Body> {
    let AttemptResponse {
        response,
        first,
        verdict,
        mut flight,
        sequence,
        explained,
        sent,
    } = answer;
    flight.keep(permit);
    let (mut parts, incoming) = response.into_parts();
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let searched_bytes = match first.as_ref().and_then(Frame::data_ref) {
        Some(first) if verdict == Verdict::Ok => {
            protocol::verdict::searched_bytes(parts.status, &parts.headers, first)
        }
        _ => 0,
    };
    let watch = Watch::new(
        request.turn.endpoint,
        content_type,
        parts.headers.contains_key(CONTENT_ENCODING),
    )
    .within(request.context.proxy.state.transport.response_reservation())
    .without_error_in(searched_bytes);
    let proxy = request.context.proxy;
    mark(
        &proxy.state.routing,
        &mut parts.headers,
        flight.worker(),
        Some(sequence),
    );
    if let Some(terms) = explained {
        parts.headers.insert(headers::EXPLAIN, terms);
    }
    ask_to_retry(&mut parts.headers, verdict);
    parts.version = Version::HTTP_11;
    let watchdog = Watchdog::new(request.context.proxy, request.context.deadline, sent);
    let observer = Observer::new(watch, flight, parts.status, verdict);
    let tap = Tap::new(first, incoming, observer, watchdog);
    Response::from_parts(parts, Body::Pieces(Box::new(tap)))
}

/// Adds `Retry-After` to a refusal without it.
fn ask_to_retry(answer: &mut HeaderMap, verdict: Verdict) {
    if let Verdict::Declined(_) = verdict {
        answer.entry(RETRY_AFTER).or_insert(HeaderValue::from_static("1"));
    }
}

/// Removes hop-by-hop headers, those that only the router may set and references to workers, then adds the worker's
/// name and the decision.
pub fn mark(routing: &Routing, answer: &mut HeaderMap, worker: &Worker, decision: Option<u64>) {
    headers::strip_hop_by_hop(answer);
    headers::strip_routers_own(answer);
    references::conceal(answer, worker.spec.url.path(), &routing.fleet);
    if let Ok(name) = HeaderValue::from_str(worker.name()) {
        answer.insert(headers::WORKER, name);
    }
    if let Some(decision) = decision {
        answer.insert(headers::DECISION, HeaderValue::from(decision));
    }
}

#[cfg(test)]
mod tests;

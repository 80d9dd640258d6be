//! To the worker and back: the same bytes out, the answer streamed through.

use std::sync::Arc;

use bytes::Bytes;
use config::Priority;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use policy::route;
use policy::units::{Millis, Tokens};
use tracing::{debug, warn};

use super::choose::{Choice, Turn};
use super::headers;
use super::learn::{Flight, Outcome};
use super::splice;
use super::tap::Tap;
use super::watch::Watch;
use crate::app::{App, Place};
use crate::body::{self, Body};
use crate::error::ApiError;
use crate::fleet::dialect::{Carried, TurnHint};
use crate::fleet::{InFlight, Worker};

/// One attempt to have a turn answered by the chosen worker.
pub struct Attempt<'a> {
    /// The router.
    pub app: &'a Arc<App>,
    /// The client's request head.
    pub head: &'a http::request::Parts,
    /// The client's request body.
    pub body: Bytes,
    /// The turn.
    pub turn: &'a mut Turn,
    /// The worker.
    pub choice: Choice,
    /// The request's place in the router; taken along by the attempt that is answered.
    pub place: &'a mut Option<Place>,
}

/// Why an attempt brought no answer.
#[derive(Debug)]
pub enum Failure {
    /// The worker cannot have begun: another one may be tried.
    NotStarted(ApiError),
    /// The worker may have begun: trying again could do the work twice.
    MayHaveStarted(ApiError),
}

/// Sends a turn and returns the worker's answer, whose body is still on its way. If this is the `last` attempt, even a
/// refusal is an answer.
pub async fn forward(attempt: Attempt<'_>, last: bool) -> Result<Response<Body>, Failure> {
    let Attempt {
        app,
        head,
        body,
        turn,
        choice,
        place,
    } = attempt;
    let request = turn_request(app, head, body, turn, &choice).map_err(|error| {
        warn!(worker = choice.worker.name(), %error, "no request could be made for it");
        Failure::MayHaveStarted(ApiError::WorkerFailed)
    })?;
    let flight = Flight::start(app, turn, &choice, place.take());
    let limit = app.config.limits.first_byte_timeout;
    let response = match tokio::time::timeout(limit, app.client.request(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) if error.is_connect() => {
            app.note_health(&choice.worker, false);
            debug!(worker = choice.worker.name(), %error, "connection refused");
            *place = flight.not_reached();
            return Err(Failure::NotStarted(ApiError::WorkerFailed));
        }
        Ok(Err(error)) => {
            warn!(worker = choice.worker.name(), %error, "no answer");
            flight.end(Outcome::WorkerError, None, false);
            return Err(Failure::MayHaveStarted(ApiError::WorkerFailed));
        }
        Err(_) => {
            warn!(
                worker = choice.worker.name(),
                limit_s = limit.as_secs_f64(),
                "no answer in time"
            );
            flight.end(Outcome::WorkerError, None, false);
            return Err(Failure::MayHaveStarted(ApiError::WorkerTimeout(limit)));
        }
    };
    let status = response.status();
    // An engine that answers so did not take the request: its queue is full, or it is going down.
    if !last
        && matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        )
    {
        *place = flight.not_reached();
        return Err(Failure::NotStarted(ApiError::WorkerFailed));
    }
    let outcome = match status.as_u16() {
        500.. => Outcome::WorkerError,
        400.. => Outcome::ClientError,
        _ => Outcome::Ok,
    };
    let (mut parts, incoming) = response.into_parts();
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let watch = Watch::new(content_type, parts.headers.contains_key(CONTENT_ENCODING));
    let tap = Tap::new(incoming, watch, flight, outcome, app.config.limits.idle_timeout);
    mark(&mut parts.headers, &choice.worker, Some(choice.decision.sequence));
    parts.version = Version::HTTP_11;
    Ok(Response::from_parts(parts, body::streaming(tap)))
}

/// The client's request, addressed to the worker, with what the router adds in headers.
fn turn_request(
    app: &App,
    head: &http::request::Parts,
    body: Bytes,
    turn: &Turn,
    choice: &Choice,
) -> Result<Request<Body>, http::Error> {
    let mut headers = head.headers.clone();
    headers::strip_for_worker(&mut headers);
    headers::pin(&mut headers, choice.worker.spec.rank);
    if let Some(session) = turn.session.as_ref().filter(|session| !session.in_header)
        && let Some(name) = session.header_value()
    {
        headers.insert(headers::SESSION, name);
    }
    let body = carry_hint(app, &mut headers, body, choice);
    let body = carry_priority(app, &mut headers, body, turn, choice);
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::new(body::full(body));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = choice.worker.uri(target)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Puts the hint about its own conversation where the worker reads it, if it reads it at all.
fn carry_hint(app: &App, headers: &mut HeaderMap, body: Bytes, choice: &Choice) -> Bytes {
    let hints = &app.config.hints;
    if !(hints.enabled && hints.in_request) || choice.evict_first == Tokens::ZERO {
        return body;
    }
    let spliced = match choice.worker.dialect().in_request(&TurnHint {
        evict_first: choice.evict_first,
        prompt: choice.matched.prompt,
        sequence: choice.decision.sequence,
    }) {
        None => None,
        Some(Carried::Header(name, value)) => {
            headers.insert(name, value);
            None
        }
        Some(Carried::Field { key, value }) => splice::field(&body, key, &value),
        Some(Carried::Member { object, key, value }) => splice::member(&body, object, key, &value),
    };
    let Some(spliced) = spliced else { return body };
    // The client spoke of the body as it was.
    headers.remove(CONTENT_LENGTH);
    Bytes::from(spliced)
}

/// Says how urgent a turn is to an engine that takes priorities: when it is [due](policy::route::due), in milliseconds on
/// everybody's clock, so that the requests of several routers compare. Short turns overtake, and nobody waits for ever. A
/// client's own priority stays.
fn carry_priority(app: &App, headers: &mut HeaderMap, body: Bytes, turn: &Turn, choice: &Choice) -> Bytes {
    let sign = match choice.worker.spec.priority {
        Priority::Off => return body,
        Priority::LowestFirst => 1.0,
        Priority::HighestFirst => -1.0,
    };
    let terms = choice.decision.chosen();
    let prefill = Millis(terms.marginal_ms + terms.fixed_ms);
    let due = route::due(Millis(app.clock.unix_ms(turn.arrived)), prefill, turn.goal.ttft);
    let value = ((sign * due.0).round() as i64).to_string();
    let Some(spliced) = splice::field(&body, "priority", &value) else {
        return body;
    };
    headers.remove(CONTENT_LENGTH);
    Bytes::from(spliced)
}

/// Passes a request on as it is, to the conversation's worker if it names one, else to the least busy.
///
/// # Errors
/// If no worker is ready, or the one chosen does not answer.
pub async fn pass(
    app: &Arc<App>,
    request: Request<Incoming>,
    place: Place,
) -> Result<Response<Body>, ApiError> {
    let started = app.clock.now();
    let (head, incoming) = request.into_parts();
    let mut incoming = Some(incoming).filter(|body| !body.is_end_stream());
    let mut tried: Vec<Arc<Worker>> = Vec::new();
    let (worker, response) = loop {
        let none_left = if tried.is_empty() {
            ApiError::NoWorkerReady
        } else {
            ApiError::WorkerFailed
        };
        let worker = some_worker(app, &head.headers, &tried).ok_or(none_left)?;
        let body = incoming.take();
        let can_retry = body.is_none() && tried.len() < app.config.limits.retries as usize;
        let in_flight = worker.send(app.clock, None);
        match pass_once(app, &head, body, &worker).await {
            Ok(response) => break (in_flight, response),
            Err(error) if can_retry => {
                debug!(worker = worker.name(), %error, "not reached, trying another worker");
                tried.push(worker);
            }
            Err(error) => return Err(error),
        }
    };
    let (mut parts, incoming) = response.into_parts();
    mark(&mut parts.headers, worker.worker(), None);
    parts.version = Version::HTTP_11;
    app.metrics
        .request("other", "ok", (app.clock.now() - started).0 / 1e3);
    Ok(Response::from_parts(
        parts,
        body::streaming(Guarded {
            inner: incoming,
            _held: (worker, place),
        }),
    ))
}

async fn pass_once(
    app: &Arc<App>,
    head: &http::request::Parts,
    body: Option<Incoming>,
    worker: &Arc<Worker>,
) -> Result<Response<Incoming>, ApiError> {
    let mut headers = head.headers.clone();
    headers::strip_for_worker(&mut headers);
    headers::pin(&mut headers, worker.spec.rank);
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::new(body.map_or_else(|| body::full(Bytes::new()), body::streaming));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = worker.uri(target).map_err(|_| ApiError::NotFound)?;
    *request.headers_mut() = headers;
    let limit = app.config.limits.first_byte_timeout;
    match tokio::time::timeout(limit, app.client.request(request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => {
            if error.is_connect() {
                app.note_health(worker, false);
            }
            warn!(worker = worker.name(), %error, "no answer");
            Err(ApiError::WorkerFailed)
        }
        Err(_) => Err(ApiError::WorkerTimeout(limit)),
    }
}

fn some_worker(app: &App, headers: &HeaderMap, tried: &[Arc<Worker>]) -> Option<Arc<Worker>> {
    let workers = app.fleet.workers();
    let free = |worker: &Arc<Worker>| worker.is_ready() && !tried.iter().any(|other| other.id == worker.id);
    let session = headers
        .get(headers::SESSION)
        .map(|name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
    let last = session.and_then(|key| app.knowledge.last_worker(key));
    let home = last
        .and_then(|id| workers.get(id.index()))
        .filter(|worker| free(worker));
    let busy = |worker: &Arc<Worker>| worker.with_load(|load| load.in_flight);
    home.or_else(|| {
        workers
            .iter()
            .filter(|worker| free(worker))
            .min_by_key(|worker| busy(worker))
    })
    .cloned()
}

/// Says on an answer where it came from.
fn mark(answer: &mut HeaderMap, worker: &Worker, decision: Option<u64>) {
    headers::strip_hop_by_hop(answer);
    if let Ok(name) = HeaderValue::from_str(worker.name()) {
        answer.insert(headers::WORKER, name);
    }
    if let Some(decision) = decision {
        answer.insert(headers::DECISION, HeaderValue::from(decision));
    }
}

/// A body that holds what must be given back when it ends.
struct Guarded {
    inner: Incoming,
    _held: (InFlight, Place),
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, hyper::Error>>> {
        std::pin::Pin::new(&mut self.get_mut().inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}

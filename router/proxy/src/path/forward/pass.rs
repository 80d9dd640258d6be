//! Relays requests unparsed. They go to the worker that stores their object, or to the conversation's worker if they
//! name a session, else to the least busy worker that serves their model.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use policy::ids::WorkerId;
use policy::route::WorkerView;
use policy::units::{Millis, Tokens};
use tokio::time::{Instant, timeout_at};

use super::super::admit::{self, Received};
use super::super::among::Among;
use super::super::client_body::ClientBody;
use super::super::context::{RequestContext, RequestTimer};
use super::super::flight::AttemptOutcome;
use super::super::models;
use super::super::retry::{self, Failure, RetryState};
use super::super::select;
use super::super::watchdog::{CUT_OFF, Overrun, Watchdog};
use super::attempt::note;
use super::judged::{Judged, report};
use super::{again as retried, ask_to_retry, mark};
use crate::RequestPermit;
use fleet::breaker::BreakerState;
use fleet::eligibility::Eligibility;
use fleet::{InFlight, Worker, rotation};
use protocol::error::ApiError;
use protocol::first_event::FirstEvent;
use protocol::headers;
use protocol::verdict::Verdict;
use protocol::watch::Step;
use state::{Routing, State};
use tailroute_http::body::{self, Body, BodyError, PolledFrame};
use telemetry::traces::Trace;

const KEPT_BYTES: u64 = 1 << 20;

/// Routing constraints of a relayed request.
#[derive(Debug, Default)]
pub struct Wanted {
    pub model: Option<String>,
    /// The worker that stores the requested object.
    pub pinned_to: Option<WorkerId>,
    /// The eligible workers; `None` for all.
    pub among: Option<Among>,
}

impl Wanted {
    fn may_go_to(&self, worker: &Worker) -> bool {
        self.among.as_ref().is_none_or(|among| among.has(worker))
    }

    /// Corrects the known lists after a worker's 404. Returns whether an untried worker serves the model.
    async fn recheck_elsewhere(&self, routing: &Routing, worker: &Worker, tried: &[WorkerId]) -> bool {
        let asked = (self.model.as_deref().unwrap_or_default(), false);
        let among = |other: &Worker| self.may_go_to(other);
        self.pinned_to.is_none() && models::recheck_elsewhere(routing, worker, asked, tried, among).await
    }

    /// Returns the views of all workers. Only workers that may get the request are ready.
    fn views(&self, routing: &Routing, workers: &[Arc<Worker>], now: Millis) -> Vec<WorkerView> {
        let among = workers.iter().filter(|worker| self.may_go_to(worker));
        let model = self.model.as_deref().unwrap_or_default();
        let eligible = Eligibility::of(among, model, routing.config.routing.unlisted_models);
        let view = |worker: &Arc<Worker>| {
            let is_eligible = self.may_go_to(worker) && eligible.admits(worker);
            worker.view(now, is_eligible, Tokens::ZERO, 0.0)
        };
        workers.iter().map(view).collect()
    }
}

/// Relays a request. Fails if no worker is ready, the chosen one does not answer, or the deadline passes.
pub(crate) async fn pass(
    context: &RequestContext<'_>,
    request: Request<ClientBody>,
    wanted: &Wanted,
) -> Result<Response<Body>, ApiError> {
    let proxy = context.proxy;
    let mut state = RetryState::new(&proxy.state.routing);
    let (head, incoming) = request.into_parts();
    let mut upload = UploadBody::of(&proxy.state, &head, incoming).await?;
    let permit = context.permit()?;
    loop {
        let mut in_flight = some_worker(&proxy.state.routing, &head.headers, &state.tried, wanted)
            .ok_or_else(|| match &*state.tried {
                [] => proxy.state.routing.no_worker_ready(),
                _ => ApiError::WorkerFailed,
            })?;
        let worker = Arc::clone(in_flight.worker());
        let (sent, bytes_before) = (Instant::now(), worker.bytes_seen());
        let ended = pass_once(context, &head, upload.body(), &worker).await;
        if let Some(error) = upload.failure() {
            // The client's body failed: no worker is charged.
            return Err(error);
        }
        if let Ended::Failed(_, ApiError::WorkerTimeout(limit)) = &ended
            && !upload.is_here()
        {
            // The worker cannot answer a request that it has not received.
            return Err(ApiError::RequestTimeout(*limit));
        }
        let is_busy = || proxy.state.routing.is_answering(&worker, bytes_before);
        report(
            &proxy.state,
            ended.verdict(is_busy),
            &mut in_flight,
            &state.charged,
        );
        state.tried.push(worker.id);
        let is_elsewhere = ended.is_not_found()
            && wanted
                .recheck_elsewhere(&proxy.state.routing, &worker, &state.tried)
                .await;
        let again = ended.failure().is_some_and(|failure| {
            let tried = state.tried.clone();
            let has_other = || {
                let is_other = match failure {
                    Failure::NoModel => is_elsewhere,
                    _ => is_other_free(&proxy.state.routing, &tried, wanted),
                };
                upload.is_whole() && is_other
            };
            state.may_retry(&proxy.state.routing, failure, &head, has_other)
        });
        match ended {
            Ended::Answer(judged) if !again => {
                return Ok(answered(context, judged, in_flight, permit, sent));
            }
            Ended::Answer(_) => proxy.state.routing.metrics.retry(worker.name()),
            Ended::Failed(failure, _) if again => retried(&proxy.state.routing, worker.name(), failure),
            Ended::Failed(_, error) => return Err(error),
        }
    }
}

fn is_other_free(routing: &Routing, tried: &[WorkerId], wanted: &Wanted) -> bool {
    let (workers, now) = (routing.fleet.workers(), routing.clock.now());
    let views = wanted.views(routing, &workers, now);
    views.iter().any(|view| view.ready && !tried.contains(&view.id))
}

pub(in crate::path) fn answered(
    context: &RequestContext<'_>,
    judged: Judged,
    mut in_flight: InFlight,
    permit: RequestPermit,
    sent: Instant,
) -> Response<Body> {
    let RequestContext {
        proxy,
        timer,
        deadline,
        ..
    } = *context;
    let Judged {
        response,
        first,
        verdict,
    } = judged;
    settled(&proxy.state, response.status(), verdict, &mut in_flight, timer);
    let (mut parts, incoming) = response.into_parts();
    mark(&proxy.state.routing, &mut parts.headers, in_flight.worker(), None);
    ask_to_retry(&mut parts.headers, verdict);
    parts.version = Version::HTTP_11;
    let passing = Passing {
        state: Arc::clone(&proxy.state),
        read: first,
        inner: incoming,
        first: FirstEvent::of(&parts.headers),
        watchdog: Watchdog::new(proxy, deadline, sent),
        bytes_before: in_flight.worker().bytes_seen(),
        in_flight,
        permit,
        _trail: context.trace.clone(),
    };
    Response::from_parts(parts, body::streaming(passing))
}

/// Reports a successful response to the breaker, and counts the request.
pub fn settled(
    state: &State,
    status: StatusCode,
    verdict: Verdict,
    in_flight: &mut InFlight,
    timer: RequestTimer,
) {
    let outcome = AttemptOutcome::of(status, verdict);
    if outcome == AttemptOutcome::Ok && in_flight.answered(state.routing.clock.now()) {
        state.operations.breaker_closed(in_flight.worker());
    }
    timer.record(&state.routing, outcome.as_str());
}

enum Ended {
    Answer(Judged),
    Failed(Failure, ApiError),
}

impl Ended {
    fn failure(&self) -> Option<Failure> {
        match self {
            Self::Answer(judged) => Failure::of_answer(judged.response.status(), judged.verdict),
            Self::Failed(failure, _) => Some(*failure),
        }
    }

    fn is_not_found(&self) -> bool {
        matches!(self, Self::Answer(judged) if judged.response.status() == StatusCode::NOT_FOUND)
    }

    /// Returns the verdict for the breaker. A worker that is late may be busy with other requests.
    fn verdict(&self, is_busy: impl Fn() -> bool) -> Verdict {
        match self {
            Self::Answer(judged) => judged.verdict,
            Self::Failed(Failure::TimedOut, ApiError::WorkerTimeout(limit))
                if !Overrun::NotBegun(*limit).is_the_workers(is_busy()) =>
            {
                Verdict::Ok
            }
            Self::Failed(failure, _) if failure.is_the_workers() => Verdict::Failed,
            Self::Failed(..) => Verdict::Ok,
        }
    }
}

async fn pass_once(context: &RequestContext<'_>, head: &Parts, body: Body, worker: &Arc<Worker>) -> Ended {
    let RequestContext { proxy, deadline, .. } = *context;
    let headers = headers::addressed(&head.headers, proxy.admission.keys().is_required(), &worker.spec);
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = match worker.uri(target) {
        Ok(uri) => uri,
        Err(_) => return Ended::Failed(Failure::Unaddressable, ApiError::NotFound),
    };
    *request.headers_mut() = headers;
    let limit = proxy.state.routing.live().limits.first_byte_timeout;
    let until = Instant::now() + limit;
    let own = deadline.head().filter(|own| *own <= until);
    match timeout_at(own.unwrap_or(until), proxy.state.transport.client.send(request)).await {
        Ok(Ok(response)) => Ended::Answer(Judged::of(response).await),
        Ok(Err(error)) => {
            let failure = Failure::of(&error);
            note(&proxy.state, worker, &error, failure);
            Ended::Failed(failure, ApiError::WorkerFailed)
        }
        Err(_) if own.is_some() => Ended::Failed(Failure::DeadlinePassed, deadline.exceeded()),
        Err(_) => {
            let error = format_args!("no response within {} s", limit.as_secs_f64());
            proxy
                .state
                .routing
                .log_failure(worker, &error, "the worker timed out");
            Ended::Failed(Failure::TimedOut, ApiError::WorkerTimeout(limit))
        }
    }
}

/// Counts the request as in flight on an untried worker whose breaker admits it. Returns `None` if no worker is ready.
pub fn some_worker(
    routing: &Routing,
    headers: &HeaderMap,
    tried: &[WorkerId],
    wanted: &Wanted,
) -> Option<InFlight> {
    let (workers, now) = (routing.fleet.workers(), routing.clock.now());
    let mut views = wanted.views(routing, &workers, now);
    let mut conditions = Vec::new();
    select::narrow(routing, &workers, now, None, &mut views, &mut conditions);
    rotation::avoid(&mut views, &conditions);
    if let Some(pinned_to) = wanted.pinned_to
        && let Some(worker) = workers.get(pinned_to.index())
        && worker.accepts_pinned()
        && wanted.may_go_to(worker)
    {
        // No other worker can answer it.
        views[pinned_to.index()].ready = true;
    }
    let session = headers
        .get(headers::SESSION)
        .and_then(|name| name.to_str().ok())
        .map(|name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
    let home = wanted
        .pinned_to
        .or_else(|| routing.knowledge.last_worker(session?));
    let mut free: Vec<usize> = (0..views.len())
        .filter(|&at| views[at].ready && !tried.contains(&workers[at].id))
        .collect();
    free.sort_by_key(|&at| (home != Some(workers[at].id), views[at].in_flight));
    let let_through = |at: usize, regardless: bool| {
        let pass = workers[at].admit(now, regardless)?;
        Some(workers[at].send(routing.clock, now, None, pass))
    };
    let taken = free
        .iter()
        .find_map(|&at| let_through(at, conditions[at].breaker == BreakerState::Open));
    // Every other worker has its trial request in flight. One of them is better than none.
    taken.or_else(|| let_through(*free.first()?, true))
}

enum UploadBody {
    /// The body is buffered in full.
    Whole(Received),
    /// The body still streams from the client.
    Coming(Arc<Coming>),
}

struct Coming {
    body: Mutex<ClientBody>,
    touched: AtomicBool,
}

impl UploadBody {
    /// Buffers a short body that a retry may need; streams any other.
    async fn of(state: &State, head: &Parts, mut incoming: ClientBody) -> Result<Self, ApiError> {
        if incoming.is_end_stream() {
            return Ok(Self::Whole(Received {
                bytes: Bytes::new(),
                room: state.request_reservation(),
            }));
        }
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let idempotent = || retry::is_idempotent(&head.method, head.uri.path(), &head.headers);
        if length.is_some_and(|length| length <= KEPT_BYTES) && idempotent() {
            let read = admit::read_body(state, head, &mut incoming).await;
            return read
                .map(Self::Whole)
                .map_err(|error| incoming.failure().unwrap_or(error));
        }
        Ok(Self::Coming(Arc::new(Coming {
            body: Mutex::new(incoming),
            touched: AtomicBool::new(false),
        })))
    }

    fn body(&mut self) -> Body {
        match self {
            Self::Whole(received) => body::full(received.bytes.clone()),
            Self::Coming(coming) => body::streaming(Lent(Arc::clone(coming))),
        }
    }

    fn failure(&self) -> Option<ApiError> {
        match self {
            Self::Whole(..) => None,
            Self::Coming(coming) => coming.body.lock().failure(),
        }
    }

    fn is_here(&self) -> bool {
        match self {
            Self::Whole(..) => true,
            Self::Coming(coming) => coming.body.lock().is_here(),
        }
    }

    fn is_whole(&self) -> bool {
        match self {
            Self::Whole(..) => true,
            Self::Coming(coming) => !coming.touched.load(Ordering::Acquire),
        }
    }
}

/// A body lent to one attempt after another, until one polls it.
struct Lent(Arc<Coming>);

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        self.0.touched.store(true, Ordering::Release);
        Pin::new(&mut *self.0.body.lock()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.body.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.body.lock().size_hint()
    }
}

/// A relayed response, with the resources to release at its end.
struct Passing {
    state: Arc<State>,
    /// The first piece of the body, if it was read with the head.
    read: Option<Frame<Bytes>>,
    inner: Incoming,
    first: FirstEvent,
    watchdog: Watchdog,
    /// The worker's count of response bytes when the response began.
    bytes_before: u64,
    in_flight: InFlight,
    permit: RequestPermit,
    /// Ends with the response.
    _trail: Trace,
}

impl Passing {
    fn saw(&mut self, data: &[u8]) {
        let step = self.first.push(data);
        self.watchdog.saw(step);
        if step == Step::Token {
            self.in_flight.worker().count_bytes(data.len());
        }
    }

    fn overran(&mut self, overrun: Overrun) {
        let worker = Arc::clone(self.in_flight.worker());
        let is_busy = self.state.routing.is_answering(&worker, self.bytes_before);
        self.state.routing.log_failure(&worker, &overrun.cause(), CUT_OFF);
        if overrun.is_the_workers(is_busy) {
            self.state.failed(&mut self.in_flight, None);
        }
    }
}

impl HttpBody for Passing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let passing = self.get_mut();
        let polled = match passing.read.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => Pin::new(&mut passing.inner).poll_frame(cx),
        };
        match polled {
            Poll::Ready(Some(Ok(mut frame))) => {
                frame.trailers_mut().into_iter().for_each(headers::strip_trailers);
                if let Some(data) = frame.data_ref() {
                    passing.saw(data);
                }
                if passing.inner.is_end_stream() {
                    passing.permit.free();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                passing.state.failed(&mut passing.in_flight, None);
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                passing.permit.free();
                Poll::Ready(None)
            }
            Poll::Pending => passing.watchdog.poll(cx).map(|overrun| {
                passing.overran(overrun);
                Some(Err(overrun.cause()))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.read.as_ref().and_then(Frame::data_ref);
        body::hint_with(first.map_or(0, Bytes::len), &self.inner.size_hint())
    }
}

#[cfg(test)]
mod tests;

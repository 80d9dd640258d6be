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
use http_body::{Body as HttpBody, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use policy::ids::WorkerId;
use policy::units::Tokens;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::super::admit::{self, Received};
use super::super::among::Among;
use super::super::client_body::ClientBody;
use super::super::context::{RequestContext, RequestTimer};
use super::super::flight::Outcome;
use super::super::retry::{self, Failure, RetryState};
use super::super::select;
use super::super::watchdog::Watchdog;
use super::attempt::note;
use super::mark;
use crate::{Proxy, RequestPermit};
use fleet::breaker::BreakerState;
use fleet::{InFlight, Worker};
use protocol::error::ApiError;
use protocol::headers;
use tailroute_http::body::{self, Body, BodyError, PolledFrame};
use telemetry::traces::Trace;

const KEPT_BYTES: u64 = 1 << 20;

/// Routing constraints of a relayed request.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The requested model.
    pub model: Option<String>,
    /// The worker that stores the requested object.
    pub home: Option<WorkerId>,
    /// The eligible workers; `None`: all.
    pub among: Option<Among>,
}

impl Wanted {
    fn may_go_to(&self, worker: &Worker) -> bool {
        self.among.as_ref().is_none_or(|among| among.has(worker))
    }
}

/// Relays a request. Fails if no worker is ready, the chosen one does not answer, or the deadline passes.
pub(crate) async fn pass(
    context: &RequestContext<'_>,
    request: Request<ClientBody>,
    wanted: &Wanted,
) -> Result<Response<Body>, ApiError> {
    let proxy = context.proxy;
    let mut state = RetryState::new(proxy);
    let (head, incoming) = request.into_parts();
    let mut upload = Upload::of(proxy, &head, incoming).await?;
    let permit = context.permit()?;
    loop {
        let mut in_flight =
            some_worker(proxy, &head.headers, &state.tried, wanted).ok_or_else(|| match &*state.tried {
                [] => proxy.state.no_worker_ready(),
                _ => ApiError::WorkerFailed,
            })?;
        let worker = Arc::clone(in_flight.worker());
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
        if ended.is_the_workers() && !state.charged.swap(true, Ordering::Relaxed) && in_flight.failed() {
            proxy.state.breaker_opened(&worker);
        }
        state.tried.push(worker.id);
        let again = ended.failure().is_some_and(|failure| {
            let tried = state.tried.clone();
            let has_other = || upload.is_whole() && is_other_free(proxy, &tried, wanted);
            state.may_retry(proxy, failure, &head, has_other)
        });
        match ended {
            _ if again => {
                warn!(worker = worker.name(), "trying another worker");
                proxy.state.metrics.retry(worker.name());
            }
            Ended::Answer(response) => return Ok(answered(context, response, in_flight, permit)),
            Ended::Failed(_, error) => return Err(error),
        }
    }
}

fn is_other_free(proxy: &Proxy, tried: &[WorkerId], wanted: &Wanted) -> bool {
    let (workers, now) = (proxy.state.fleet.workers(), proxy.state.clock.now());
    let model = wanted.model.as_deref();
    let mut others = workers.iter().filter(|other| !tried.contains(&other.id));
    others.any(|other| other.view(now, model, Tokens::ZERO, 0.0).ready)
}

pub(in crate::path) fn answered(
    context: &RequestContext<'_>,
    response: Response<Incoming>,
    mut in_flight: InFlight,
    permit: RequestPermit,
) -> Response<Body> {
    let RequestContext {
        proxy,
        timer,
        deadline,
        ..
    } = *context;
    settled(proxy, response.status(), &mut in_flight, timer);
    let (mut parts, incoming) = response.into_parts();
    mark(&mut parts.headers, in_flight.worker(), None);
    parts.version = Version::HTTP_11;
    let passing = Passing {
        inner: incoming,
        watchdog: Watchdog::new(proxy, deadline),
        in_flight,
        permit,
        _trail: context.trace.clone(),
    };
    Response::from_parts(parts, body::streaming(passing))
}

/// Reports a worker's response to the breaker, and counts the request.
pub fn settled(proxy: &Proxy, status: StatusCode, in_flight: &mut InFlight, timer: RequestTimer) {
    let outcome = Outcome::of(status);
    if outcome == Outcome::Ok && in_flight.answered() {
        proxy.state.breaker_closed(in_flight.worker());
    }
    timer.record(proxy, outcome.as_str());
}

enum Ended {
    Answer(Response<Incoming>),
    Failed(Failure, ApiError),
}

impl Ended {
    fn failure(&self) -> Option<Failure> {
        match self {
            Self::Answer(response) => Failure::of_status(response.status()),
            Self::Failed(failure, _) => Some(*failure),
        }
    }

    fn is_the_workers(&self) -> bool {
        match self {
            Self::Answer(response) => retry::is_failure(response.status()),
            Self::Failed(failure, _) => failure.is_the_workers(),
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
    let limit = proxy.state.live().limits.first_byte_timeout;
    let until = Instant::now() + limit;
    let own = deadline.head().filter(|own| *own <= until);
    match timeout_at(own.unwrap_or(until), proxy.state.client.send(request)).await {
        Ok(Ok(response)) => Ended::Answer(response),
        Ok(Err(error)) => {
            let failure = Failure::of(&error);
            note(proxy, worker, &error, failure);
            Ended::Failed(failure, ApiError::WorkerFailed)
        }
        Err(_) if own.is_some() => Ended::Failed(Failure::DeadlinePassed, deadline.exceeded()),
        Err(_) => {
            warn!(worker = worker.name(), "the worker timed out");
            Ended::Failed(Failure::TimedOut, ApiError::WorkerTimeout(limit))
        }
    }
}

/// An untried worker whose breaker admits the request.
pub fn some_worker(
    proxy: &Proxy,
    headers: &HeaderMap,
    tried: &[WorkerId],
    wanted: &Wanted,
) -> Option<InFlight> {
    let (workers, now) = (proxy.state.fleet.workers(), proxy.state.clock.now());
    let model = wanted.model.as_deref();
    let mut views: Vec<_> = workers
        .iter()
        .map(|worker| {
            let mut view = worker.view(now, model, Tokens::ZERO, 0.0);
            view.ready &= wanted.may_go_to(worker);
            view
        })
        .collect();
    let mut conditions = Vec::new();
    select::narrow(proxy, &workers, now, &mut views, &mut conditions);
    if let Some(home) = wanted.home
        && let Some(worker) = workers.get(home.index())
        && worker.accepts_pinned()
        && wanted.may_go_to(worker)
    {
        // No other worker can answer it.
        views[home.index()].ready = true;
    }
    let session = headers
        .get(headers::SESSION)
        .and_then(|name| name.to_str().ok())
        .map(|name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
    let home = wanted
        .home
        .or_else(|| proxy.state.knowledge.last_worker(session?));
    let mut free: Vec<usize> = (0..views.len())
        .filter(|&at| views[at].ready && !tried.contains(&workers[at].id))
        .collect();
    free.sort_by_key(|&at| (home != Some(workers[at].id), views[at].in_flight));
    let let_through = |at: usize, regardless: bool| {
        let pass = workers[at].admit(now, regardless)?;
        Some(workers[at].send(proxy.state.clock, None, pass))
    };
    let taken = free
        .iter()
        .find_map(|&at| let_through(at, conditions[at].breaker == BreakerState::Open));
    // Every one is being probed. One of them is better than none.
    taken.or_else(|| let_through(*free.first()?, true))
}

enum Upload {
    /// Buffered in full.
    Whole(Received),
    /// Still streaming.
    Coming(Arc<Coming>),
}

struct Coming {
    body: Mutex<ClientBody>,
    touched: AtomicBool,
}

impl Upload {
    /// Buffers a short body that a retry may need; streams any other.
    async fn of(proxy: &Proxy, head: &Parts, mut incoming: ClientBody) -> Result<Self, ApiError> {
        if incoming.is_end_stream() {
            return Ok(Self::Whole(Received {
                bytes: Bytes::new(),
                room: proxy.state.unread(),
            }));
        }
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let idempotent = || retry::is_idempotent(&head.method, head.uri.path(), &head.headers);
        if length.is_some_and(|length| length <= KEPT_BYTES) && idempotent() {
            let read = admit::read_body(proxy, head, &mut incoming).await;
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

/// A body lent to one attempt after another, until one reads from it.
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
    inner: Incoming,
    watchdog: Watchdog,
    in_flight: InFlight,
    permit: RequestPermit,
    /// Ends with the response.
    _trail: Trace,
}

impl HttpBody for Passing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let passing = self.get_mut();
        match Pin::new(&mut passing.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                passing.watchdog.saw();
                frame.trailers_mut().into_iter().for_each(headers::strip_trailers);
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                passing.in_flight.worker().count_bytes(bytes);
                if passing.inner.is_end_stream() {
                    passing.permit.free();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                passing.in_flight.failed();
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                passing.permit.free();
                Poll::Ready(None)
            }
            Poll::Pending => passing.watchdog.poll(cx).map(|overrun| {
                if overrun.is_the_workers() {
                    passing.in_flight.failed();
                }
                Some(Err(overrun.cause()))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

//! The HTTP service below kube's client. Unlike kube's own, it bounds the size and time of responses, reloads token and
//! certificates, which a kubelet renews, and records the start and end of watches.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Either, Empty, Full, Limited};
use hyper::body::Incoming;
use kube::client::Body;
use parking_lot::Mutex;
use serde::Deserialize;
use tailroute_http::error::with_causes;
use tokio::time::Instant;
use tower_service::Service;

use super::lines::{BoxError, LineBody};
use super::objects::MAX_VERSION;
use super::refusal::Refusal;
use super::server::ApiServer;
use super::values;
use crate::source::DiscoverySource;
use crate::state::DiscoveryState;

/// Time limit for a list's response, or the head of a watch's.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for a whole watch. The server is asked to end it earlier.
const WATCH_TIMEOUT: Duration = Duration::from_secs(70);
/// Minimum time between the starts of two watches.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
const MAX_LIST_BYTES: usize = 16 << 20;
/// Maximum number of JSON values per page: about 3,000 per object. A parsed value takes up to 1.6 KiB (a pod's volume
/// has 3,280 bytes and may consist of two values).
const MAX_LIST_VALUES: usize = 128 << 10;
const MAX_PAGES: usize = 1_000;
const MAX_STATUS_BYTES: usize = 64 << 10;

#[derive(Clone)]
pub(super) struct KubeTransport(Arc<TransportState>);

struct TransportState {
    settings: config::Kubernetes,
    state: Arc<DiscoveryState>,
    /// Server in use; `None` if URL and certificates must be read again.
    server: Mutex<Option<ApiServer>>,
    pages: AtomicUsize,
    last_watch: Mutex<Option<Instant>>,
    watch_ended: Arc<AtomicBool>,
}

impl KubeTransport {
    pub(super) fn new(settings: &config::Kubernetes, state: &Arc<DiscoveryState>) -> Self {
        Self(Arc::new(TransportState {
            settings: settings.clone(),
            state: Arc::clone(state),
            server: Mutex::new(None),
            pages: AtomicUsize::new(0),
            last_watch: Mutex::new(None),
            watch_ended: Arc::default(),
        }))
    }

    /// Returns whether a watch has ended since the last call: by the server, by its time limit, or with its connection.
    pub(super) fn take_watch_ended(&self) -> bool {
        self.0.watch_ended.swap(false, Ordering::Relaxed)
    }

    pub(super) fn list_begins(&self) {
        self.0.pages.store(0, Ordering::Relaxed);
    }

    pub(super) async fn namespace(&self) -> Result<String, String> {
        let server = self.0.server().await?;
        let namespace = server.namespace.clone();
        *self.0.server.lock() = Some(server);
        Ok(namespace)
    }
}

type ApiResponse = Response<Either<Full<Bytes>, LineBody>>;

impl Service<Request<Body>> for KubeTransport {
    type Response = ApiResponse;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ApiResponse, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        let (head, _) = request.into_parts();
        Box::pin(async move { shared.answer(&head.uri).await.map_err(Into::into) })
    }
}

impl TransportState {
    async fn answer(&self, uri: &Uri) -> Result<ApiResponse, Refusal> {
        let path = uri.path_and_query().map_or("", |path| path.as_str());
        let parameter = |name: &str| {
            let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
            pairs.find(|(key, _)| key == name).map(|(_, value)| value)
        };
        let version = parameter("resourceVersion").unwrap_or_default();
        if version.len() > MAX_VERSION {
            let what = format!("a resourceVersion has {} bytes", version.len());
            return Err(Refusal::OutOfBounds(what));
        }
        if parameter("watch").is_some() {
            self.watch(path).await
        } else {
            self.list(path).await
        }
    }

    async fn list(&self, path: &str) -> Result<ApiResponse, Refusal> {
        if self.pages.fetch_add(1, Ordering::Relaxed) >= MAX_PAGES {
            return Err(Refusal::OutOfBounds(super::TOO_MANY.to_owned()));
        }
        let whole = async { read(self.send(path).await?, MAX_LIST_BYTES).await };
        let text = tokio::time::timeout(ANSWER_TIMEOUT, whole).await;
        let text = text.unwrap_or_else(|_| Err(late()))?;
        if values(&text) > MAX_LIST_VALUES {
            let what = format!("a page of a list has more than {MAX_LIST_VALUES} values");
            return Err(Refusal::OutOfBounds(what));
        }
        Ok(Response::new(Either::Left(Full::new(text))))
    }

    async fn watch(&self, path: &str) -> Result<ApiResponse, Refusal> {
        let last = *self.last_watch.lock();
        if let Some(last) = last {
            tokio::time::sleep_until(last + WATCH_INTERVAL).await;
        }
        *self.last_watch.lock() = Some(Instant::now());
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.send(path)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()))?;
        self.state.heard(DiscoverySource::Kubernetes);
        // Bookmarks show that the server is alive, but kube does not forward them.
        let state = Arc::clone(&self.state);
        let heard = move || state.heard(DiscoverySource::Kubernetes);
        let end = Instant::now() + WATCH_TIMEOUT;
        let lines = LineBody::new(answer.into_body(), end, heard, Arc::clone(&self.watch_ended));
        Ok(Response::new(Either::Right(lines)))
    }

    async fn send(&self, path: &str) -> Result<Response<Incoming>, Refusal> {
        let server = self.server().await.map_err(Refusal::OutOfBounds)?;
        let request = request(&server, path).await?;
        let answer = server.client.request(request).await;
        // On failure the server is not put back: its certificates may have been renewed and are read again.
        let answer = answer.map_err(|error| Refusal::Unreachable(with_causes(&error)))?;
        *self.server.lock() = Some(server);
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status().as_u16();
        let body = read(answer, MAX_STATUS_BYTES).await.unwrap_or_default();
        let message = serde_json::from_slice::<StatusMessage>(&body)
            .unwrap_or_default()
            .message;
        Err(Refusal::Answered { code, message })
    }

    async fn server(&self) -> Result<ApiServer, String> {
        let known = self.server.lock().take();
        if let Some(server) = known {
            return Ok(server);
        }
        let settings = self.settings.clone();
        let made = tokio::task::spawn_blocking(move || ApiServer::new(&settings)).await;
        made.map_err(|error| error.to_string())?
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusMessage {
    message: String,
}

async fn request(server: &ApiServer, path: &str) -> Result<Request<Empty<Bytes>>, Refusal> {
    let failed = |error: http::Error| Refusal::Unreachable(error.to_string());
    let uri = server.at(path).map_err(failed)?;
    let mut request = Request::get(uri).header(ACCEPT, "application/json");
    if let Some(token) = token(server).await? {
        request = request.header(AUTHORIZATION, token);
    }
    request.body(Empty::new()).map_err(failed)
}

async fn token(server: &ApiServer) -> Result<Option<HeaderValue>, Refusal> {
    let Some(path) = server.token_file.clone() else {
        return Ok(None);
    };
    let read = tokio::task::spawn_blocking(move || super::server::token(&path)).await;
    let token = read.map_err(|error| Refusal::Unreachable(error.to_string()))?;
    token.map(Some).map_err(Refusal::Unreachable)
}

async fn read(answer: Response<Incoming>, most: usize) -> Result<Bytes, Refusal> {
    let body = Limited::new(answer.into_body(), most).collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|error| Refusal::Unreachable(with_causes(error.as_ref())))
}

fn late() -> Refusal {
    Refusal::Unreachable(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))
}

//! A Kubernetes API server limited to what discovery uses: lists in pages, watches as chunked streams of lines,
//! versions, bookmarks, 410 Gone, 403 Forbidden, and broken connections.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tailroute_e2e::wait::until;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) verb: &'static str,
    pub(crate) path: String,
    pub(crate) selector: String,
    /// The version at which a watch begins.
    pub(crate) version: String,
    /// Whether a list continues at a page.
    pub(crate) goes_on: bool,
}

#[derive(Default)]
struct State {
    version: u64,
    /// The oldest version kept.
    oldest: u64,
    objects: BTreeMap<String, Value>,
    events: Vec<(u64, &'static str, Value)>,
    forbidden: BTreeSet<&'static str>,
    asked: Vec<Asked>,
    page: usize,
    token: Option<String>,
    /// Whether the next line of a watch breaks off in its middle.
    breaks: bool,
    /// Whether lines come in small pieces.
    is_slow: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    /// Number of times that all watches were cut.
    cuts: watch::Sender<u64>,
}

/// An API server on a free port. Dropping it closes the port and all connections.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Api {
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        Self::with(address, None).await
    }

    pub(crate) async fn encrypted(address: SocketAddr, tls: ServerConfig) -> Self {
        Self::with(address, Some(TlsAcceptor::from(Arc::new(tls)))).await
    }

    async fn with(address: SocketAddr, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                version: 100,
                page: usize::MAX,
                ..State::default()
            }),
            changed: watch::Sender::new(()),
            cuts: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, tls, Arc::clone(&shared)));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// Requires this token; other requests get a 401.
    pub(crate) fn ask_for(&self, token: &str) {
        self.shared.state.lock().token = Some(format!("Bearer {token}"));
    }

    /// Closes the port and all connections. Returns the address for another server.
    pub(crate) async fn leave(mut self) -> SocketAddr {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
        self.address
    }

    /// Returns the configuration of a router that watches this server.
    pub(crate) fn config(&self, what: &str) -> String {
        format!(
            "[discovery.kubernetes]\n{what}\nnamespace = \"inference\"\napi_url = \"http://{}\"\n",
            self.address
        )
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock());
        self.shared.changed.send_replace(());
    }

    /// Adds or changes an object.
    pub(crate) fn put(&self, mut object: Value) {
        self.change(|state| {
            state.version += 1;
            object["metadata"]["resourceVersion"] = json!(state.version.to_string());
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let kind = if state.objects.contains_key(&name) {
                "MODIFIED"
            } else {
                "ADDED"
            };
            state.events.push((state.version, kind, object.clone()));
            state.objects.insert(name, object);
        });
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, name: &str) {
        self.change(|state| {
            state.version += 1;
            let mut object = state.objects.remove(name).unwrap();
            object["metadata"]["resourceVersion"] = json!(state.version.to_string());
            state.events.push((state.version, "DELETED", object));
        });
    }

    /// Sends a bookmark. Returns its version.
    pub(crate) fn bookmark(&self) -> String {
        self.change(|state| {
            state.version += 1;
            let version = state.version.to_string();
            let object = json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": { "resourceVersion": version } });
            state.events.push((state.version, "BOOKMARK", object));
        });
        self.shared.state.lock().version.to_string()
    }

    /// Forgets earlier versions; requests for them get a 410.
    pub(crate) fn forget(&self) {
        self.change(|state| {
            state.version += 1;
            state.oldest = state.version;
            state.events.clear();
        });
    }

    /// Cuts all watches.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The next line of a watch breaks off in its middle, and its connection with it.
    pub(crate) fn break_a_line(&self) {
        self.shared.state.lock().breaks = true;
    }

    /// From now on, lines of watches come in pieces of 16 bytes.
    pub(crate) fn be_slow(&self) {
        self.shared.state.lock().is_slow = true;
    }

    /// A verb is forbidden from now on.
    pub(crate) fn forbid(&self, verb: &'static str) {
        self.shared.state.lock().forbidden.insert(verb);
    }

    /// Allows all verbs.
    pub(crate) fn allow(&self) {
        self.shared.state.lock().forbidden.clear();
    }

    /// Sets the page size of lists.
    pub(crate) fn page(&self, objects: usize) {
        self.shared.state.lock().page = objects;
    }

    /// Returns the requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.state.lock().asked.clone()
    }

    /// Returns the number of requests with this verb.
    pub(crate) fn count(&self, verb: &str) -> usize {
        self.asked()
            .iter()
            .filter(|asked| asked.verb == verb && !asked.goes_on)
            .count()
    }

    /// Waits until there were more than this number of requests with this verb.
    pub(crate) async fn until_more(&self, verb: &str, than: usize) {
        until("the server to be asked", || self.count(verb) > than).await;
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, shared).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, shared).await;
                    }
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let service = service_fn(|request| {
        let answer = answer(&shared, &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

type Body = BoxBody<Bytes, io::Error>;

fn answer(shared: &Arc<Shared>, request: &Request<Incoming>) -> Response<Body> {
    let query: BTreeMap<String, String> = request.uri().query().map(pairs).unwrap_or_default();
    let of = |key: &str| query.get(key).cloned().unwrap_or_default();
    let verb = if of("watch") == "true" { "watch" } else { "list" };
    let mut state = shared.state.lock();
    state.asked.push(Asked {
        verb,
        path: request.uri().path().to_owned(),
        selector: of("labelSelector"),
        version: of("resourceVersion"),
        goes_on: !of("continue").is_empty(),
    });
    let shown = request.headers().get(http::header::AUTHORIZATION);
    let shown = shown.map(|token| token.to_str().unwrap());
    if state.token.is_some() && state.token.as_deref() != shown {
        return status(401, "Unauthorized", "Unauthorized");
    }
    if state.forbidden.contains(verb) {
        let message = format!("User \"system:serviceaccount:inference:tailroute\" cannot {verb} resource");
        return status(403, "Forbidden", &message);
    }
    if verb == "list" {
        return list(&state, of("continue").parse().unwrap_or(0));
    }
    let from: u64 = of("resourceVersion").parse().unwrap();
    if from < state.oldest {
        let gone = json!({ "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version" });
        return whole(200, format!("{}\n", json!({ "type": "ERROR", "object": gone })));
    }
    drop(state);
    watched(shared, from)
}

fn pairs(query: &str) -> BTreeMap<String, String> {
    let decoded = |text: &str| {
        text.replace("%2F", "/")
            .replace("%28", "(")
            .replace("%29", ")")
            .replace("%2C", ",")
            .replace('+', " ")
            .replace("%3D", "=")
    };
    let pair = |pair: &str| {
        pair.split_once('=')
            .map(|(key, value)| (key.to_owned(), decoded(value)))
    };
    query.split('&').filter_map(pair).collect()
}

fn whole(code: u16, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text))
        .map_err(|never| match never {})
        .boxed();
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer
}

fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message });
    whole(code, status.to_string())
}

fn list(state: &State, from: usize) -> Response<Body> {
    let items: Vec<&Value> = state.objects.values().skip(from).take(state.page).collect();
    let next = from + items.len();
    let mut metadata = json!({ "resourceVersion": state.version.to_string() });
    if next < state.objects.len() {
        metadata["continue"] = json!(next.to_string());
    }
    // Go writes an empty list as null.
    let items = if items.is_empty() {
        Value::Null
    } else {
        json!(items)
    };
    whole(
        200,
        json!({ "kind": "List", "metadata": metadata, "items": items }).to_string(),
    )
}

/// Returns a stream of all events after a version, one per line.
fn watched(shared: &Arc<Shared>, from: u64) -> Response<Body> {
    let watching = (
        Arc::clone(shared),
        from,
        shared.changed.subscribe(),
        shared.cuts.subscribe(),
    );
    let lines = stream::unfold(Some(watching), |watching| async {
        let (shared, from, mut changed, mut cuts) = watching?;
        loop {
            let next = {
                let mut state = shared.state.lock();
                let next = state.events.iter().find(|(version, ..)| *version > from).cloned();
                next.map(|event| (event, std::mem::take(&mut state.breaks), state.is_slow))
            };
            if let Some(((version, kind, object), breaks, is_slow)) = next {
                let line = format!("{}\n", json!({ "type": kind, "object": object }));
                if breaks {
                    let half = Bytes::from(line[..line.len() / 2].to_owned());
                    return Some((vec![Ok(half), Err(io::Error::other("cut"))], None));
                }
                let piece = if is_slow { 16 } else { line.len() };
                let pieces = line
                    .as_bytes()
                    .chunks(piece)
                    .map(|piece| Ok(piece.to_vec().into()));
                return Some((pieces.collect(), Some((shared, version, changed, cuts))));
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = cuts.changed() => return Some((vec![Err(io::Error::other("cut"))], None)),
            }
        }
    });
    let frames = lines.flat_map(|pieces: Vec<io::Result<Bytes>>| {
        stream::iter(pieces).then(|piece| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            piece.map(Frame::data)
        })
    });
    Response::new(BodyExt::boxed(StreamBody::new(frames)))
}

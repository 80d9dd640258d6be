//! Honest clients: streams of chat completions over keep-alive HTTP/1.1 and HTTP/2 connections, each read to its end
//! and compared with the engine's, byte for byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::replies::{body, reference, timeless};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::stage::{HONEST, Stage, bearer};

/// Tokens of replies and words of questions.
const SHAPES: [(u64, u64); 4] = [(5, 20), (20, 200), (40, 20), (40, 2_000)];
/// Streams per HTTP/2 connection; the same number have an HTTP/1.1 connection each.
const PER_CONNECTION: usize = 10;
/// Longest duration of a stream.
const PATIENCE: Duration = Duration::from_secs(30);

/// The outcome of the streams.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) streams: usize,
    pub(crate) complete: u64,
    pub(crate) errors: Vec<String>,
}

/// State shared by the streams.
#[derive(Debug)]
struct Shared {
    router: SocketAddr,
    references: BTreeMap<(u64, u64), String>,
    stop: AtomicBool,
    number: AtomicU64,
    complete: AtomicU64,
    errors: Mutex<Vec<String>>,
}

/// Running honest clients.
#[derive(Debug)]
pub(crate) struct Honest {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
    streams: usize,
}

/// A keep-alive connection.
enum Connection {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Connection {
    async fn open(router: SocketAddr, http2: bool) -> Result<Self, String> {
        let failed = |error: hyper::Error| format!("no connection: {error:?}");
        let stream = TcpStream::connect(router)
            .await
            .map_err(|error| format!("no connection: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let io = TokioIo::new(stream);
        Ok(if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.map_err(failed)?;
            tokio::spawn(connection);
            Self::Two(sender)
        } else {
            #[expect(clippy::disallowed_methods, reason = "the client of a test")]
            let (sender, connection) = http1::handshake(io).await.map_err(failed)?;
            tokio::spawn(connection);
            Self::One(sender)
        })
    }

    fn again(&self) -> Option<Self> {
        match self {
            Self::One(_) => None,
            Self::Two(sender) => Some(Self::Two(sender.clone())),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

async fn stream(shared: &Shared, connection: &mut Connection) -> Result<(), String> {
    let number = shared.number.fetch_add(1, Ordering::Relaxed);
    let shape = SHAPES[number as usize % SHAPES.len()];
    let id = format!("honest-{number}");
    let request = match connection {
        Connection::One(_) => Request::post(CHAT).header("host", "router.test"),
        Connection::Two(_) => Request::post(format!("http://router.test{CHAT}")),
    };
    let request = request
        .header("authorization", bearer(HONEST))
        .header("content-type", "application/json")
        .header("x-request-id", &id)
        .body(Full::new(Bytes::from(body(shape.0, shape.1))))
        .unwrap();
    let response = connection
        .send(request)
        .await
        .map_err(|error| format!("no answer: {error:?}"))?;
    let status = response.status();
    let whole = response.into_body().collect().await;
    let whole = whole
        .map_err(|error| format!("the answer breaks off: {error:?}"))?
        .to_bytes();
    if status != 200 {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&whole)));
    }
    let seen = timeless(&whole, &id);
    if seen != shared.references[&shape] || !seen.trim_end().ends_with("[DONE]") {
        return Err(format!("not what the engine says: {seen}"));
    }
    Ok(())
}

async fn client(shared: Arc<Shared>, http2: bool, first: Option<Connection>) {
    let mut connection = first;
    while !shared.stop.load(Ordering::Relaxed) {
        let streamed = async {
            if connection.is_none() {
                connection = Some(Connection::open(shared.router, http2).await?);
            }
            stream(&shared, connection.as_mut().unwrap()).await
        };
        let streamed = tokio::time::timeout(PATIENCE, streamed).await;
        match streamed.unwrap_or_else(|_| Err("the answer does not end".to_owned())) {
            Ok(()) => {
                shared.complete.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                shared.errors.lock().push(error);
                connection = None;
                // A dead router refuses connections at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Honest {
    /// Starts this number of streams.
    pub(crate) async fn start(stage: &Stage, streams: usize) -> Self {
        let mut references = BTreeMap::new();
        for shape in SHAPES {
            let said = reference(stage.engines[0].address, shape.0, shape.1).await;
            references.insert(shape, said);
        }
        let shared = Arc::new(Shared {
            router: stage.data(),
            references,
            stop: AtomicBool::new(false),
            number: AtomicU64::new(0),
            complete: AtomicU64::new(0),
            errors: Mutex::default(),
        });
        let mut clients = JoinSet::new();
        let mut joint: Option<Connection> = None;
        for number in 0..streams {
            let http2 = !number.is_multiple_of(2);
            if http2 && (number / 2).is_multiple_of(PER_CONNECTION) {
                // Without a shared connection, each stream opens its own, or reports why it cannot.
                joint = Connection::open(shared.router, true).await.ok();
            }
            let first = joint.as_ref().filter(|_| http2).and_then(Connection::again);
            clients.spawn(client(Arc::clone(&shared), http2, first));
        }
        Self {
            shared,
            clients,
            streams,
        }
    }

    /// Lets the streams end. Returns their outcome.
    pub(crate) async fn end(mut self) -> Tally {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        Tally {
            streams: self.streams,
            complete: self.shared.complete.load(Ordering::Relaxed),
            errors: std::mem::take(&mut self.shared.errors.lock()),
        }
    }
}

//! Clients that stream continuously over every kind of connection that HTTP offers. They retry only requests that
//! were not sent or not processed; any other failed request counts as a failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::replies::{self, timeless};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::service::Service;

/// Tokens of replies and words of questions: each pair is a shape.
pub(crate) const REPLIES: [u64; 3] = [5, 12, 25];
pub(crate) const QUESTIONS: [u64; 3] = [5, 100, 500];
/// Streams per HTTP/2 connection.
const SHARED_BY: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Complete, and equal to the engine's, byte for byte.
    pub(crate) complete: AtomicU64,
    /// Requests without a response, or with a status other than 200.
    pub(crate) failed: Mutex<Vec<String>>,
    /// Streams that broke off, or differed from the engine's.
    pub(crate) broken: Mutex<Vec<String>>,
    /// HTTP/1.1 connections whose end was announced by a response.
    pub(crate) told: AtomicU64,
    /// HTTP/1.1 connections closed without an announcement.
    pub(crate) untold: AtomicU64,
    /// HTTP/2 connections that accepted no further request.
    pub(crate) left: AtomicU64,
}

/// State shared by the clients.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) tally: Tally,
    service: Arc<Service>,
    references: BTreeMap<(u64, u64), String>,
    numbers: AtomicU64,
    stop: AtomicBool,
}

#[derive(Debug)]
enum Line {
    One(http1::SendRequest<Full<Bytes>>),
    Many(http2::SendRequest<Full<Bytes>>),
}

impl Line {
    async fn one(service: &Service) -> Result<Self, String> {
        let socket = connect(service).await?;
        #[expect(clippy::disallowed_methods, reason = "the client of a test")]
        let (sender, connection) = http1::handshake(socket)
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(Self::One(sender))
    }

    async fn many(service: &Service) -> Result<http2::SendRequest<Full<Bytes>>, String> {
        let socket = connect(service).await?;
        let shaken = http2::handshake(TokioExecutor::new(), socket).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Returns whether another request may be sent, as far as is known.
    async fn is_open(&mut self) -> bool {
        match self {
            Self::One(line) => line.ready().await.is_ok(),
            Self::Many(line) => line.ready().await.is_ok(),
        }
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        match self {
            Self::One(line) => line.try_send_request(request).await,
            Self::Many(line) => line.try_send_request(request).await,
        }
    }
}

async fn connect(service: &Service) -> Result<TokioIo<TcpStream>, String> {
    let address = service.pick();
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(|error| format!("connecting to {address}: {error}"))?;
    socket.set_nodelay(true).unwrap();
    Ok(TokioIo::new(socket))
}

/// The state of a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// It can be reused.
    More,
    /// A response announced its end.
    Told,
    /// It has ended, and this request was not sent.
    Unsent,
    Failed,
}

impl Load {
    pub(crate) fn new(service: &Arc<Service>, references: BTreeMap<(u64, u64), String>) -> Arc<Self> {
        Arc::new(Self {
            tally: Tally::default(),
            service: Arc::clone(service),
            references,
            numbers: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// Starts this number of streams: half of them on a keep-alive connection each, a quarter on a new connection for
    /// each request, and a quarter on shared HTTP/2 connections.
    pub(crate) fn begin(self: &Arc<Self>, streams: usize) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        let shared: Vec<_> = (0..(streams / 4).div_ceil(SHARED_BY))
            .map(|_| Arc::new(Shared::default()))
            .collect();
        for number in 0..streams {
            let load = Arc::clone(self);
            match number % 4 {
                0 | 1 => clients.spawn(load.on_a_lasting_connection()),
                2 => clients.spawn(load.on_fresh_connections()),
                _ => {
                    let shared = Arc::clone(&shared[number / 4 % shared.len()]);
                    clients.spawn(load.on_a_shared_connection(shared))
                }
            };
        }
        clients
    }

    /// Waits until this number of further streams is complete, or one fails.
    pub(crate) async fn more(&self, count: u64) {
        let wanted = self.tally.complete.load(Ordering::Relaxed) + count;
        while self.tally.complete.load(Ordering::Relaxed) < wanted && self.failures() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Lets every client finish its stream.
    pub(crate) async fn end(&self, mut clients: JoinSet<()>) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
    }

    pub(crate) fn failures(&self) -> usize {
        self.tally.failed.lock().len() + self.tally.broken.lock().len()
    }

    /// Returns whether to continue: clients stop at the first failure.
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.failures() == 0
    }

    async fn on_a_lasting_connection(self: Arc<Self>) {
        let mut kept: Option<Line> = None;
        while self.goes_on() {
            let mut line = match kept.take() {
                Some(mut line) => {
                    if !line.is_open().await {
                        self.tally.untold.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    line
                }
                None => match Line::one(&self.service).await {
                    Ok(line) => line,
                    Err(why) => return self.tally.failed.lock().push(why),
                },
            };
            match self.stream(&mut line).await {
                After::More => kept = Some(line),
                After::Told => _ = self.tally.told.fetch_add(1, Ordering::Relaxed),
                After::Unsent => _ = self.tally.untold.fetch_add(1, Ordering::Relaxed),
                After::Failed => return,
            }
        }
    }

    async fn on_fresh_connections(self: Arc<Self>) {
        while self.goes_on() {
            match Line::one(&self.service).await {
                Ok(mut line) => _ = self.stream(&mut line).await,
                Err(why) => return self.tally.failed.lock().push(why),
            }
        }
    }

    async fn on_a_shared_connection(self: Arc<Self>, shared: Arc<Shared>) {
        while self.goes_on() {
            let mut line = match shared.line(&self).await {
                Ok(line) => Line::Many(line),
                Err(why) => return self.tally.failed.lock().push(why),
            };
            // A request that was not sent is repeated on the next connection.
            self.stream(&mut line).await;
        }
    }

    /// Runs one stream to its end.
    async fn stream(&self, line: &mut Line) -> After {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // Multiplicative hashing spreads the numbers over all variants.
        let dice = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let pick = |from: [u64; 3], by: u64| from[(dice / by % 3) as usize];
        let (reply, question) = (pick(REPLIES, 7), pick(QUESTIONS, 31));
        let id = format!("rolling-{number}");
        let request = Request::post(format!("http://router.test{CHAT}"))
            .header("host", "router.test")
            .header("x-request-id", &id)
            .body(Full::new(replies::body(reply, question).into()))
            .unwrap();
        let answer = match line.send(request).await {
            Ok(answer) => answer,
            Err(mut refused) => {
                if refused.take_message().is_some() || is_unprocessed(refused.error()) {
                    return After::Unsent;
                }
                let why = format!("{line:?}: {:?}", refused.error());
                self.tally.failed.lock().push(why);
                return After::Failed;
            }
        };
        let (head, body) = answer.into_parts();
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                self.tally.broken.lock().push(format!("{line:?}: {error:?}"));
                return After::Failed;
            }
        };
        if head.status != 200 {
            self.tally.failed.lock().push(format!("{head:?}: {body:?}"));
            return After::Failed;
        }
        let said = timeless(&body, &id);
        if said != self.references[&(reply, question)] || !said.ends_with("data: [DONE]\n\n") {
            self.tally.broken.lock().push(said);
            return After::Failed;
        }
        self.tally.complete.fetch_add(1, Ordering::Relaxed);
        let ends = head.headers.get(CONNECTION).is_some_and(|value| value == "close");
        if ends { After::Told } else { After::More }
    }
}

/// Returns whether a GOAWAY has marked this request as unprocessed: the two crossed on the way, and clients repeat
/// such a request on another connection (RFC 9113, section 6.8).
fn is_unprocessed(error: &hyper::Error) -> bool {
    format!("{error:?}").contains("GoAway(b\"\", NO_ERROR, Remote)")
}

/// An HTTP/2 connection shared by several clients. A client that finds it closed opens the next one.
#[derive(Debug, Default)]
struct Shared {
    line: tokio::sync::Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

impl Shared {
    async fn line(&self, load: &Load) -> Result<http2::SendRequest<Full<Bytes>>, String> {
        let mut line = self.line.lock().await;
        if let Some(open) = &mut *line {
            if open.ready().await.is_ok() {
                return Ok(open.clone());
            }
            load.tally.left.fetch_add(1, Ordering::Relaxed);
        }
        let fresh = Line::many(&load.service).await?;
        *line = Some(fresh.clone());
        Ok(fresh)
    }
}

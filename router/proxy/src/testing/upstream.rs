//! Workers that follow scripts, behind connections in memory.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tailroute_http::tls::ConnectError;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, sleep};
use tower_service::Service;

/// The last event of a chat stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// Size in bytes of a connection's buffer in each direction.
const BUFFER_BYTES: usize = 64 << 10;

/// Returns the event of one token.
pub(crate) fn token(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
}

/// Returns the event with the counts of prompt, reply and cached tokens.
pub(crate) fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> String {
    let details = cached.map(|cached| format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}"));
    let details = details.unwrap_or_default();
    format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion}{details}}}}}\n\n"
    )
}

#[derive(Clone, Debug)]
enum Cue {
    Wait(u64),
    Text(String),
    Cut,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OnConnect {
    #[default]
    Accept,
    Refuse,
    /// The connection times out after so many milliseconds.
    TimeOut(u64),
    /// The connection is closed before anything is read from it.
    Hang,
}

/// One response of a worker. A worker without a script never responds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    on_connect: OnConnect,
    cues: Vec<Cue>,
    is_whole: bool,
}

impl Script {
    /// The connection is refused.
    pub(crate) fn refused() -> Self {
        Self::on(OnConnect::Refuse)
    }

    /// The connection times out after so many milliseconds.
    pub(crate) fn unreachable(ms: u64) -> Self {
        Self::on(OnConnect::TimeOut(ms))
    }

    /// The connection is accepted and closed unread.
    pub(crate) fn hung_up() -> Self {
        Self::on(OnConnect::Hang)
    }

    fn on(on_connect: OnConnect) -> Self {
        Self {
            on_connect,
            ..Self::default()
        }
    }

    /// The worker reads the request and sends nothing.
    pub(crate) fn silent() -> Self {
        Self::default()
    }

    /// The head of a response whose body is sent in chunks.
    pub(crate) fn head(status: u16, fields: &[&str]) -> Self {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        Self::silent().text(&format!(
            "HTTP/1.1 {status} S\r\n{fields}transfer-encoding: chunked\r\n\r\n"
        ))
    }

    /// The head of an event stream.
    pub(crate) fn events() -> Self {
        Self::head(200, &["content-type: text/event-stream"])
    }

    /// A complete event stream of these tokens.
    pub(crate) fn tokens(tokens: &[&str]) -> Self {
        let events = tokens
            .iter()
            .fold(Self::events(), |script, text| script.token(text));
        events.done()
    }

    /// A complete JSON response.
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::whole(status, &["content-type: application/json"], body)
    }

    /// A complete response with its length.
    pub(crate) fn whole(status: u16, fields: &[&str], body: &str) -> Self {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let length = body.len();
        let response = Self::silent().text(&format!(
            "HTTP/1.1 {status} S\r\n{fields}content-length: {length}\r\n\r\n{body}"
        ));
        Self {
            is_whole: true,
            ..response
        }
    }

    /// Waits for so many milliseconds.
    pub(crate) fn wait(self, ms: u64) -> Self {
        self.then(Cue::Wait(ms))
    }

    /// Sends bytes as they are.
    pub(crate) fn text(self, text: &str) -> Self {
        self.then(Cue::Text(text.to_owned()))
    }

    /// Sends one chunk of the body.
    pub(crate) fn chunk(self, data: &str) -> Self {
        self.text(&format!("{:x}\r\n{data}\r\n", data.len()))
    }

    /// Sends the event of a token.
    pub(crate) fn token(self, text: &str) -> Self {
        self.chunk(&token(text))
    }

    /// Ends the body.
    pub(crate) fn end(self) -> Self {
        let ended = self.text("0\r\n\r\n");
        Self {
            is_whole: true,
            ..ended
        }
    }

    /// Ends a chat stream.
    pub(crate) fn done(self) -> Self {
        self.chunk(DONE).end()
    }

    /// Closes the connection.
    pub(crate) fn cut(self) -> Self {
        self.then(Cue::Cut)
    }

    fn then(mut self, cue: Cue) -> Self {
        self.cues.push(cue);
        self
    }
}

/// A request as a worker got it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// Milliseconds from the creation of the workers to the request's head.
    pub(crate) at_ms: u64,
    /// Request line and header fields, in lower case.
    pub(crate) head: String,
    /// The body, as far as it came.
    pub(crate) body: String,
    /// Milliseconds until the router closed the connection before the response was complete.
    pub(crate) left_ms: Option<u64>,
}

#[derive(Debug)]
struct ScriptedWorker {
    name: String,
    host: String,
    scripts: VecDeque<Script>,
    heard: Vec<Heard>,
}

/// The workers, as a connector to them.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    workers: Arc<Mutex<Vec<ScriptedWorker>>>,
    began: Instant,
}

impl Upstream {
    pub(super) fn new(workers: &[config::Worker]) -> Self {
        let worker = |spec: &config::Worker| ScriptedWorker {
            name: spec.name.clone(),
            host: spec.url.host().unwrap().to_owned(),
            scripts: VecDeque::new(),
            heard: Vec::new(),
        };
        Self {
            workers: Arc::new(Mutex::new(workers.iter().map(worker).collect())),
            began: Instant::now(),
        }
    }

    pub(super) fn script(&self, worker: &str, scripts: impl IntoIterator<Item = Script>) {
        self.with(worker, |its| its.scripts.extend(scripts));
    }

    /// Returns the requests that a worker got.
    pub(crate) fn heard(&self, worker: &str) -> Vec<Heard> {
        self.with(worker, |its| its.heard.clone())
    }

    pub(super) fn asked(&self) -> String {
        let workers = self.workers.lock();
        let of_worker = |its: &ScriptedWorker| -> Vec<(u64, String)> {
            its.heard
                .iter()
                .map(|heard| (heard.at_ms, its.name.clone()))
                .collect()
        };
        let mut asked: Vec<(u64, String)> = workers.iter().flat_map(of_worker).collect();
        asked.sort();
        asked.into_iter().map(|(_, name)| name).collect()
    }

    fn with<T>(&self, worker: &str, apply: impl FnOnce(&mut ScriptedWorker) -> T) -> T {
        let mut workers = self.workers.lock();
        apply(workers.iter_mut().find(|its| its.name == worker).unwrap())
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    async fn connect(self, worker: String) -> Result<TokioIo<DuplexStream>, ConnectError> {
        let on_connect = self.with(&worker, |its| {
            let on_connect = its
                .scripts
                .front()
                .map_or(OnConnect::Accept, |next| next.on_connect);
            if on_connect != OnConnect::Accept {
                its.scripts.pop_front();
            }
            on_connect
        });
        let (router, its) = duplex(BUFFER_BYTES);
        match on_connect {
            OnConnect::Refuse => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            OnConnect::TimeOut(ms) => {
                sleep(Duration::from_millis(ms)).await;
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            OnConnect::Hang => {}
            OnConnect::Accept => {
                tokio::spawn(async move { self.serve(worker, its).await });
            }
        }
        Ok(TokioIo::new(router))
    }

    /// Answers the requests of one connection.
    async fn serve(self, worker: String, mut stream: DuplexStream) {
        while let Some(head) = read_head(&mut stream).await {
            let is_chunked = head.contains("transfer-encoding: chunked");
            let length = content_length(&head);
            let heard = Heard {
                at_ms: self.now_ms(),
                head,
                ..Heard::default()
            };
            let (at, script) = self.with(&worker, |its| {
                its.heard.push(heard);
                let script = its.scripts.pop_front().unwrap_or_default();
                (its.heard.len() - 1, script)
            });
            let (body, is_read) = read_body(&mut stream, length, is_chunked).await;
            self.with(&worker, |its| its.heard[at].body = body);
            let end = if is_read {
                play(&mut stream, &script.cues).await
            } else {
                PlayEnd::Left
            };
            match end {
                PlayEnd::Cut => return,
                PlayEnd::Over if script.is_whole => continue,
                // The router decides how long it waits for the rest.
                PlayEnd::Over => closed(&mut stream).await,
                PlayEnd::Left => {}
            }
            let left_ms = Some(self.now_ms());
            self.with(&worker, |its| its.heard[at].left_ms = left_ms);
            return;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlayEnd {
    /// All cues were played.
    Over,
    /// The script closes the connection.
    Cut,
    /// The router closed the connection.
    Left,
}

async fn play(stream: &mut DuplexStream, cues: &[Cue]) -> PlayEnd {
    for cue in cues {
        let is_left = match cue {
            Cue::Cut => return PlayEnd::Cut,
            Cue::Text(text) => stream.write_all(text.as_bytes()).await.is_err(),
            Cue::Wait(ms) => tokio::select! {
                biased;
                () = closed(stream) => true,
                () = sleep(Duration::from_millis(*ms)) => false,
            },
        };
        if is_left {
            return PlayEnd::Left;
        }
    }
    PlayEnd::Over
}

/// Completes when the other side has closed the connection.
async fn closed(stream: &mut DuplexStream) {
    while stream.read(&mut [0; 1]).await.is_ok_and(|read| read > 0) {}
}

/// Reads the head of a request, in lower case; `None` if the connection is closed before.
async fn read_head(stream: &mut DuplexStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).to_ascii_lowercase())
}

fn content_length(head: &str) -> usize {
    let value = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Reads the body of a request. Returns it without its framing, and whether it is complete.
async fn read_body(stream: &mut DuplexStream, length: usize, is_chunked: bool) -> (String, bool) {
    let mut body = vec![0; length];
    let mut is_read = stream.read_exact(&mut body).await.is_ok();
    while is_chunked && is_read {
        let Some(size) = read_line(stream).await else {
            is_read = false;
            break;
        };
        let size = usize::from_str_radix(&size, 16).unwrap();
        let mut chunk = vec![0; size + 2];
        is_read = stream.read_exact(&mut chunk).await.is_ok();
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            break;
        }
    }
    (String::from_utf8_lossy(&body).into_owned(), is_read)
}

async fn read_line(stream: &mut DuplexStream) -> Option<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&line).trim_end().to_owned())
}

impl Service<Uri> for Upstream {
    type Response = TokioIo<DuplexStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let workers = self.workers.lock();
        let worker = workers.iter().find(|its| Some(&*its.host) == uri.host()).unwrap();
        Box::pin(self.clone().connect(worker.name.clone()))
    }
}

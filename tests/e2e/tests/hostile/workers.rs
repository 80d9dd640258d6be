//! Hostile workers: they answer probes well enough to stay in rotation, report false facts, and answer requests in
//! the mode of `x-mode`. Their clients check for responses that must not reach a client.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailroute_e2e::raw::{RawAnswer, Wire};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http1::{QUESTION, request};
use crate::stage::{METERED, RUDE, Worker, bearer};
use crate::strangers::{Ends, Kind, Target};

/// Pause between two writes, so that the router reads them separately.
const APART: Duration = Duration::from_millis(5);
/// Interval between pieces of an endless body.
const EVERY: Duration = Duration::from_millis(10);
/// Time that a client reads an endless body.
const PATIENCE: Duration = Duration::from_secs(2);
/// A body that looks like a response of hyper's own.
const LOOKS_LIKE_A_HEAD: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
/// A body sent with a content length of 5.
const TWENTY: &str = "ABCDEFGHIJKLMNOPQRST";
const OK: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"evil","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;
const USAGE: &str =
    r#""usage":{"prompt_tokens":4294967295,"completion_tokens":4294967295,"total_tokens":8589934590}}"#;

/// A host and port that is no worker's. The router must not connect.
#[derive(Debug)]
pub(crate) struct Bystander {
    address: SocketAddr,
    visits: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Bystander {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.9:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let visits = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&visits);
        let accepting = tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            address,
            visits,
            accepting,
        }
    }
}

/// A hostile worker. Dropping it closes its port.
#[derive(Debug)]
pub(crate) struct Evil {
    pub(crate) address: SocketAddr,
    bystander: Bystander,
    /// Requests received with fields that clients must not send to engines.
    steered: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Drop for Evil {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// How a worker reports its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Models {
    One,
    /// The list of models is a 404; every model is accepted.
    Unsaid,
}

impl Evil {
    pub(crate) async fn start(models: Models) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bystander = Bystander::start().await;
        let steered = Arc::new(AtomicU64::new(0));
        let (elsewhere, counter) = (bystander.address, Arc::clone(&steered));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counter = Arc::clone(&counter);
                // The router may disconnect at any time.
                tokio::spawn(async move {
                    let _ = serve(stream, elsewhere, models, &counter).await;
                });
            }
        });
        Self {
            address,
            bystander,
            steered,
            accepting,
        }
    }

    /// Returns its configuration section with further lines.
    pub(crate) fn worker(&self, lines: &str) -> Worker {
        Worker {
            address: self.address,
            lines: format!("models = [\"evil\"]\n{lines}"),
        }
    }

    /// Returns its configuration section without models.
    pub(crate) fn worker_of_any_model(&self) -> Worker {
        Worker {
            address: self.address,
            lines: "kv_events = \"off\"".to_owned(),
        }
    }

    pub(crate) fn steered(&self) -> u64 {
        self.steered.load(Ordering::Relaxed)
    }

    /// Returns the number of connections to the host that it reported in place of its own.
    pub(crate) fn visits_elsewhere(&self) -> u64 {
        self.bystander.visits.load(Ordering::Relaxed)
    }
}

async fn read_request(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8_lossy(&bytes).to_lowercase();
    let length = field(&head, "content-length").map_or(0, |length| length.parse().unwrap_or(0));
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((head, body))
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    fields
        .find(|(given, _)| *given == name)
        .map(|(_, value)| value.trim())
}

fn whole(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{fields}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Returns metrics of ranks that do not exist, each with its own label, and a count beyond any integer.
fn metrics_page() -> String {
    let ranks = (0..14_000).map(|rank| format!("vllm:num_requests_waiting{{engine=\"{rank}\"}} 1\n"));
    ranks.collect::<String>()
        + "vllm:num_requests_running{engine=\"0\"} 1e300\nvllm:num_requests_waiting{engine=\"0\"} NaN\n"
}

fn sources(elsewhere: SocketAddr) -> String {
    format!(
        r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://{elsewhere}","replay_endpoint":"tcp://{elsewhere}","topic":""}}}}"#
    )
}

/// Returns whether a body would steer an engine. Honest bodies do not contain the word.
fn is_steered(body: &[u8]) -> bool {
    body.windows(17).any(|bytes| bytes == b"do_remote_prefill")
}

async fn serve(
    mut stream: TcpStream,
    elsewhere: SocketAddr,
    models: Models,
    steered: &AtomicU64,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let (head, body) = read_request(&mut stream).await?;
        let path = head.split(' ').nth(1).unwrap_or_default();
        let json = "content-type: application/json\r\n";
        let answer = match path {
            "/health" => whole("200 OK", "", ""),
            "/v1/models" if models == Models::One => {
                whole("200 OK", json, r#"{"object":"list","data":[{"id":"evil"}]}"#)
            }
            "/metrics" => whole("200 OK", "content-type: text/plain\r\n", &metrics_page()),
            "/kv_event_sources" => whole("200 OK", json, &sources(elsewhere)),
            path if path.starts_with("/v1/chat") => {
                steered.fetch_add(u64::from(is_steered(&body)), Ordering::Relaxed);
                if !answer(&mut stream, field(&head, "x-mode").unwrap_or("ok")).await? {
                    return Ok(());
                }
                continue;
            }
            _ => whole("404 Not Found", "", ""),
        };
        stream.write_all(&answer).await?;
    }
}

/// Answers in this mode. Returns whether the connection can be reused.
async fn answer(stream: &mut TcpStream, mode: &str) -> io::Result<bool> {
    const JSON: &str = "content-type: application/json\r\n";
    const EVENTS: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    match mode {
        "hang" => {
            let _ = stream.read(&mut [0; 64]).await;
            return Ok(false);
        }
        "reset" => {
            stream.set_zero_linger()?;
            return Ok(false);
        }
        "looks-like-a-head" => {
            let length = 2 * LOOKS_LIKE_A_HEAD.len();
            let head = format!("HTTP/1.1 200 OK\r\n{JSON}content-length: {length}\r\n\r\n");
            for piece in [&head, LOOKS_LIKE_A_HEAD, LOOKS_LIKE_A_HEAD] {
                stream.write_all(piece.as_bytes()).await?;
                tokio::time::sleep(APART).await;
            }
        }
        "two-lengths" => {
            let head =
                format!("HTTP/1.1 200 OK\r\n{JSON}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n");
            let body = format!("{:x}\r\n{TWENTY}\r\n0\r\n\r\n", TWENTY.len());
            stream.write_all((head + &body).as_bytes()).await?;
            return Ok(false);
        }
        "usage" => {
            let body = format!("{},{USAGE}", OK.strip_suffix('}').unwrap());
            stream.write_all(&whole("200 OK", JSON, &body)).await?;
        }
        "fields" => {
            let fields =
                "x-tailroute-error: evil\r\nx-tailroute-worker: evil\r\nx-ratelimit-limit-requests: 7777\r\n";
            stream.write_all(&whole("200 OK", fields, OK)).await?;
        }
        "endless-head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            endless(
                stream,
                &b"x-more: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(300),
            )
            .await?;
        }
        "endless-line" => {
            stream.write_all(EVENTS).await?;
            let line = [&b"10000\r\ndata: "[..], &[b'd'; 0x10000 - 6], b"\r\n"].concat();
            endless(stream, &line).await?;
        }
        "endless-size" => {
            stream.write_all(EVENTS).await?;
            endless(stream, &[b'0'; 0x4000]).await?;
        }
        "big" => {
            const BYTES: usize = 8 << 20;
            let head = format!("HTTP/1.1 200 OK\r\n{JSON}content-length: {BYTES}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            for _ in 0..BYTES / 0x10000 {
                stream.write_all(&[b'['; 0x10000]).await?;
            }
        }
        "garbage" => {
            let bytes: Vec<u8> = (0..10_000_u32)
                .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect();
            stream.write_all(&bytes).await?;
            return Ok(false);
        }
        "short" => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"a\":")
                .await?;
            return Ok(false);
        }
        _ => stream.write_all(&whole("200 OK", JSON, OK)).await?,
    }
    Ok(true)
}

/// Writes until the router disconnects.
async fn endless(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    loop {
        stream.write_all(piece).await?;
        tokio::time::sleep(EVERY).await;
    }
}

/// Clients that send requests to hostile workers.
pub(crate) const KINDS: [Kind; 3] = [
    Kind {
        name: "workers that answer what they should not",
        connections: 8,
        ends: Ends::Stranger,
        life: |target| Box::pin(asks_and_looks(target)),
    },
    Kind {
        name: "workers that count 2^32 tokens",
        connections: 1,
        ends: Ends::Stranger,
        life: |target| Box::pin(is_charged(target)),
    },
    Kind {
        name: "workers whose answers have no end",
        connections: 12,
        ends: Ends::Stranger,
        life: |target| Box::pin(reads_some(target)),
    },
];

/// A mode, and the check of responses that may reach a client.
type LookedAt = (&'static str, fn(&RawAnswer) -> bool);

const LOOKED_AT: [LookedAt; 3] = [
    ("looks-like-a-head", |answer| {
        answer.status == 200 && answer.body == LOOKS_LIKE_A_HEAD.repeat(2).as_bytes()
    }),
    ("two-lengths", |answer| {
        answer.status == 502
            || answer.body == TWENTY.as_bytes()
                && answer
                    .headers
                    .get("content-length")
                    .is_none_or(|length| length == "20")
    }),
    ("fields", |answer| {
        answer.status == 200
            && !answer.headers.contains_key("x-tailroute-error")
            && !answer.headers.contains_key("x-ratelimit-limit-requests")
            && answer
                .headers
                .get("x-tailroute-worker")
                .is_none_or(|worker| worker != "evil")
    }),
];

/// Sends a request, and checks its response and the next one on the same connection.
async fn asks_and_looks(target: Target) -> io::Result<()> {
    let (mode, is_good) = target.next(&LOOKED_AT);
    let mut wire = Wire::over(target.connect().await?);
    // An invalid response panics.
    let answers = tokio::spawn(async move {
        wire.write(&request(mode, "", QUESTION)).await;
        let first = wire.answer().await.expect("an answer");
        if first
            .headers
            .get("connection")
            .is_some_and(|said| said == "close")
        {
            return (first, None);
        }
        wire.write(&request("ok", "", QUESTION)).await;
        (first, wire.answer().await)
    });
    match answers.await {
        Err(_) => target.wrong(format!("{mode}: no answer that can be read")),
        Ok((first, _)) if !is_good(&first) => {
            let body = String::from_utf8_lossy(&first.body).into_owned();
            target.wrong(format!("{mode}: {} {:?} {body}", first.status, first.headers));
        }
        Ok((_, Some(second))) if second.body != OK.as_bytes() => {
            let body = String::from_utf8_lossy(&second.body).into_owned();
            target.wrong(format!("the answer after {mode}: {body}"));
        }
        Ok(_) => {}
    }
    Ok(())
}

/// Checks that a worker's usage report does not block a key for longer than its responses can have cost.
async fn is_charged(target: Target) -> io::Result<()> {
    for mode in ["usage", "ok"] {
        // Without a token limit in the request, a reported count is accepted up to the model's context.
        let bounded = QUESTION.replacen('{', r#"{"max_tokens":16,"#, 1);
        let metered = String::from_utf8(request(mode, "", &bounded)).unwrap();
        let metered = metered.replace(&bearer(RUDE), &bearer(METERED));
        let mut wire = Wire::over(target.connect().await?);
        let answer = tokio::spawn(async move {
            wire.write(metered.as_bytes()).await;
            wire.answer().await.expect("an answer")
        });
        let Ok(answer) = answer.await else {
            target.wrong(format!("{mode}: no answer to a key with an allowance"));
            return Ok(());
        };
        if answer.status != 200 {
            let after = answer.headers.get("retry-after");
            target.wrong(format!(
                "{} with retry-after {after:?} after a count of 2^32",
                answer.status
            ));
        }
    }
    // A few hundred tokens of its hundred thousand a minute are spent.
    tokio::time::sleep(PATIENCE / 4).await;
    Ok(())
}

/// Reads for a while, then disconnects.
async fn reads_some(target: Target) -> io::Result<()> {
    let modes = [
        "endless-head",
        "endless-line",
        "endless-size",
        "garbage",
        "short",
        "reset",
        "hang",
    ];
    let mut stream = target.connect().await?;
    stream
        .write_all(&request(target.next(&modes), "", QUESTION))
        .await?;
    let reading = async {
        let mut buffer = vec![0; 0x10000];
        while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    };
    let _ = tokio::time::timeout(PATIENCE, reading).await;
    Ok(())
}

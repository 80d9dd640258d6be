//! A deterministic scripted worker, in the test's virtual time.
//!
//! A prompt's cached tokens are those of its common prefix with an earlier prompt. The engine advances the clock by
//! [`COST`] for the others, answers every request with the same four words, and keeps the requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use policy::units::Tokens;
use serde_json::{Value, json};
use tailroute_e2e::fleet::COST;
use tailroute_e2e::talk::MODEL;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The text of every response.
pub(crate) const SAID: &str = " one two three four";
/// Bytes of a body per token, and tokens per block.
const BYTES_PER_TOKEN: usize = 6;
const BLOCK: usize = 16;
/// Twice the number of hops from an engine through the router to a client and back.
const HOPS: usize = 8;
/// Number of bodies kept.
const MEMORY: usize = 48;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Responses have this status.
    Status(u16),
    /// The connection is closed instead of answering.
    Closes,
    /// Streams break off in the middle.
    Breaks,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Debug)]
struct State {
    takes_hints: bool,
    fault: Fault,
    seen: Vec<Bytes>,
    came: Vec<Came>,
    answered: u64,
}

/// Delayed requests: the number received, and the number released.
#[derive(Clone, Debug)]
struct Queue(Arc<AtomicU64>, watch::Receiver<u64>);

impl Queue {
    async fn wait(&mut self) {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        // The sender is the engine's, which may be dropped.
        let _ = self.1.wait_for(|released| *released > number).await;
    }
}

/// A scripted worker. Dropping it closes its port.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    released: watch::Sender<u64>,
    waiting: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Engine {
    /// Starts a worker with or without support for hints between requests.
    pub(crate) async fn start(takes_hints: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            takes_hints,
            fault: Fault::None,
            seen: Vec::new(),
            came: Vec::new(),
            answered: 0,
        }));
        let shared = Arc::clone(&state);
        let (released, turn) = watch::channel(0);
        let waiting = Arc::<AtomicU64>::default();
        let queue = Queue(Arc::clone(&waiting), turn);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let (shared, queue) = (Arc::clone(&shared), queue.clone());
                let service = service_fn(move |request| answer(Arc::clone(&shared), queue.clone(), request));
                tokio::spawn(async move {
                    // Some steps are about broken connections.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            state,
            released,
            waiting,
            accepting,
        }
    }

    /// Releases the oldest delayed request. Returns whether there was one.
    pub(crate) fn release(&self) -> bool {
        let waits = *self.released.borrow() < self.waiting.load(Ordering::Relaxed);
        if waits {
            self.released.send_modify(|number| *number += 1);
        }
        waits
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        self.state.lock().fault = fault;
    }

    /// Returns the number of received requests not yet taken.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().came.len()
    }

    /// Takes the received requests.
    pub(crate) fn take(&self) -> Vec<Came> {
        std::mem::take(&mut self.state.lock().came)
    }
}

async fn answer(
    state: Arc<Mutex<State>>,
    mut queue: Queue,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    // The router's own requests have no request id.
    if head.method == Method::GET && !head.headers.contains_key("x-request-id") {
        return Ok(described(&state, &path));
    }
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let (fault, number, cached) = {
        let mut state = state.lock();
        state.came.push(Came {
            line: format!("{} {}", head.method, head.uri),
            headers: head.headers,
            body: body.clone(),
        });
        state.answered += 1;
        (state.fault, state.answered, state.find(&body))
    };
    if path.starts_with("/v1/tailroute/") {
        return Ok(whole(
            StatusCode::OK,
            "application/json",
            r#"{"applied":1}"#.to_owned(),
        ));
    }
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    if asked["user"] == "waits" {
        queue.wait().await;
    }
    let prompt = body.len() / BYTES_PER_TOKEN;
    let prefill = COST.prefill(Tokens((prompt - cached) as u64), Tokens(cached as u64));
    tokio::time::advance(Duration::from_secs_f64(prefill.0 / 1e3)).await;
    match fault {
        Fault::Closes => return Err(std::io::Error::other("it is to close")),
        Fault::Status(status) => {
            let error = json!({ "error": { "message": "it fails", "type": "server_error", "param": null, "code": null } });
            return Ok(whole(
                StatusCode::from_u16(status).unwrap(),
                "application/json",
                error.to_string(),
            ));
        }
        Fault::None | Fault::Breaks => {}
    }
    let counted = Counted {
        number,
        prompt,
        cached,
    };
    if asked["stream"] == true {
        return Ok(streamed(events(&path, &counted), fault == Fault::Breaks));
    }
    Ok(whole(
        StatusCode::OK,
        "application/json",
        reply(&path, &counted).to_string(),
    ))
}

/// Answers a control request: health, models, capabilities.
fn described(state: &Mutex<State>, path: &str) -> Response<Body> {
    let said = match path {
        "/health" => Some(json!({})),
        "/v1/models" => Some(json!({ "object": "list", "data": [{ "id": MODEL, "object": "model" }] })),
        "/v1/tailroute" if state.lock().takes_hints => Some(json!({
            "dialect": "tailroute", "version": 1, "hints": ["trim", "ended", "protect"], "objective": true,
            "evict_first_header": "x-tailroute-evict-first-tokens", "max_hints": 64,
        })),
        _ => None,
    };
    let status = if said.is_some() {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    whole(status, "application/json", said.unwrap_or_default().to_string())
}

impl State {
    /// Returns the tokens of the longest common prefix with an earlier body, in whole blocks. Keeps the body.
    fn find(&mut self, body: &Bytes) -> usize {
        let common = |earlier: &Bytes| earlier.iter().zip(body).take_while(|(a, b)| a == b).count();
        let longest = self.seen.iter().map(common).max().unwrap_or(0);
        if self.seen.len() == MEMORY {
            self.seen.remove(0);
        }
        self.seen.push(body.clone());
        longest / BYTES_PER_TOKEN / BLOCK * BLOCK
    }
}

struct Counted {
    number: u64,
    prompt: usize,
    cached: usize,
}

impl Counted {
    fn openai(&self) -> Value {
        json!({ "prompt_tokens": self.prompt, "completion_tokens": 4, "total_tokens": self.prompt + 4,
            "prompt_tokens_details": { "cached_tokens": self.cached } })
    }

    fn responses(&self) -> Value {
        json!({ "input_tokens": self.prompt, "output_tokens": 4, "total_tokens": self.prompt + 4,
            "input_tokens_details": { "cached_tokens": self.cached } })
    }

    fn anthropic(&self) -> Value {
        json!({ "input_tokens": self.prompt - self.cached, "cache_read_input_tokens": self.cached, "output_tokens": 4 })
    }

    fn sglang(&self) -> Value {
        json!({ "id": "g", "prompt_tokens": self.prompt, "completion_tokens": 4, "cached_tokens": self.cached,
            "finish_reason": { "type": "stop" } })
    }
}

fn reply(path: &str, counted: &Counted) -> Value {
    match path {
        "/v1/chat/completions" => json!({ "id": "c", "object": "chat.completion", "model": MODEL,
            "choices": [{ "index": 0, "message": { "role": "assistant", "content": SAID }, "finish_reason": "stop" }],
            "usage": counted.openai() }),
        "/v1/completions" => json!({ "id": "c", "object": "text_completion", "model": MODEL,
            "choices": [{ "index": 0, "text": SAID, "finish_reason": "stop" }], "usage": counted.openai() }),
        "/v1/responses" => response(counted),
        "/v1/messages" => json!({ "id": "m", "type": "message", "role": "assistant", "model": MODEL,
            "content": [{ "type": "text", "text": SAID }], "stop_reason": "end_turn", "usage": counted.anthropic() }),
        "/generate" => json!({ "text": SAID, "meta_info": counted.sglang() }),
        "/v1/messages/count_tokens" => json!({ "input_tokens": counted.prompt }),
        "/tokenize" => json!({ "count": 3, "tokens": [1, 2, 3], "max_model_len": 4096 }),
        _ => json!({ "object": "list", "model": MODEL, "data": [],
            "usage": { "prompt_tokens": counted.prompt, "total_tokens": counted.prompt } }),
    }
}

fn response(counted: &Counted) -> Value {
    json!({ "id": format!("resp_{}", counted.number), "object": "response", "status": "completed", "model": MODEL,
        "output": [{ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": SAID }] }],
        "usage": counted.responses() })
}

/// Returns the events of a stream. The first comes when the prompt is computed, each further one 10 ms later.
fn events(path: &str, counted: &Counted) -> Vec<String> {
    let words = SAID.split_inclusive(' ').filter(|word| *word != " ");
    let data = |value: &Value| format!("data: {value}\n\n");
    let named = |name: &str, value: Value| format!("event: {name}\n{}", data(&value));
    let mut events: Vec<String> = Vec::new();
    match path {
        "/v1/messages" => {
            let message = json!({ "id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": [],
                "usage": counted.anthropic() });
            events.push(named(
                "message_start",
                json!({ "type": "message_start", "message": message }),
            ));
            events.push(named(
                "content_block_start",
                json!({ "type": "content_block_start", "index": 0,
                "content_block": { "type": "text", "text": "" } }),
            ));
            events.extend(words.map(|word| {
                named(
                    "content_block_delta",
                    json!({ "type": "content_block_delta",
                "index": 0, "delta": { "type": "text_delta", "text": word } }),
                )
            }));
            events.push(named(
                "content_block_stop",
                json!({ "type": "content_block_stop", "index": 0 }),
            ));
            events.push(named(
                "message_delta",
                json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" },
                "usage": { "output_tokens": 4 } }),
            ));
            events.push(named("message_stop", json!({ "type": "message_stop" })));
        }
        "/v1/responses" => {
            let id = format!("resp_{}", counted.number);
            events.push(named(
                "response.created",
                json!({ "type": "response.created", "response": { "id": id } }),
            ));
            events.extend(words.map(|word| {
                named(
                    "response.output_text.delta",
                    json!({ "type": "response.output_text.delta", "delta": word }),
                )
            }));
            events.push(named(
                "response.completed",
                json!({ "type": "response.completed", "response": response(counted) }),
            ));
        }
        "/generate" => {
            let mut text = String::new();
            for word in words {
                text.push_str(word);
                events.push(data(&json!({ "text": text, "meta_info": counted.sglang() })));
            }
            events.push("data: [DONE]\n\n".to_owned());
        }
        _ => {
            let delta = |word: &str| match path {
                "/v1/completions" => json!({ "index": 0, "text": word, "finish_reason": null }),
                _ => json!({ "index": 0, "delta": { "content": word }, "finish_reason": null }),
            };
            events.extend(
                words.map(|word| data(&json!({ "id": "c", "model": MODEL, "choices": [delta(word)] }))),
            );
            events.push(data(
                &json!({ "id": "c", "model": MODEL, "choices": [], "usage": counted.openai() }),
            ));
            events.push("data: [DONE]\n\n".to_owned());
        }
    }
    events
}

/// Delivers all messages in transit. The runtime polls its sockets whenever it becomes idle, so it is made idle twice
/// per hop of a message. A pause in real time would not suffice on a busy machine.
#[allow(
    clippy::disallowed_methods,
    reason = "it blocks a thread for blocking, since tokio's time stands still"
)]
pub(crate) async fn breathe() {
    for _ in 0..HOPS {
        let _ = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_micros(50))).await;
    }
}

fn whole(status: StatusCode, kind: &str, text: String) -> Response<Body> {
    let body = http_body_util::Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", kind.parse().unwrap());
    response
}

fn streamed(events: Vec<String>, breaks: bool) -> Response<Body> {
    let kept = if breaks { events.len() / 2 } else { events.len() };
    let ends = breaks.then(|| Err(std::io::Error::other("it is to break off")));
    let frames = events.into_iter().take(kept).map(|event| Ok(Bytes::from(event)));
    let frames = futures_util::stream::unfold((frames.chain(ends), true), |(mut frames, first)| async move {
        let next = frames.next()?;
        if !first {
            // The last event arrives before the clock advances.
            breathe().await;
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        Some((next.map(Frame::data), (frames, false)))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response
        .headers_mut()
        .insert("content-type", "text/event-stream".parse().unwrap());
    response
}

//! A small HTTP client, one connection per request, so that a test can also hang up.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use policy::cost::PrefillCost;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Virtual hours: nothing that costs this much ends within a test.
pub(crate) const NEVER_MS: f64 = 3.6e7;

/// A test that waits longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine a thousand times as fast as the wall.
pub(crate) fn quick() -> EngineConfig {
    EngineConfig {
        time_scale: 1000.0,
        prefill: PrefillCost {
            alpha_ms_per_token: 0.5,
            beta_ms: 10.0,
            gamma_ms_per_token2: 0.001,
            floor_ms: 0.0,
        },
        per_request_metrics: true,
        multibyte: true,
        capture: true,
        ..EngineConfig::default()
    }
}

pub(crate) async fn start(config: EngineConfig) -> Engine {
    Engine::start(config).await.unwrap()
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .expect("the test hangs")
}

pub(crate) fn say(text: &str, extra: Value) -> Value {
    talk(&[("user", text)], extra)
}

pub(crate) fn talk(messages: &[(&str, &str)], extra: Value) -> Value {
    let messages: Vec<Value> = messages
        .iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect();
    let mut body = json!({ "model": "sim", "messages": messages });
    if let (Value::Object(body), Value::Object(extra)) = (&mut body, extra) {
        body.extend(extra);
    }
    body
}

/// A response whose body is still to come. Dropping it hangs up.
pub(crate) struct Open {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Open {
    pub(crate) async fn chunk(&mut self) -> Option<hyper::Result<Bytes>> {
        loop {
            match within(self.body.frame()).await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// All the rest; the error, if the connection broke.
    pub(crate) async fn rest(mut self) -> (Vec<u8>, Option<hyper::Error>) {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await {
            match chunk {
                Ok(data) => all.extend_from_slice(&data),
                Err(error) => return (all, Some(error)),
            }
        }
        (all, None)
    }
}

pub(crate) async fn open(
    engine: &Engine,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Open, String> {
    let socket = TcpStream::connect(engine.addr())
        .await
        .map_err(|error| error.to_string())?;
    #[expect(clippy::disallowed_methods, reason = "the client of a test")]
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
        .await
        .map_err(|error| error.to_string())?;
    let connection = tokio::spawn(async move {
        // The sender or the body tells the test what went wrong.
        let _ = connection.await;
    });
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    let guard = AbortOnDrop(Some(connection));
    let response = within(sender.send_request(request))
        .await
        .map_err(|error| error.to_string())?;
    let (head, body) = response.into_parts();
    Ok(Open {
        status: head.status,
        headers: head.headers,
        body,
        connection: guard.keep(),
    })
}

/// Hangs up when the future that waits for an answer is dropped.
struct AbortOnDrop(Option<JoinHandle<()>>);

impl AbortOnDrop {
    fn keep(mut self) -> JoinHandle<()> {
        self.0.take().unwrap()
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.abort();
        }
    }
}

pub(crate) async fn call(
    engine: &Engine,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> (StatusCode, Value) {
    let body = if body.is_null() {
        Vec::new()
    } else {
        serde_json::to_vec(body).unwrap()
    };
    let open = open(engine, method, path, headers, body).await.unwrap();
    let status = open.status;
    let (bytes, error) = open.rest().await;
    assert!(error.is_none(), "{error:?}");
    let value = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    (status, value)
}

pub(crate) async fn chat(engine: &Engine, headers: &[(&str, &str)], body: &Value) -> Value {
    let (status, answer) = call(engine, "POST", "/v1/chat/completions", headers, body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

pub(crate) fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

pub(crate) fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

/// The events of a stream, `[DONE]` last.
pub(crate) fn events(stream: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stream).unwrap();
    let parse = |event: &str| {
        let data = event.strip_prefix("data: ").unwrap();
        serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()))
    };
    text.split_terminator("\n\n").map(parse).collect()
}

/// The events of a stream that names them, without their names, which their types repeat.
pub(crate) fn typed_events(stream: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stream).unwrap();
    let parse = |event: &str| {
        let (name, data) = event
            .strip_prefix("event: ")
            .and_then(|event| event.split_once("\ndata: "))
            .unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    text.split_terminator("\n\n").map(parse).collect()
}

/// The types of events, repeated ones once.
pub(crate) fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    types.dedup();
    types
}

/// Posts a body that must be answered.
pub(crate) async fn post(engine: &Engine, path: &str, body: &Value) -> Value {
    let (status, answer) = call(engine, "POST", path, &[], body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

/// Posts a body, streamed, to an API that names its events.
pub(crate) async fn stream(engine: &Engine, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let open = open(engine, "POST", path, &[], body.to_string()).await.unwrap();
    let (bytes, error) = open.rest().await;
    assert!(error.is_none());
    typed_events(&bytes)
}

pub(crate) fn streamed_text(events: &[Value]) -> String {
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect()
}

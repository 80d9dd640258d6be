//! An engine whose list of models, sleep and settings a test changes while it serves.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The engine's answer to `GET /v1/models`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// A list of the engine's models.
    Readably,
    /// A response of this status.
    Status(u16),
    /// An HTML page instead of a list.
    Html,
    /// No answer.
    Never,
}

/// The state of a [`ChangeableEngine`].
#[derive(Clone, Debug)]
pub struct Changeable {
    /// Models that the engine serves, also with a suffix after `:`. Requests for others are answered 404.
    pub models: Vec<String>,
    /// Answer to `GET /v1/models`.
    pub lists: Lists,
    pub asleep: bool,
    /// Capability document of `GET /v1/tailroute`, if any.
    pub capabilities: Option<Value>,
    /// Models of the requests that were answered 200, in order.
    pub served: Vec<String>,
    /// Models of the requests that were answered 404, in order.
    pub denied: Vec<String>,
    /// Whether the metrics page shows the sleep state; otherwise `GET /is_sleeping` does.
    pub sleep_in_metrics: bool,
}

/// A running engine. Dropping it closes its port.
#[derive(Debug)]
pub struct ChangeableEngine {
    /// Listen address.
    pub address: SocketAddr,
    state: Arc<Mutex<Changeable>>,
    accepting: JoinHandle<()>,
}

impl Drop for ChangeableEngine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl ChangeableEngine {
    /// Starts an engine that serves and lists these models.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(models: &[&str]) -> Self {
        let state = Arc::new(Mutex::new(Changeable {
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            lists: Lists::Readably,
            asleep: false,
            capabilities: None,
            served: Vec::new(),
            denied: Vec::new(),
            sleep_in_metrics: true,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let of = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let of = Arc::clone(&of);
                let answer = service_fn(move |request| answer(Arc::clone(&of), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self {
            address,
            state,
            accepting,
        }
    }

    /// Changes the engine's state.
    pub fn change<T>(&self, change: impl FnOnce(&mut Changeable) -> T) -> T {
        change(&mut self.state.lock())
    }

    /// Replaces the models.
    pub fn has(&self, models: &[&str]) {
        self.change(|state| state.models = models.iter().map(|model| (*model).to_owned()).collect());
    }
}

async fn answer(
    state: Arc<Mutex<Changeable>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    if path == "/v1/models" && state.lock().lists == Lists::Never {
        std::future::pending::<()>().await;
    }
    let (status, text) = state.lock().answer(&path, &body);
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    Ok(response)
}

impl Changeable {
    fn answer(&mut self, path: &str, body: &[u8]) -> (u16, String) {
        let not_found = || (404, json!({ "detail": "Not Found" }).to_string());
        match path {
            "/health" => (200, String::new()),
            "/v1/models" => match self.lists {
                Lists::Status(status) => (status, json!({ "detail": "no" }).to_string()),
                Lists::Html => (200, "<html>starting</html>".to_owned()),
                Lists::Readably | Lists::Never => {
                    let card = |model: &String| json!({ "id": model, "object": "model" });
                    let cards: Vec<Value> = self.models.iter().map(card).collect();
                    (200, json!({ "object": "list", "data": cards }).to_string())
                }
            },
            "/v1/tailroute" => match &self.capabilities {
                Some(document) => (200, document.to_string()),
                None => not_found(),
            },
            "/metrics" if self.sleep_in_metrics => {
                let awake = u8::from(!self.asleep);
                let page = format!(
                    "vllm:num_requests_waiting{{engine=\"0\"}} 0\nvllm:num_requests_running{{engine=\"0\"}} 0\n\
                     vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}.0\n\
                     vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"discard_all\"}} 0.0\n"
                );
                (200, page)
            }
            "/is_sleeping" if !self.sleep_in_metrics => {
                (200, json!({ "is_sleeping": self.asleep }).to_string())
            }
            "/v1/chat/completions" => self.complete(body),
            _ => not_found(),
        }
    }

    fn complete(&mut self, body: &[u8]) -> (u16, String) {
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        let model = asked["model"].as_str().unwrap_or_default().to_owned();
        let base = model.split(':').next().unwrap_or_default().to_owned();
        if !model.is_empty() && !self.models.contains(&model) && !self.models.contains(&base) {
            let message = format!("The model `{model}` does not exist.");
            self.denied.push(model);
            return (
                404,
                json!({ "error": { "message": message, "code": 404 } }).to_string(),
            );
        }
        self.served.push(model);
        let message = json!({ "role": "assistant", "content": "yes" });
        let answer = json!({
            "id": "c", "object": "chat.completion", "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6 },
        });
        (200, answer.to_string())
    }
}

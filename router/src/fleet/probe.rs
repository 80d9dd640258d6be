//! Asking a worker what it is: is it well, which models does it serve, how is it told things?

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tracing::{debug, info};

use super::Worker;
use crate::app::App;
use crate::body;
use crate::path::headers;

/// Longest answer of a control call that is read.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// A control call that failed.
#[derive(Debug)]
pub enum ProbeError {
    /// No answer in time.
    Timeout,
    /// An answer that is not a success.
    Status(StatusCode),
    /// No connection, or it broke.
    Transport(String),
}

impl ProbeError {
    /// Whether the worker merely did not answer in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout)
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("no answer in time"),
            Self::Status(status) => write!(f, "answered {status}"),
            Self::Transport(error) => f.write_str(error),
        }
    }
}

/// One control call to a worker, bounded in time and size.
///
/// # Errors
/// If there is no success answer within the health timeout.
pub async fn call(
    app: &App,
    worker: &Worker,
    method: Method,
    path: &str,
    json: Option<&Value>,
) -> Result<Bytes, ProbeError> {
    let transport = |error: &dyn fmt::Display| ProbeError::Transport(error.to_string());
    let uri = worker.uri(path).map_err(|error| transport(&error))?;
    let mut request = Request::builder().method(method).uri(uri);
    if json.is_some() {
        request = request.header(http::header::CONTENT_TYPE, "application/json");
    }
    let mut request = request
        .body(body::full(json.map(Value::to_string).unwrap_or_default()))
        .map_err(|error| transport(&error))?;
    headers::pin(request.headers_mut(), worker.spec.rank);
    let exchange = async {
        let response = app
            .client
            .request(request)
            .await
            .map_err(|error| transport(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let bytes = body
            .collect()
            .await
            .map_err(|error| transport(&error))?
            .to_bytes();
        if status.is_success() {
            Ok(bytes)
        } else {
            Err(ProbeError::Status(status))
        }
    };
    tokio::time::timeout(app.config.health.timeout, exchange)
        .await
        .unwrap_or(Err(ProbeError::Timeout))
}

/// Is it well?
///
/// # Errors
/// If it is not, or cannot be asked.
pub async fn health(app: &App, worker: &Worker) -> Result<(), ProbeError> {
    call(app, worker, Method::GET, &app.config.health.path, None)
        .await
        .map(drop)
}

/// Learns a worker's models and its dialect, and tells it the objective if that has a way.
pub async fn introduce(app: &App, worker: &Arc<Worker>) {
    let models = match call(app, worker, Method::GET, "/v1/models", None).await {
        Ok(answer) => models(&answer),
        Err(error) => {
            debug!(worker = worker.name(), %error, "it does not list its models");
            None
        }
    };
    let dialect = super::dialect::find(app, worker).await;
    info!(
        worker = worker.name(),
        dialect = dialect.name(),
        models = models.as_ref().map(Vec::len),
        "introduced"
    );
    worker.learned(dialect, models);
    if app.config.hints.enabled {
        super::hints::send_objective(app, worker).await;
    }
}

fn models(answer: &[u8]) -> Option<Vec<Value>> {
    let mut answer: Value = serde_json::from_slice(answer).ok()?;
    match answer.get_mut("data").map(Value::take) {
        Some(Value::Array(models)) => Some(models),
        _ => None,
    }
}

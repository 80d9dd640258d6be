//! Control calls to a worker: every call outside of requests, bounded in time and size.

use bytes::Bytes;
use http::header::{self, VIA};
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use crate::Transport;
use fleet::Worker;
use protocol::headers;
use tailroute_http::body;
use tailroute_http::error::with_causes;
use tailroute_http::upstream::LastOnConnection;

/// Longest response of a control call that is read.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// A control call that failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The worker did not respond in time.
    #[error("timed out waiting for a response")]
    Timeout,
    /// The request came back to a router that it had already passed.
    #[error("this address leads back to the router; give the address of an engine")]
    Loop,
    /// The response was not a success.
    #[error("answered {0}")]
    Status(StatusCode),
    /// The connection could not be opened, or broke.
    #[error("{0}")]
    Transport(String),
}

impl CallError {
    /// Returns whether the worker does not serve the path or the method.
    pub fn is_absence(&self) -> bool {
        const ABSENT: [StatusCode; 3] = [
            StatusCode::NOT_FOUND,
            StatusCode::METHOD_NOT_ALLOWED,
            StatusCode::NOT_IMPLEMENTED,
        ];
        matches!(self, Self::Status(status) if ABSENT.contains(status))
    }

    /// Returns whether the worker merely did not respond in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout)
    }
}

/// Makes a control call to a worker, bounded in time and size.
/// Fails if there is no successful response within the health timeout.
pub async fn call(
    transport: &Transport,
    worker: &Worker,
    method: Method,
    path: &str,
    json: Option<&Value>,
) -> Result<Bytes, CallError> {
    exchange(transport, worker, method, path, json, false).await
}

/// Probes a worker, and closes the connection that the probe used, so that control calls soon follow a host name that
/// moves to another address, as new connections of requests do. Fails if there is no successful response within the
/// health timeout.
pub async fn probe(transport: &Transport, worker: &Worker, path: &str) -> Result<Bytes, CallError> {
    exchange(transport, worker, Method::GET, path, None, true).await
}

async fn exchange(
    transport: &Transport,
    worker: &Worker,
    method: Method,
    path: &str,
    json: Option<&Value>,
    is_last: bool,
) -> Result<Bytes, CallError> {
    let broken = |error: &dyn std::error::Error| CallError::Transport(with_causes(error));
    let uri = worker.uri(path).map_err(|error| broken(&error))?;
    let mut request = Request::builder().method(method).uri(uri);
    if json.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let mut request = request
        .body(body::full(json.map(Value::to_string).unwrap_or_default()))
        .map_err(|error| broken(&error))?;
    let via = transport.via.of_request(Version::HTTP_11);
    request.headers_mut().insert(VIA, via);
    if is_last {
        request.extensions_mut().insert(LastOnConnection);
    }
    headers::present(request.headers_mut(), &worker.spec);
    headers::pin(request.headers_mut(), worker.spec.rank);
    let exchange = async {
        let response = transport
            .client
            .send(request)
            .await
            .map_err(|error| broken(&error))?;
        let status = response.status();
        if status == StatusCode::LOOP_DETECTED {
            return Err(CallError::Loop);
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let bytes = body
            .collect()
            .await
            .map_err(|error| broken(error.as_ref()))?
            .to_bytes();
        if status.is_success() {
            Ok(bytes)
        } else {
            Err(CallError::Status(status))
        }
    };
    tokio::time::timeout(transport.call_timeout, exchange)
        .await
        .unwrap_or(Err(CallError::Timeout))
}

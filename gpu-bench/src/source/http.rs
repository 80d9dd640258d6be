//! Samples from a worker over its public HTTP interface: [`discover`] collects facts, [`worker`] turns cells into
//! prompts, [`chat`] sends a prompt and reads its stream. This file is their HTTP client.

pub mod chat;
pub mod discover;
pub mod worker;

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::{BodyExt as _, Limited};
use policy::text::printable;
use reqwest::Response;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Header by which a router names the worker that served a response.
const ROUTED: &str = "x-tailroute-worker";

const MAX_BODY_BYTES: usize = 4 << 20;

/// Why a probe failed.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The worker cannot be reached, or the connection broke.
    #[error("the worker cannot be reached, or the connection broke")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The worker did not answer in time.
    #[error("the worker did not answer within {} s (--timeout-s)", .0.as_secs())]
    Timeout(Duration),
    /// The worker requires a key.
    #[error(
        "the worker answered {status}: a key is required; pass it with --api-key-file or in GPU_BENCH_API_KEY"
    )]
    Unauthorised {
        /// 401 or 403.
        status: u16,
    },
    /// The status was not 2xx, 401 or 403.
    #[error("the worker answered {status}: {said}")]
    Status {
        status: u16,
        /// The beginning of the response's body.
        said: String,
    },
    /// The response was not a stream.
    #[error(
        "the worker does not stream (its answer is {0:?}, not text/event-stream), so its first token cannot be timed"
    )]
    NotStreaming(String),
    /// The stream lacked a part.
    #[error("the worker's stream had no {0}")]
    Incomplete(&'static str),
    /// The response was malformed.
    #[error("the worker's response is malformed: {0}")]
    Malformed(String),
    /// The address is a router's.
    #[error(
        "{base} is a tailroute router, which forwarded the prompt to {worker}: measure that worker at its own address \
         (`tailroute ctl workers` lists them)"
    )]
    Router {
        /// The base URL of the router.
        base: String,
        /// The worker that answered.
        worker: String,
    },
    /// The worker lists no model.
    #[error("the worker does not say which models it serves; name one with --model")]
    NoModel,
    /// The worker does not report its load.
    #[error("--polite needs the worker's /metrics with the engine's running and waiting requests")]
    NoMetrics,
    /// A repeated prompt was computed twice, or its cached tokens were not reported.
    #[error(
        "the same prompt twice, and no cached tokens reported: prefix caching is off, or not reported \
         (vLLM: --enable-prefix-caching --enable-prompt-tokens-details; SGLang: --enable-cache-report)"
    )]
    NoCache,
}

impl ProbeError {
    /// Returns whether further probes would fail too.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::Connection(_)
                | Self::Timeout(_)
                | Self::Status { .. }
                | Self::Incomplete(_)
                | Self::Malformed(_)
        )
    }
}

impl From<reqwest::Error> for ProbeError {
    fn from(error: reqwest::Error) -> Self {
        Self::Connection(error.into())
    }
}

/// An HTTP client of a worker or a router.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    timeout: Duration,
}

impl Client {
    /// Returns a client of `base` (without a trailing slash) with `timeout` per response. Fails if it cannot be built.
    pub fn new(base: String, key: Option<HeaderValue>, timeout: Duration) -> Result<Self, ProbeError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = key {
            headers.insert(AUTHORIZATION, key);
        }
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(timeout.min(Duration::from_secs(10)))
            .default_headers(headers)
            .build()?;
        Ok(Self { http, base, timeout })
    }

    /// Returns the base URL.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns the timeout of a response.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a GET and returns the response as text. Fails if the request fails.
    pub async fn text(&self, path: &str) -> Result<String, ProbeError> {
        let answer = async { Ok(text(self.send(Method::GET, path, None).await?).await) };
        self.in_time(answer).await
    }

    /// Sends a GET and parses the JSON response. Fails if the request fails, or the response does not parse.
    pub async fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProbeError> {
        let body = self.text(path).await?;
        serde_json::from_str(&body).map_err(|error| ProbeError::Malformed(format!("{path}: {error}")))
    }

    /// Sends a PUT with a JSON body and returns the response as text. Fails if the request fails.
    pub async fn put(&self, path: &str, body: &serde_json::Value) -> Result<String, ProbeError> {
        let body = Some(Bytes::from(body.to_string()));
        let answer = async { Ok(text(self.send(Method::PUT, path, body).await?).await) };
        self.in_time(answer).await
    }

    pub(crate) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, ProbeError>>,
    ) -> Result<T, ProbeError> {
        let answered = tokio::time::timeout(self.timeout, answer).await;
        answered.map_err(|_| ProbeError::Timeout(self.timeout))?
    }

    async fn send(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Response, ProbeError> {
        let request = self.http.request(method, format!("{}{path}", self.base));
        let response = request.body(body.unwrap_or_default()).send().await?;
        if let Some(worker) = response.headers().get(ROUTED) {
            return Err(ProbeError::Router {
                base: self.base.clone(),
                worker: String::from_utf8_lossy(worker.as_bytes()).into_owned(),
            });
        }
        match response.status().as_u16() {
            200..=299 => Ok(response),
            status @ (401 | 403) => Err(ProbeError::Unauthorised { status }),
            status => {
                let said = printable(&text(response).await).chars().take(300).collect();
                Err(ProbeError::Status { status, said })
            }
        }
    }
}

async fn text(response: Response) -> String {
    let body = Limited::new(reqwest::Body::from(response), MAX_BODY_BYTES)
        .collect()
        .await;
    body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned())
        .unwrap_or_default()
}

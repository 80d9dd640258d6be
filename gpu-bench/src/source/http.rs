//! Samples from a worker behind HTTP, through the very interface that its users have.
//!
//! [`discover`] asks what it is; [`worker`] turns cells into prompts; [`chat`] sends one and reads its stream; this file
//! is the client that all of them use.

pub mod chat;
pub mod discover;
pub mod worker;

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::{BodyExt as _, Limited};
use reqwest::Response;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Longest answer in one piece that is read.
const MAX_BODY_BYTES: usize = 4 << 20;

/// Why a probe found nothing.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The worker cannot be reached, or broke off.
    #[error("the worker cannot be reached, or broke off")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It did not answer in time.
    #[error("the worker did not answer within {} s (--timeout-s)", .0.as_secs())]
    Timeout(Duration),
    /// It wants to know who asks.
    #[error(
        "the worker answered {status}: it wants a key; give it with --api-key-file or in GPU_BENCH_API_KEY"
    )]
    Unauthorised {
        /// 401 or 403.
        status: u16,
    },
    /// It answered something else than 200.
    #[error("the worker answered {status}: {said}")]
    Status {
        /// The status.
        status: u16,
        /// What it said.
        said: String,
    },
    /// It answered in one piece.
    #[error(
        "the worker does not stream (its answer is {0:?}, not text/event-stream), so its first token cannot be timed"
    )]
    NotStreaming(String),
    /// The stream lacked something.
    #[error("the worker's stream had no {0}")]
    Incomplete(&'static str),
    /// The answer was something else than expected.
    #[error("the worker's answer is not what it should be: {0}")]
    Malformed(String),
    /// The worker names no model.
    #[error("the worker does not say which models it serves; name one with --model")]
    NoModel,
    /// It cannot be told whether it has other work.
    #[error("--polite needs the worker's /metrics with the engine's running and waiting requests")]
    NoMetrics,
    /// The same prompt twice was computed twice.
    #[error(
        "the same prompt twice, and no cached tokens reported: prefix caching is off, or not reported \
         (vLLM: --enable-prefix-caching --enable-prompt-tokens-details; SGLang: --enable-cache-report)"
    )]
    NoCache,
}

impl ProbeError {
    /// Whether the next probe would fare no better.
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

/// A worker's, or a router's, HTTP.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    timeout: Duration,
}

impl Client {
    /// A client of what is at `base` (without a slash at its end), which answers within `timeout`.
    ///
    /// # Errors
    /// If this machine cannot make one.
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

    /// Where it is.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// How long an answer may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The text at `path`.
    ///
    /// # Errors
    /// If it cannot be had.
    pub async fn text(&self, path: &str) -> Result<String, ProbeError> {
        let answer = async { Ok(text(self.send(Method::GET, path, None).await?).await) };
        self.in_time(answer).await
    }

    /// The JSON at `path`.
    ///
    /// # Errors
    /// If it cannot be had, or is something else.
    pub async fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProbeError> {
        let body = self.text(path).await?;
        serde_json::from_str(&body).map_err(|error| ProbeError::Malformed(format!("{path}: {error}")))
    }

    /// What is answered to a JSON body.
    ///
    /// # Errors
    /// If it is refused.
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
        match response.status().as_u16() {
            200..=299 => Ok(response),
            status @ (401 | 403) => Err(ProbeError::Unauthorised { status }),
            status => {
                let said = text(response).await.chars().take(300).collect();
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

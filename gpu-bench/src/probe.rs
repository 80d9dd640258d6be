//! One measurement: a streamed chat completion of a few tokens, and how long its first took.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use policy::units::{Millis, Tokens};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde::Deserialize;
use thiserror::Error;

/// Tokens asked for: the first may be an invisible one.
const RESPONSE_TOKENS: u32 = 4;

/// Longest list of models or error that is read.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Prompt tokens that came from the cache, as the worker counted.
    pub cached: Tokens,
    /// Prompt tokens that had to be computed.
    pub uncached: Tokens,
    /// From the request to its first content.
    pub ttft: Millis,
}

/// Why a probe found nothing.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The worker cannot be reached, or broke off.
    #[error("the worker cannot be reached, or broke off")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It did not answer in time.
    #[error("the worker did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
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
    /// The stream held no content, or no usage.
    #[error("the worker's stream had no {0}")]
    Incomplete(&'static str),
    /// The stream held something else than chunks of a chat completion.
    #[error("the worker's stream is not a chat completion's: {0}")]
    Malformed(String),
    /// The worker names no model.
    #[error("the worker does not say which models it serves; name one with --model")]
    NoModel,
}

/// A worker and the text that is sent to it.
#[derive(Debug)]
pub struct Prober {
    http: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>,
    base: String,
    model: String,
    timeout: Duration,
    seed: u64,
}

/// A model that a worker serves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// Tokens of prompt and answer that it takes, where the worker says.
    pub max_model_len: Option<u64>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Prober {
    /// A prober of the worker at `base` (without `/v1` and without a slash at its end). `seed` decides the text.
    #[must_use]
    pub fn new(base: String, timeout: Duration, seed: u64) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout.min(Duration::from_secs(10))));
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
        Self {
            http,
            base,
            model: String::new(),
            timeout,
            seed,
        }
    }

    /// Asks for `model` from now on.
    pub fn use_model(&mut self, model: String) {
        self.model = model;
    }

    /// The models that the worker serves.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn models(&self) -> Result<Vec<Model>, ProbeError> {
        #[derive(Deserialize)]
        struct List {
            data: Vec<Model>,
        }
        let response = self.send("/v1/models", None).await?;
        let body = text(response).await;
        let list: List =
            serde_json::from_str(&body).map_err(|error| ProbeError::Malformed(error.to_string()))?;
        Ok(list.data)
    }

    /// `count` words that no other `name` has.
    #[must_use]
    pub fn words(&self, name: u64, count: u64) -> String {
        let mut rng = Pcg64::seed_from_u64(self.seed ^ name.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut text = String::with_capacity(6 * count as usize);
        for _ in 0..count {
            text.push(' ');
            (0..rng.random_range(3..=5)).for_each(|_| text.push(char::from(rng.random_range(b'a'..=b'z'))));
        }
        text
    }

    /// Sends `prompt` as one user message and times its first content.
    ///
    /// # Errors
    /// If there is no streamed answer with content and usage.
    pub async fn probe(&self, prompt: &str) -> Result<Sample, ProbeError> {
        let measured = tokio::time::timeout(self.timeout, self.exchange(prompt)).await;
        measured.map_err(|_| ProbeError::Timeout(self.timeout))?
    }

    async fn exchange(&self, prompt: &str) -> Result<Sample, ProbeError> {
        let body = serde_json::json!({
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": RESPONSE_TOKENS,
            "ignore_eos": true,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let body = Bytes::from(body.to_string());
        let sent = Instant::now();
        let response = self.send("/v1/chat/completions", Some(body)).await?;
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(ProbeError::NotStreaming(kind.to_owned()));
        }
        let mut body = response.into_body();
        let mut reading = Reading::default();
        let mut events = sse::Events::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ProbeError::Connection(error.into()))?;
            let Some(bytes) = frame.data_ref() else { continue };
            let at = sent.elapsed();
            events
                .push(bytes, |data| reading.event(data, at))
                .map_err(|error| ProbeError::Malformed(error.to_string()))?;
        }
        reading.finish()
    }

    async fn send(&self, path: &str, body: Option<Bytes>) -> Result<Response<Incoming>, ProbeError> {
        let connection = |error: Box<dyn std::error::Error + Send + Sync>| ProbeError::Connection(error);
        let url: Uri = format!("{}{path}", self.base)
            .parse()
            .map_err(|error| connection(Box::new(error)))?;
        let method = if body.is_some() {
            http::Method::POST
        } else {
            http::Method::GET
        };
        let mut request = Request::new(Full::new(body.unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = url;
        request
            .headers_mut()
            .insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        let response = self
            .http
            .request(request)
            .await
            .map_err(|error| connection(error.into()))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let said = text(response).await.chars().take(300).collect();
        Err(ProbeError::Status { status, said })
    }
}

async fn text(response: Response<Incoming>) -> String {
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
    body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned())
        .unwrap_or_default()
}

/// What was read of a stream so far.
#[derive(Default)]
struct Reading {
    first: Option<Duration>,
    usage: Option<Usage>,
    fault: Option<String>,
}

impl Reading {
    fn event(&mut self, data: &[u8], at: Duration) {
        if data == b"[DONE]" {
            return;
        }
        let chunk: Chunk = match serde_json::from_slice(data) {
            Ok(chunk) => chunk,
            Err(error) => {
                self.fault = Some(error.to_string());
                return;
            }
        };
        if let Some(error) = chunk.error {
            self.fault = Some(error.to_string());
        }
        self.usage = chunk.usage.or(self.usage);
        let delta = chunk.choices.into_iter().next().and_then(|choice| choice.delta);
        let spoke = delta.is_some_and(|delta| {
            [delta.content, delta.reasoning_content]
                .into_iter()
                .flatten()
                .any(|text| !text.is_empty())
        });
        if spoke {
            self.first.get_or_insert(at);
        }
    }

    fn finish(self) -> Result<Sample, ProbeError> {
        if let Some(fault) = self.fault {
            return Err(ProbeError::Malformed(fault));
        }
        let first = self.first.ok_or(ProbeError::Incomplete("content"))?;
        let usage = self.usage.ok_or(ProbeError::Incomplete("usage"))?;
        // vLLM leaves the details out where nothing was cached.
        let cached = usage
            .prompt_tokens_details
            .and_then(|details| details.cached_tokens)
            .unwrap_or(0);
        Ok(Sample {
            cached: Tokens(cached),
            uncached: Tokens(usage.prompt_tokens).saturating_sub(Tokens(cached)),
            ttft: Millis(first.as_secs_f64() * 1e3),
        })
    }
}

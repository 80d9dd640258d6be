//! One streamed chat completion: the times of its tokens, and the worker's counts.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use policy::units::{Millis, Tokens};
use serde::Deserialize;
use serde_json::Value;

use super::{Client, ProbeError};

/// Longest stream that is read.
const MAX_STREAM_BYTES: usize = 64 << 20;

/// A complete response.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Cached prompt tokens, as reported by the worker.
    pub cached: Tokens,
    /// Prompt tokens that had to be computed.
    pub uncached: Tokens,
    /// Generated tokens, as reported by the worker.
    pub generated: u64,
    /// Time from the request to its first content, by this program's clock.
    pub first: Millis,
    /// Arrival times and lengths in bytes of the pieces of text.
    pub pieces: Vec<(Millis, usize)>,
    /// Time to first token minus time in the queue, by the engine's clock, if reported.
    pub engine: Option<Millis>,
    /// Tiers of the cached tokens as (name, tokens), if reported.
    pub tiers: Vec<(String, Tokens)>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    metrics: Option<Metrics>,
    sglext: Option<Sglext>,
    error: Option<Value>,
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
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// vLLM's metrics, sent with `--enable-per-request-metrics`.
#[derive(Clone, Copy, Deserialize)]
struct Metrics {
    time_to_first_token_ms: Option<f64>,
    queue_time_ms: Option<f64>,
}

/// SGLang's extension, sent with `return_cached_tokens_details`.
#[derive(Deserialize)]
struct Sglext {
    cached_tokens_details: Option<serde_json::Map<String, Value>>,
}

/// A chat completion request.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The model to request.
    pub model: &'a str,
    /// The only user message.
    pub prompt: &'a str,
    /// Tokens to generate.
    pub tokens: u32,
    /// Whether to request the tiers of cached tokens from SGLang.
    pub tiers: bool,
}

impl Client {
    /// Sends a prompt as one user message and reads the response. Fails if it is no stream with content and usage.
    pub async fn chat(&self, ask: Ask<'_>) -> Result<Answer, ProbeError> {
        self.in_time(self.exchange(ask, || ())).await
    }

    /// Sends a prompt as [`Client::chat`] does, and calls `begun` at the first content. Fails as [`Client::chat`] does.
    pub async fn chat_and_tell(&self, ask: Ask<'_>, begun: impl FnOnce()) -> Result<Answer, ProbeError> {
        self.in_time(self.exchange(ask, begun)).await
    }

    async fn exchange(&self, ask: Ask<'_>, begun: impl FnOnce()) -> Result<Answer, ProbeError> {
        let mut begun = Some(begun);
        let mut body = serde_json::json!({
            "model": ask.model,
            "messages": [{"role": "user", "content": ask.prompt}],
            "max_tokens": ask.tokens,
            "ignore_eos": true,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if ask.tiers {
            body["return_cached_tokens_details"] = Value::Bool(true);
        }
        let body = Bytes::from(body.to_string());
        let sent = Instant::now();
        let mut response = self
            .send(Method::POST, "/v1/chat/completions", Some(body))
            .await?;
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(ProbeError::NotStreaming(kind.to_owned()));
        }
        let mut reading = Reading::default();
        let mut events = sse::Events::default();
        let mut read = 0;
        while let Some(bytes) = response.chunk().await? {
            let at = sent.elapsed();
            read += bytes.len();
            if read > MAX_STREAM_BYTES {
                return Err(ProbeError::Malformed(format!(
                    "more than {MAX_STREAM_BYTES} bytes"
                )));
            }
            events
                .push(&bytes, |data| reading.event(data, at))
                .map_err(|error| ProbeError::Malformed(error.to_string()))?;
            if !reading.pieces.is_empty()
                && let Some(begun) = begun.take()
            {
                begun();
            }
        }
        reading.finish()
    }
}

#[derive(Default)]
struct Reading {
    pieces: Vec<(Millis, usize)>,
    usage: Option<Usage>,
    metrics: Option<Metrics>,
    tiers: Vec<(String, Tokens)>,
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
        self.metrics = chunk.metrics.or(self.metrics);
        if let Some(details) = chunk.sglext.and_then(|sglext| sglext.cached_tokens_details) {
            let tier = |(name, tokens): (String, Value)| Some((name, Tokens(tokens.as_u64()?)));
            self.tiers = details.into_iter().filter_map(tier).collect();
        }
        let delta = chunk.choices.into_iter().next().and_then(|choice| choice.delta);
        let said: usize = delta.map_or(0, |delta| {
            let texts = [delta.content, delta.reasoning_content].into_iter().flatten();
            texts.map(|text| text.len()).sum()
        });
        if said > 0 {
            self.pieces.push((Millis(at.as_secs_f64() * 1e3), said));
        }
    }

    fn finish(self) -> Result<Answer, ProbeError> {
        if let Some(fault) = self.fault {
            return Err(ProbeError::Malformed(fault));
        }
        let first = self.pieces.first().ok_or(ProbeError::Incomplete("content"))?.0;
        let usage = self.usage.ok_or(ProbeError::Incomplete("usage"))?;
        // vLLM omits the details if nothing was cached.
        let cached = usage
            .prompt_tokens_details
            .and_then(|details| details.cached_tokens)
            .unwrap_or(0);
        let engine = self.metrics.and_then(|metrics| {
            let ttft = metrics.time_to_first_token_ms?;
            Some(ttft - metrics.queue_time_ms.unwrap_or(0.0)).filter(|prefill| *prefill > 0.0)
        });
        Ok(Answer {
            cached: Tokens(cached),
            uncached: Tokens(usage.prompt_tokens).saturating_sub(Tokens(cached)),
            generated: usage.completion_tokens,
            first,
            pieces: self.pieces,
            engine: engine.map(Millis),
            tiers: self.tiers,
        })
    }
}

//! `/v1/chat/completions` and `/v1/completions`: admission, then a streamed or an unstreamed reply.

use std::sync::Arc;

use ::http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::body::{self, Body, json_response};
use super::error::ApiError;
use super::request::{self, Reply, header_text};
use super::{Failure, fast, stream};
use crate::engine::{Shared, Ticket};
use crate::scheduler::Progress;
use crate::text;

pub(super) async fn answer(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    chat: bool,
) -> Result<Response<Body>, Failure> {
    let number = shared.receive();
    let fault = shared.fault();
    let struck = fault.hits(number);
    let headers = request.headers().clone();
    let bytes = super::read_body(shared, request).await?;
    if struck && fault.reset_before_first_byte {
        return Err(Failure::Cut);
    }
    if let Some(status) = fault.status.filter(|_| struck) {
        shared.count_injected();
        return Err(ApiError::injected(status).into());
    }
    if shared.config.fast {
        return Ok(fast::answer(shared, &headers, number, chat, &bytes)?);
    }
    let fields = request::fields(&shared.config, &bytes)?;
    let id = reply_id(&headers, chat, number);
    let (submission, reply) = fields.submission(&shared.config, &headers)?;
    drop(bytes);
    let ticket = shared.submit(submission).map_err(|_| ApiError::overloaded())?;
    let shape = Shape {
        id,
        chat,
        created: crate::engine::unix_seconds() as u64,
        shared: Arc::clone(shared),
        reply,
    };
    let breaks = fault.breaks().filter(|_| struck);
    if shape.reply.stream {
        return Ok(stream::respond(shape, ticket, breaks));
    }
    let answer = whole(&shape, ticket).await?;
    match breaks {
        None => Ok(answer),
        Some((_, how)) => {
            shared.count_injected();
            Ok(body::half(answer, how).await)
        }
    }
}

/// `POST /tokenize`, for prompts and messages.
pub(super) async fn tokenize(
    shared: &Shared,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let body = super::read_body(shared, request).await?;
    let tokens = request::fields(&shared.config, &body)?.prompt_tokens()?;
    let answer = json!({
        "count": tokens.len(), "max_model_len": shared.config.max_model_len, "tokens": tokens, "token_strs": null,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

/// The common parts of a reply's chunks.
pub(super) struct Shape {
    pub(super) id: String,
    pub(super) chat: bool,
    pub(super) created: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) reply: Reply,
}

impl Shape {
    /// Returns `usage`, with cached tokens if configured.
    pub(super) fn usage(&self, progress: &Progress) -> Value {
        let prompt = self.reply.prompt_tokens;
        let generated = u64::from(progress.generated);
        let details = if self.shared.config.cached_tokens_report {
            json!({ "cached_tokens": progress.cached_tokens })
        } else {
            Value::Null
        };
        json!({
            "prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated,
            "prompt_tokens_details": details,
        })
    }

    /// Returns `sglext`, if requested.
    pub(super) fn tiers(&self, progress: &Progress) -> Option<Value> {
        let device = progress.cached_tokens - progress.host_tokens;
        let details = json!({ "device": device, "host": progress.host_tokens });
        self.reply
            .tells_tiers
            .then(|| json!({ "cached_tokens_details": details }))
    }

    /// Returns `metrics` in wall milliseconds, if enabled.
    pub(super) fn metrics(&self, progress: &Progress) -> Option<Value> {
        self.shared.config.per_request_metrics.then(|| {
            json!({
                "time_to_first_token_ms": self.shared.wall(progress.ttft).0,
                "queue_time_ms": self.shared.wall(progress.queue).0,
            })
        })
    }
}

async fn whole(shape: &Shape, ticket: Ticket) -> Result<Response<Body>, Failure> {
    let Ticket { mut progress, hold } = ticket;
    let last = match progress.wait_for(|progress| progress.done).await {
        Ok(last) => *last,
        Err(_) => return Err(Failure::Cut),
    };
    drop(hold);
    if last.lost {
        return Err(Failure::Cut);
    }
    let config = &shape.shared.config;
    let said = match &shape.reply.script {
        Some(script) => script.message(last.generated),
        None => {
            let mut said = text::words(shape.reply.seed, 0..last.generated, config.multibyte);
            said.truncate(shape.reply.cut.unwrap_or(usize::MAX));
            plain(said)
        }
    };
    let mut answer = whole_answer(shape, said, shape.usage(&last));
    if let Some(metrics) = shape.metrics(&last) {
        answer["metrics"] = metrics;
    }
    if let Some(tiers) = shape.tiers(&last) {
        answer["sglext"] = tiers;
    }
    Ok(json_response(StatusCode::OK, &answer))
}

/// Returns a text message.
pub(super) fn plain(said: String) -> Value {
    json!({ "role": "assistant", "content": said, "tool_calls": [] })
}

pub(super) fn whole_answer(shape: &Shape, message: Value, usage: Value) -> Value {
    let finish = shape.reply.finish.name();
    let (object, choice) = if shape.chat {
        let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish });
        ("chat.completion", choice)
    } else {
        (
            "text_completion",
            json!({ "index": 0, "text": message["content"], "logprobs": null, "finish_reason": finish }),
        )
    };
    json!({
        "id": shape.id, "object": object, "created": shape.created, "model": shape.shared.config.model,
        "choices": [choice], "usage": usage,
    })
}

/// Returns the reply's id: the client's `X-Request-Id`, if it sent one.
pub(super) fn reply_id(headers: &HeaderMap, chat: bool, number: u64) -> String {
    let kind = if chat { "chatcmpl" } else { "cmpl" };
    match header_text(headers, "x-request-id") {
        Some(id) => format!(
            "{kind}-{}",
            id.chars()
                .filter(|char| !matches!(char, '"' | '\\'))
                .collect::<String>()
        ),
        None => format!("{kind}-sim{number:016x}"),
    }
}

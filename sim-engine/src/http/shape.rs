//! The JSON of a reply: the parts that streamed and unstreamed replies share.

use std::sync::Arc;

use ::http::HeaderMap;
use serde_json::{Value, json};

use super::request::{Reply, header_text};
use crate::rank::Shared;
use crate::scheduler::Progress;

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

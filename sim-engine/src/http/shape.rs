//! The properties that a reply and all its chunks share.

use std::sync::Arc;

use ::http::HeaderMap;
use serde_json::{Map, Value, json};

use super::api::Api;
use super::request::{Reply, header_text};
use crate::prompt::Message;
use crate::rank::Shared;
use crate::scheduler::Progress;
use crate::text;

pub(super) struct Shape {
    pub(super) id: String,
    pub(super) api: Api,
    pub(super) created: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) reply: Reply,
    pub(super) turn: Turn,
}

/// The parts of a request of `/v1/responses` that its response needs.
#[derive(Default)]
pub(super) struct Turn {
    /// The id that the request chooses for its response.
    pub(super) id: Option<String>,
    /// The members of the response that repeat the request.
    pub(super) echo: Map<String, Value>,
    /// The conversation to store; `None` if it is not stored.
    pub(super) kept: Option<Conversation>,
}

/// A conversation before the reply, without instructions.
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    /// Approximate size in bytes.
    pub(super) bytes: usize,
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

    /// Returns the generated message, in the form of chat completions.
    pub(super) fn message(&self, progress: &Progress) -> Value {
        if let Some(script) = &self.reply.script {
            return script.message(progress.generated);
        }
        let multibyte = self.shared.config.multibyte;
        let mut said = text::words(self.reply.seed, 0..progress.generated, multibyte);
        said.truncate(self.reply.cut.unwrap_or(usize::MAX));
        json!({ "role": "assistant", "content": said, "tool_calls": [] })
    }
}

/// Returns the reply's id: with the client's `X-Request-Id`, as in vLLM, or the body's `request_id` of `/v1/responses`.
pub(super) fn reply_id(shared: &Shared, headers: &HeaderMap, turn: &Turn, api: Api, number: u64) -> String {
    let kind = match api {
        Api::Chat | Api::Messages => "chatcmpl",
        Api::Completions => "cmpl",
        Api::Responses => return turn.id.clone().unwrap_or_else(|| shared.responses.new_id()),
    };
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

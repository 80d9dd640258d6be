//! Anthropic's `/v1/messages`, as vLLM serves it. A request is converted to one of chat completions and finds the same
//! cached blocks. Clients must send a limit and send a high one, so a reply ends after the configured number of tokens
//! if that is less.

mod ask;
mod events;

use ::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

pub(super) use self::ask::fields;
pub(super) use self::events::Events;
use super::body::{Body, json_response};
use super::error::ApiError;
use super::request::Finish;
use super::shape::Shape;
use crate::rank::Shared;
use crate::scheduler::Progress;

pub(super) async fn count_tokens(
    shared: &Shared,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let body = super::read_body(shared, request).await?;
    let tokens = ask::prompt(&shared.config, &body)?.prompt_tokens()?;
    Ok(json_response(
        StatusCode::OK,
        &json!({ "input_tokens": tokens.len() }),
    ))
}

pub(super) fn whole(shape: &Shape, progress: &Progress) -> Value {
    let message = shape.message(progress);
    let mut content = Vec::new();
    if let Some(text) = message["content"].as_str().filter(|text| !text.is_empty()) {
        content.push(json!({ "type": "text", "text": text }));
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        // Arguments that the limit cuts off are no JSON.
        let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
        let name = &call["function"]["name"];
        content.push(json!({ "type": "tool_use", "id": call["id"], "name": name, "input": input }));
    }
    json!({
        "id": shape.id, "type": "message", "role": "assistant", "model": shape.shared.config.model,
        "content": content, "stop_reason": stop_reason(shape), "stop_sequence": null,
        "usage": usage(shape, progress),
    })
}

/// Returns `usage`, whose `input_tokens` exclude cached tokens if those are reported.
fn usage(shape: &Shape, progress: &Progress) -> Value {
    let prompt = shape.reply.prompt_tokens;
    if !shape.shared.config.cached_tokens_report {
        return json!({ "input_tokens": prompt, "output_tokens": progress.generated });
    }
    let cached = progress.cached_tokens;
    json!({
        "input_tokens": prompt - cached, "output_tokens": progress.generated,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
    })
}

/// Returns why the reply ended. As in vLLM, a stop sequence counts as the end of the turn.
fn stop_reason(shape: &Shape) -> &'static str {
    match shape.reply.finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::ToolCalls => "tool_use",
    }
}

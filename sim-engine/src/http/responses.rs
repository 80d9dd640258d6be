//! OpenAI's `/v1/responses`, as vLLM serves it with its store enabled. A request is converted to one of chat
//! completions, so a conversation finds the same cached blocks at both. With `previous_response_id` the stored
//! conversation precedes the input. There is no background mode, so no response can be cancelled.

mod ask;
mod events;

use ::http::{Method, Response, StatusCode};
use serde_json::{Value, json};

pub(super) use self::ask::fields;
pub(super) use self::events::Events;
use super::body::{Body, json_response};
use super::error::ApiError;
use super::request::Finish;
use super::shape::{Conversation, Shape};
use crate::prompt::Message;
use crate::rank::Shared;
use crate::responses::Stored;
use crate::scheduler::Progress;

/// Answers a request for a stored response; `rest` is the path below `/v1/responses/`.
pub(super) fn stored(shared: &Shared, method: &Method, rest: &str) -> Result<Response<Body>, ApiError> {
    let (id, cancels) = match rest.strip_suffix("/cancel") {
        Some(id) => (id, true),
        None => (rest, false),
    };
    let path = format!("/v1/responses/{rest}");
    if id.is_empty() || id.contains('/') {
        return Err(ApiError::no_such_path(&path));
    }
    if *method != if cancels { Method::POST } else { Method::GET } {
        return Err(ApiError::method_not_allowed(method, &path));
    }
    match shared.responses.find(id) {
        None => Err(ApiError::no_such_response(id)),
        Some(_) if cancels => Err(ApiError::not_cancellable()),
        Some(stored) => Ok(json_response(StatusCode::OK, &stored.response)),
    }
}

/// Returns the whole response, and stores it if requested.
pub(super) fn whole(shape: &Shape, progress: &Progress) -> Value {
    let message = shape.message(progress);
    let output = output(&shape.id, &message);
    let status = if shape.reply.finish == Finish::Length {
        "incomplete"
    } else {
        "completed"
    };
    let response = response(shape, status, output, usage(shape, progress));
    if let Some(Conversation { messages, bytes }) = &shape.turn.kept {
        let mut messages = messages.clone();
        messages.push(Message {
            role: "assistant".to_owned(),
            content: Some(message["content"].clone()),
            tool_calls: Some(message["tool_calls"].clone()),
            ..Message::default()
        });
        let stored = Stored {
            bytes: bytes + message.to_string().len(),
            response: response.clone(),
            messages,
        };
        shape.shared.responses.keep(shape.id.clone(), stored);
    }
    response
}

fn response(shape: &Shape, status: &str, output: Vec<Value>, usage: Value) -> Value {
    let incomplete = match status {
        "incomplete" => json!({ "reason": "max_output_tokens" }),
        _ => Value::Null,
    };
    let mut response = json!({
        "id": shape.id, "object": "response", "created_at": shape.created, "status": status,
        "model": shape.shared.config.model, "output": output, "usage": usage,
        "incomplete_details": incomplete, "error": null,
    });
    if let Some(members) = response.as_object_mut() {
        members.extend(shape.turn.echo.clone());
    }
    response
}

fn usage(shape: &Shape, progress: &Progress) -> Value {
    let (prompt, generated) = (shape.reply.prompt_tokens, u64::from(progress.generated));
    let details = if shape.shared.config.cached_tokens_report {
        json!({ "cached_tokens": progress.cached_tokens })
    } else {
        Value::Null
    };
    json!({
        "input_tokens": prompt, "input_tokens_details": details,
        "output_tokens": generated, "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": prompt + generated,
    })
}

/// Returns the items of a message: its text, then each call.
fn output(id: &str, message: &Value) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(text) = message["content"].as_str().filter(|text| !text.is_empty()) {
        items.push(text_item(id, 0, "completed", vec![text_part(text)]));
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        items.push(call_item(id, items.len(), "completed", call, arguments));
    }
    items
}

fn text_item(id: &str, index: usize, status: &str, content: Vec<Value>) -> Value {
    json!({
        "id": item_id("msg", id, index), "type": "message", "role": "assistant", "status": status,
        "content": content,
    })
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn call_item(id: &str, index: usize, status: &str, call: &Value, arguments: &str) -> Value {
    json!({
        "id": item_id("fc", id, index), "type": "function_call", "call_id": call["id"],
        "name": call["function"]["name"], "arguments": arguments, "status": status,
    })
}

fn item_id(kind: &str, id: &str, index: usize) -> String {
    format!("{kind}_{}_{index}", id.strip_prefix("resp_").unwrap_or(id))
}

//! Converts a body of `/v1/responses` to the fields of chat completions.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::api::Api;
use crate::http::error::ApiError;
use crate::http::request::{self, Fields, Stop, Xargs};
use crate::http::shape::{Conversation, Turn};
use crate::prompt::Message;
use crate::rank::Shared;

#[derive(Deserialize)]
struct Ask {
    model: Option<String>,
    input: Input,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    request_id: Option<String>,
    store: Option<bool>,
    background: Option<bool>,
    stream: Option<bool>,
    max_output_tokens: Option<u32>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    stop: Option<Stop>,
    seed: Option<i64>,
    ignore_eos: Option<bool>,
    priority: Option<i64>,
    cache_salt: Option<String>,
    vllm_xargs: Option<Xargs>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Value>),
}

/// Parses a request. Returns the fields, and the parts that the response repeats or stores.
pub(in crate::http) fn fields(shared: &Shared, body: &[u8]) -> Result<(Fields, Turn), ApiError> {
    let members: Map<String, Value> = request::parse(&shared.config, Api::Responses, body)?;
    let echo = echo(&members);
    let ask: Ask = serde_json::from_value(Value::Object(members))
        .map_err(|error| ApiError::bad_request(format!("Invalid JSON body: {error}")))?;
    request::check_model(&shared.config, ask.model.as_deref())?;
    if ask.background == Some(true) {
        return Err(ApiError::bad_request("The background mode is not supported."));
    }
    let mut messages = Vec::new();
    let mut bytes = body.len();
    if let Some(id) = &ask.previous_response_id {
        let previous = shared
            .responses
            .find(id)
            .ok_or_else(|| ApiError::no_such_response(id))?;
        messages.clone_from(&previous.messages);
        bytes += previous.bytes;
    }
    match ask.input {
        Input::Text(text) => messages.push(message("user", text.into())),
        Input::Items(items) => items.into_iter().for_each(|item| push(item, &mut messages)),
    }
    let kept = ask.store.unwrap_or(true).then(|| Conversation {
        messages: messages.clone(),
        bytes,
    });
    if let Some(text) = ask.instructions {
        messages.insert(0, message("system", text.into()));
    }
    let fields = Fields {
        model: ask.model,
        messages: Some(messages),
        tools: ask.tools.map(|tools| tools.into_iter().map(tool).collect()),
        tool_choice: ask.tool_choice.map(tool_choice),
        parallel_tool_calls: ask.parallel_tool_calls,
        stream: ask.stream,
        max_tokens: ask.max_output_tokens,
        stop: ask.stop,
        seed: ask.seed,
        ignore_eos: ask.ignore_eos,
        priority: ask.priority,
        cache_salt: ask.cache_salt,
        vllm_xargs: ask.vllm_xargs,
        ..Fields::default()
    };
    let turn = Turn {
        id: ask.request_id,
        echo,
        kept,
    };
    Ok((fields, turn))
}

/// Returns the members of the request that the response repeats, with OpenAI's defaults.
fn echo(request: &Map<String, Value>) -> Map<String, Value> {
    let defaults = [
        ("background", json!(false)),
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", Value::Null),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("prompt", Value::Null),
        ("reasoning", Value::Null),
        ("service_tier", json!("auto")),
        ("temperature", json!(1.0)),
        ("text", Value::Null),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", Value::Null),
        ("top_p", json!(1.0)),
        ("truncation", json!("disabled")),
        ("user", Value::Null),
    ];
    let said = |name| request.get(name).filter(|value| !value.is_null()).cloned();
    defaults
        .into_iter()
        .map(|(name, default)| (name.to_owned(), said(name).unwrap_or(default)))
        .collect()
}

fn message(role: &str, content: Value) -> Message {
    Message {
        role: role.to_owned(),
        content: Some(content),
        ..Message::default()
    }
}

/// Appends an item of the input. A call joins the assistant's message before it, as in the reply that made both.
/// Reasoning is left out, as most models' templates do. Items of other types become messages, as JSON.
fn push(mut item: Value, messages: &mut Vec<Message>) {
    match (item["type"].as_str(), item["role"].as_str()) {
        (Some("message") | None, Some(role)) => {
            let role = role.to_owned();
            let content = item.get_mut("content").map(Value::take);
            messages.push(message(&role, content.unwrap_or_default()));
        }
        (Some("function_call"), _) => {
            let call = json!({
                "id": item["call_id"], "type": "function",
                "function": { "name": item["name"], "arguments": item["arguments"] },
            });
            if messages.last().is_none_or(|last| last.role != "assistant") {
                messages.push(message("assistant", Value::Null));
            }
            if let Some(last) = messages.last_mut() {
                match &mut last.tool_calls {
                    Some(Value::Array(calls)) => calls.push(call),
                    calls => *calls = Some(json!([call])),
                }
            }
        }
        (Some("function_call_output"), _) => messages.push(Message {
            tool_call_id: item["call_id"].as_str().map(str::to_owned),
            ..message("tool", item["output"].take())
        }),
        (Some("reasoning"), _) => {}
        (kind, _) => {
            let role = kind.unwrap_or("item").to_owned();
            messages.push(message(&role, item));
        }
    }
}

/// Converts a function; other tools stay as they are.
fn tool(mut tool: Value) -> Value {
    if tool["type"] != "function" {
        return tool;
    }
    if let Some(members) = tool.as_object_mut() {
        members.remove("type");
    }
    json!({ "type": "function", "function": tool })
}

fn tool_choice(choice: Value) -> Value {
    match choice["name"].as_str() {
        Some(name) => json!({ "type": "function", "function": { "name": name } }),
        None => choice,
    }
}

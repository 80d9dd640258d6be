//! Converts a body of Anthropic's API to the fields of chat completions.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::EngineConfig;
use crate::http::api::Api;
use crate::http::error::ApiError;
use crate::http::request::{self, Fields, Stop};
use crate::prompt::Message;

/// Begins a block of the system prompt with a number per request, which vLLM removes because it would defeat caching.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

#[derive(Deserialize)]
struct Ask {
    model: Option<String>,
    system: Option<Value>,
    messages: Vec<Said>,
    max_tokens: Option<u32>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Choice>,
}

#[derive(Deserialize)]
struct Said {
    role: String,
    content: Value,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

/// Parses a request for a reply.
pub(in crate::http) fn fields(config: &EngineConfig, body: &[u8]) -> Result<Fields, ApiError> {
    let fields = prompt(config, body)?;
    match fields.max_tokens {
        Some(_) => Ok(fields),
        None => Err(ApiError::bad_request("`max_tokens` is required.")),
    }
}

/// Parses a request that may lack a limit.
pub(super) fn prompt(config: &EngineConfig, body: &[u8]) -> Result<Fields, ApiError> {
    let ask: Ask = request::parse(config, Api::Messages, body)?;
    request::check_model(config, ask.model.as_deref())?;
    let mut messages = Vec::with_capacity(ask.messages.len() + 1);
    if let Some(text) = ask.system.as_ref().and_then(system) {
        messages.push(Message {
            role: "system".to_owned(),
            content: Some(Value::String(text)),
            ..Message::default()
        });
    }
    for said in ask.messages {
        push(said, &mut messages)?;
    }
    let choice = ask.tool_choice.as_ref();
    Ok(Fields {
        model: ask.model,
        messages: Some(messages),
        tools: ask.tools.map(|tools| tools.into_iter().map(tool).collect()),
        parallel_tool_calls: choice
            .and_then(|choice| choice.disable_parallel_tool_use)
            .map(|disabled| !disabled),
        tool_choice: choice.map(tool_choice),
        stream: ask.stream,
        max_tokens: ask.max_tokens,
        stop: ask.stop_sequences.map(Stop::Many),
        ends_by_itself: true,
        ..Fields::default()
    })
}

/// Returns the system prompt: a text, or the texts of blocks.
fn system(said: &Value) -> Option<String> {
    let text = match said {
        Value::String(text) => text.clone(),
        blocks => blocks
            .as_array()?
            .iter()
            .filter_map(|block| block["text"].as_str())
            .filter(|text| !text.starts_with(BILLING_HEADER))
            .collect(),
    };
    (!text.is_empty()).then_some(text)
}

/// Appends a message. Results of tools become messages before it; thoughts are left out, as by most models' templates.
fn push(said: Said, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let Said { role, content } = said;
    let blocks = match content {
        Value::Array(blocks) => blocks,
        Value::String(_) => {
            messages.push(Message {
                role,
                content: Some(content),
                ..Message::default()
            });
            return Ok(());
        }
        _ => {
            return Err(ApiError::bad_request(
                "`content` must be a text or a list of blocks.",
            ));
        }
    };
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    for mut block in blocks {
        match block["type"].as_str() {
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": { "name": block["name"], "arguments": block["input"].to_string() },
            })),
            Some("tool_result") => messages.push(Message {
                role: "tool".to_owned(),
                tool_call_id: block["tool_use_id"].as_str().map(str::to_owned),
                content: block.get_mut("content").map(Value::take),
                ..Message::default()
            }),
            _ => {
                uncached(&mut block);
                parts.push(block);
            }
        }
    }
    if !(parts.is_empty() && calls.is_empty()) {
        messages.push(Message {
            role,
            content: (!parts.is_empty()).then_some(Value::Array(parts)),
            tool_calls: (!calls.is_empty()).then_some(Value::Array(calls)),
            ..Message::default()
        });
    }
    Ok(())
}

/// Converts a function; other tools stay as they are.
fn tool(mut tool: Value) -> Value {
    uncached(&mut tool);
    let Some(schema) = tool.get_mut("input_schema").map(Value::take) else {
        return tool;
    };
    let mut function = json!({ "name": tool["name"], "parameters": schema });
    if let Some(description) = tool.get("description") {
        function["description"] = description.clone();
    }
    json!({ "type": "function", "function": function })
}

fn tool_choice(choice: &Choice) -> Value {
    match (choice.kind.as_str(), &choice.name) {
        ("any", _) => "required".into(),
        ("tool", Some(name)) => json!({ "type": "function", "function": { "name": name } }),
        (kind, _) => kind.into(),
    }
}

/// Removes the mark of a cached prefix, which moves from turn to turn and is no part of the prompt.
fn uncached(block: &mut Value) {
    if let Some(members) = block.as_object_mut() {
        members.remove("cache_control");
    }
}

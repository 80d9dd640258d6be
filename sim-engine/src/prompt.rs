//! The chat template: one rendering for every API, so that a conversation has the same cached blocks in all of them.

use serde::Deserialize;
use serde_json::Value;

use crate::script;
use crate::tokens::{push_text, special_token};

/// A message, in the form of chat completions. The other APIs are converted to it, as in vLLM.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Message {
    pub(crate) role: String,
    /// A text, or a list of parts.
    pub(crate) content: Option<Value>,
    pub(crate) name: Option<String>,
    pub(crate) tool_calls: Option<Value>,
    pub(crate) tool_call_id: Option<String>,
}

/// Appends `<|role|>content<|end|>` for each message, tools first. Parts without text are JSON, calls as generated.
pub(crate) fn render(tools: Option<&Value>, messages: &[Message], tokens: &mut Vec<u32>) {
    if let Some(tools) = tools.filter(|tools| !tools.is_null()) {
        tokens.push(special_token("tools"));
        push_text(&tools.to_string(), tokens);
    }
    for message in messages {
        tokens.push(special_token(&message.role));
        if let Some(name) = &message.name {
            push_text(name, tokens);
        }
        match &message.content {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => push_text(text, tokens),
            Some(Value::Array(parts)) => {
                for part in parts {
                    match part.get("text").and_then(Value::as_str) {
                        Some(text) => push_text(text, tokens),
                        None => push_text(&part.to_string(), tokens),
                    }
                }
            }
            Some(other) => push_text(&other.to_string(), tokens),
        }
        if let Some(id) = &message.tool_call_id {
            push_text(id, tokens);
        }
        if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_null()) {
            script::render(calls, tokens);
        }
        tokens.push(special_token("<|end|>"));
    }
}

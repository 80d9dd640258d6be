//! Anthropic's messages, `/v1/messages`: messages, a separate system prompt, and typed events or one message.
//!
//! `input_tokens` excludes cached tokens, which some engines report separately. In a stream either count comes with the
//! first event, the last, or both.

use std::borrow::Cow;

use policy::estimate::Finish;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{EndpointFacts, Family, GenAiOperation, Work, parsed};
use crate::error::ApiError;
use crate::fingerprint::Draft;
use crate::json::{Malformed, Scanner};
use crate::reply::Piece;
use crate::watch::{MAX_TOKENS, StreamFact, Usage, Watch};

const PATH: &str = "/v1/messages";

pub(super) const ENDPOINT: EndpointFacts = EndpointFacts {
    family: Family::Anthropic,
    takes_salt: false,
    calls_are_objects: true,
    ..EndpointFacts::new("messages", &[PATH], Work::Generation(GenAiOperation::Chat))
};

pub(super) const COUNT_TOKENS: EndpointFacts = EndpointFacts {
    family: Family::Anthropic,
    ..EndpointFacts::new("count_tokens", &["/v1/messages/count_tokens"], Work::Counting)
};

/// Line that precedes the data of an error in a stream.
pub(super) const ERROR_EVENT: &[u8] = b"event: error\n";

/// Returns whether a path is the API's.
pub(super) fn has(path: &str) -> bool {
    let below = path.strip_prefix(PATH);
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

pub(super) fn read_prompt(
    member: &[u8],
    scanner: &mut Scanner<'_>,
    draft: &mut Draft,
) -> Result<bool, Malformed> {
    match member {
        b"messages" => draft.messages(scanner)?,
        b"system" => draft.system(scanner)?,
        b"tools" => draft.tools(scanner)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the body of an error.
pub(super) fn error(error: &ApiError) -> Value {
    let kind = match error.status().as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.to_string() } })
}

#[derive(Deserialize)]
struct MessagesEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: StreamFact<'a>,
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    message: Option<EventMessage<'a>>,
    #[serde(borrow, default)]
    content_block: Option<Block<'a>>,
    #[serde(borrow, default)]
    delta: Option<Block<'a>>,
    #[serde(default)]
    usage: Option<MessagesUsage>,
    #[serde(borrow, default)]
    content: Option<Vec<Block<'a>>>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct EventMessage<'a> {
    #[serde(default)]
    usage: Option<MessagesUsage>,
    #[serde(borrow, default)]
    content: Option<Vec<Block<'a>>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: StreamFact<'a>,
    #[serde(borrow, default)]
    text: StreamFact<'a>,
    #[serde(borrow, default)]
    thinking: StreamFact<'a>,
    #[serde(borrow, default)]
    id: StreamFact<'a>,
    #[serde(borrow, default)]
    name: StreamFact<'a>,
    #[serde(borrow, default)]
    input: Option<&'a serde_json::value::RawValue>,
    #[serde(borrow, default)]
    partial_json: StreamFact<'a>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Deserialize)]
struct MessagesUsage {
    #[serde(default)]
    input_tokens: Option<u64>,
    #[serde(default)]
    output_tokens: Option<u64>,
    #[serde(default)]
    cache_read_input_tokens: Option<u64>,
    #[serde(default)]
    cache_creation_input_tokens: Option<u64>,
}

impl MessagesUsage {
    fn after(self, known: Option<Usage>) -> Usage {
        let mut usage = known.unwrap_or_default();
        let bounded = |tokens: Option<u64>| tokens.unwrap_or(0).min(MAX_TOKENS);
        let prompt = bounded(self.input_tokens)
            + bounded(self.cache_read_input_tokens)
            + bounded(self.cache_creation_input_tokens);
        if prompt > 0 {
            usage.prompt = prompt;
        }
        if let Some(cached) = self.cache_read_input_tokens {
            usage.cached = Some(cached.min(MAX_TOKENS));
        }
        if let Some(completion) = self.output_tokens {
            usage.completion = completion.min(MAX_TOKENS);
        }
        usage
    }
}

pub(super) fn read_response(watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
    let Some(event) = parsed::<MessagesEvent<'_>>(json) else {
        reply(Piece::Unrepeated);
        return;
    };
    let start = event.message.as_ref();
    for usage in [start.and_then(|message| message.usage), event.usage]
        .into_iter()
        .flatten()
    {
        watch.usage = Some(usage.after(watch.usage));
    }
    let stop = event
        .delta
        .as_ref()
        .and_then(|delta| delta.stop_reason.as_deref())
        .or(event.stop_reason.as_deref());
    if let Some(reason) = stop {
        watch.finish = finish(reason);
        watch.finished = true;
    }
    if event.kind.is("message_stop") {
        watch.complete = true;
    }
    let mut token = false;
    let whole = event
        .content
        .or(event.message.and_then(|message| message.content));
    let whole = whole.unwrap_or_default();
    for (index, block) in whole.iter().enumerate() {
        token |= says(block, index as u64, reply);
    }
    for block in [&event.content_block, &event.delta].into_iter().flatten() {
        token |= says(block, event.index, reply);
    }
    if token {
        watch.saw_token();
    }
}

fn finish(reason: &str) -> Finish {
    match reason {
        "end_turn" | "stop_sequence" => Finish::Stop,
        "max_tokens" => Finish::Length,
        "tool_use" => Finish::ToolCalls,
        _ => Finish::Other,
    }
}

/// Emits the pieces of a block or its delta. Returns whether it has tokens.
fn says(block: &Block<'_>, index: u64, reply: &mut impl FnMut(Piece<'_>)) -> bool {
    let mut token = false;
    let mut hand_on = |piece: Piece<'_>| {
        token = true;
        reply(piece);
    };
    let pieces = [
        block.thinking.piece(Piece::Reasoning),
        block.text.piece(Piece::Text),
    ];
    pieces.into_iter().flatten().for_each(&mut hand_on);
    if block.kind.is("tool_use") || !matches!(block.partial_json, StreamFact::Nothing) {
        // A stream begins with an empty object; its text follows.
        let input = block.input.map_or("", serde_json::value::RawValue::get);
        let input = if input == "{}" { "" } else { input };
        let texts = (block.id.text(), block.name.text(), block.partial_json.text());
        hand_on(match texts {
            (Some(id), Some(name), Some(partial)) => Piece::Call {
                index: Some(index),
                id,
                name,
                arguments: if partial.is_empty() { input } else { partial },
            },
            _ => Piece::Unrepeated,
        });
    } else if ["redacted_thinking", "server_tool_use"]
        .iter()
        .any(|kind| block.kind.is(kind))
    {
        hand_on(Piece::Unrepeated);
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anthropics_clients_get_an_error_of_theirs() {
        let error = error(&ApiError::BodyTooLarge(5));
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!("request_too_large"))
        );
        assert!(error["error"]["message"].as_str().unwrap().contains("5 bytes"));
    }
}

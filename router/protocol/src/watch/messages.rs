//! Anthropic's responses: typed events or one message.
//!
//! `input_tokens` excludes cached tokens, which some engines report separately. In a stream either count comes with the
//! first event, the last, or both.

use std::borrow::Cow;

use policy::estimate::Finish;
use serde::Deserialize;

use super::event::StreamFact;
use super::{MAX_TOKENS, Usage, Watch};
use crate::reply::Piece;

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

pub(super) fn read(watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
    let Ok(event) = serde_json::from_slice::<MessagesEvent<'_>>(json) else {
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

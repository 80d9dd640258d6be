//! Bailian's traces, whose chats name the chat that they continue.

use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::error::TraceFault;
use super::line::{FieldRule, Kind, bounded, parse, since_origin};
use super::{Captured, ClassId, Turn};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Tokens per block in every published Bailian trace.
pub(super) const BLOCK_SIZE: u32 = 16;

#[derive(Debug, Deserialize)]
struct Line {
    chat_id: i64,
    #[serde(default = "root")]
    parent_chat_id: i64,
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Turn number, which is only checked, since it follows from the parents.
    #[serde(rename = "turn")]
    _turn: Option<u32>,
    hash_ids: Option<Vec<u64>>,
}

const fn root() -> i64 {
    -1
}

const FIELDS: &[FieldRule] = &[
    FieldRule("chat_id", Kind::Signed, true),
    FieldRule("parent_chat_id", Kind::Signed, false),
    FieldRule("timestamp", Kind::Seconds, true),
    FieldRule("input_length", Kind::Count, true),
    FieldRule("output_length", Kind::Count, true),
    FieldRule("type", Kind::Text, false),
    FieldRule("turn", Kind::Small, false),
    FieldRule("hash_ids", Kind::Ids, false),
];

#[derive(Debug)]
struct Chat {
    conversation: u64,
    turn: u32,
    total: u64,
    continued: bool,
}

#[derive(Debug, Default)]
pub(super) struct Bailian {
    chats: FxHashMap<i64, Chat>,
    conversations: u64,
}

impl Bailian {
    pub(super) fn line(&mut self, text: &str) -> Result<(Turn, Option<String>), TraceFault> {
        let line: Line = parse(text, FIELDS, true)?;
        let timestamp = since_origin("timestamp", line.timestamp)?;
        let input = bounded("input_length", line.input_length)?;
        let output = bounded("output_length", line.output_length)?;
        if self.chats.contains_key(&line.chat_id) {
            return Err(TraceFault::field(
                "chat_id",
                format!("{} was seen before", line.chat_id),
            ));
        }
        let parent = self.chats.get_mut(&line.parent_chat_id);
        let (continues, history, turn) = match parent {
            // Reasoning and tool output may be dropped from a history, so a child can be shorter than its parent.
            Some(parent) => {
                let continues = (!parent.continued).then_some(parent.conversation);
                parent.continued = true;
                (continues, parent.total.min(input), parent.turn + 1)
            }
            None => (None, 0, 0),
        };
        let conversation = continues.unwrap_or_else(|| {
            self.conversations += 1;
            self.conversations - 1
        });
        let chat = Chat {
            conversation,
            turn,
            total: input + output,
            continued: false,
        };
        self.chats.insert(line.chat_id, chat);
        let turn = Turn {
            ts_s: timestamp,
            conversation: ConversationId(conversation),
            turn,
            prompt_tokens: Tokens(input - history),
            history_tokens: Tokens(history),
            response_tokens: Tokens(output),
            blocks: line.hash_ids,
            class: ClassId::DEFAULT,
            captured: Captured::default(),
        };
        Ok((turn, line.kind))
    }
}

//! Mooncake's traces: requests without conversations.
//!
//! A line names a request's prompt as chained hashes of 512-token blocks, without telling which request it continues. A
//! request is taken to continue an earlier one when it starts with all of that one's full prompt blocks (at least two:
//! block 0 of the published conversation trace is a common system prompt), is at least as long as that one's prompt and
//! response together less eight tokens (a response's closing tokens may not be sent back), and that one was not
//! continued yet. Of several the longest wins, then the latest. This rule restores all 12,031 turns of the published
//! conversations; without the eight tokens 135 of them join elsewhere, with sixteen 98 do.

use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::error::TraceFault;
use super::line::{FieldRule, Kind, bounded, parse, since_origin};
use super::{Captured, ClassId, Turn};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Tokens per block in every published Mooncake trace.
pub(super) const BLOCK_SIZE: u32 = 512;

/// Shared full blocks that make two requests one conversation, rather than two users of one system prompt.
const MIN_SHARED_BLOCKS: usize = 2;

/// Closing tokens of a response that its continuation may omit.
const CLOSING_TOKENS: u64 = 8;

#[derive(Debug, Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

const FIELDS: &[FieldRule] = &[
    FieldRule("timestamp", Kind::Seconds, true),
    FieldRule("input_length", Kind::Count, true),
    FieldRule("output_length", Kind::Count, true),
    FieldRule("hash_ids", Kind::Ids, true),
];

#[derive(Debug)]
struct Open {
    conversation: u64,
    turn: u32,
    total: u64,
}

#[derive(Debug, Default)]
pub(super) struct Mooncake {
    /// Requests that no other has continued yet, by their last full prompt block, oldest first.
    open: FxHashMap<u64, Vec<Open>>,
    conversations: u64,
}

impl Mooncake {
    pub(super) fn line(&mut self, text: &str) -> Result<Turn, TraceFault> {
        // Published variants have additional fields, so extras are allowed here.
        let line: Line = parse(text, FIELDS, true)?;
        let timestamp = since_origin("timestamp", line.timestamp)?;
        let input = bounded("input_length", line.input_length)?;
        let output = bounded("output_length", line.output_length)?;
        let full = ((input / u64::from(BLOCK_SIZE)) as usize).min(line.hash_ids.len());
        let (conversation, turn, history) = match self.predecessor(&line.hash_ids[..full], input) {
            Some(open) => (open.conversation, open.turn + 1, open.total.min(input)),
            None => {
                self.conversations += 1;
                (self.conversations - 1, 0, 0)
            }
        };
        if full >= MIN_SHARED_BLOCKS {
            let open = Open {
                conversation,
                turn,
                total: input + output,
            };
            self.open.entry(line.hash_ids[full - 1]).or_default().push(open);
        }
        Ok(Turn {
            ts_s: timestamp / 1e3,
            conversation: ConversationId(conversation),
            turn,
            prompt_tokens: Tokens(input - history),
            history_tokens: Tokens(history),
            response_tokens: Tokens(output),
            blocks: Some(line.hash_ids),
            class: ClassId::DEFAULT,
            captured: Captured::default(),
        })
    }

    /// Removes and returns the longest, then latest, open request that these blocks extend.
    fn predecessor(&mut self, full_blocks: &[u64], input: u64) -> Option<Open> {
        for id in full_blocks.iter().skip(MIN_SHARED_BLOCKS - 1).rev() {
            let Some(candidates) = self.open.get_mut(id) else {
                continue;
            };
            let fitting = candidates
                .iter()
                .rposition(|open| open.total <= input + CLOSING_TOKENS);
            if let Some(at) = fitting {
                let open = candidates.remove(at);
                if candidates.is_empty() {
                    self.open.remove(id);
                }
                return Some(open);
            }
        }
        None
    }
}

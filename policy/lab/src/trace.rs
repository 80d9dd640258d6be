//! Traces: what was asked of a fleet, turn by turn, read one line at a time.
//!
//! Every experiment starts from a list of turns. They come in four spellings, and leave this module in one:
//!
//! | [`Format`] | a line | blocks |
//! |---|---|---|
//! | `Turn` | `{"ts":s,"conv":id,"turn":n,"prompt_tokens":new,"history_tokens":h,"response_tokens":r[,"blocks":[ids]⏐"block_runs":[first,count,…]][,"class":"text"][,"objective_ms":t,"ttft_ms":t,"took_ms":t]}` | `meta.bs` tokens |
//! | `Capture` | the same, written by the router itself; fields that are not listed above are skipped | `meta.bs` tokens |
//! | `Mooncake` | `{"timestamp":ms,"input_length":n,"output_length":r,"hash_ids":[ids]}` | 512 tokens |
//! | `Bailian` | `{"chat_id":i,"parent_chat_id":p,"timestamp":s,"input_length":n,"output_length":r,"type":"text","turn":n,"hash_ids":[ids]}` | 16 tokens |
//!
//! The first two may open with one `{"meta":{…}}` line. [`Format::Auto`] tells them apart by the first line's fields.
//!
//! The reader is a push parser: hand it lines, get turns. It opens no file and keeps no line, so that a trace of any
//! length streams through it. What it keeps is what checking needs: per conversation its last turn and length, and
//! per distinct block id the id before it.
//!
//! # What is refused
//! A simulation of a broken trace is a wrong figure that looks right, so a line is refused, by number and with the
//! reason, when
//! - it is not an object of the format, or a field is missing, unknown, negative or of another type;
//! - its time is before the line before it;
//! - a conversation's turn numbers do not increase, or its history is longer than what was said before;
//! - a block id follows another id than it did before: an id names a whole prefix, so its predecessor is part of it;
//! - the blocks do not cover the prompt.
//!
//! A reader that refused a line stays usable; whether to go on is the caller's choice, and ours never do.

mod bailian;
mod check;
mod error;
mod line;
mod mooncake;
mod reader;
#[cfg(test)]
mod tests;

pub use error::{TraceError, TraceFault};
pub use reader::Reader;

use policy::ids::ConversationId;
use policy::units::{Millis, Tokens};

/// Tokens per block where neither a trace nor a command line says: Mooncake's.
pub const BLOCK_TOKENS: u32 = 512;

/// Largest size that one field may claim. Far past any context window; keeps every later sum inside 64 bits.
pub const MAX_TOKENS_PER_FIELD: u64 = 1 << 32;

/// Most block ids that one turn may carry: a run-length pair is 20 bytes that could claim any number of them.
pub const MAX_BLOCKS_PER_TURN: u64 = 1 << 22;

/// One request: a conversation's next prompt, and the answer that it got.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Arrival, in seconds from the trace's own origin. Never before the previous turn's.
    pub ts_s: f64,
    /// Which conversation it continues.
    pub conversation: ConversationId,
    /// Its number within the conversation; increasing, not necessarily from 0 (a trace may be cut out of a longer one).
    pub turn: u32,
    /// Tokens that this prompt adds to the history.
    pub prompt_tokens: Tokens,
    /// Tokens of the prompt that were said before: a prefix of earlier prompt and response, so never longer than them.
    /// Shorter where the client drops something, such as an agent's reasoning.
    pub history_tokens: Tokens,
    /// Tokens of the answer.
    pub response_tokens: Tokens,
    /// Ids of the prompt's blocks of [`Meta::block_size`] tokens, where the trace has them. Each names the whole
    /// prefix that ends with it, across conversations. A last, partly filled block may or may not be named.
    pub blocks: Option<Vec<u64>>,
    /// Traffic class, such as `text` or `image`; see [`Reader::class_name`].
    pub class: ClassId,
    /// What a capture says besides.
    pub captured: Captured,
}

/// What a router has written down of a turn that it served, beside what was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Captured {
    /// Time to first token that it was to meet.
    pub objective: Option<Millis>,
    /// From its arrival to its first token.
    pub ttft: Option<Millis>,
    /// From its arrival to the answer's end.
    pub took: Option<Millis>,
}

impl Turn {
    /// The whole prompt: `history + new`.
    #[must_use]
    pub fn input_tokens(&self) -> Tokens {
        self.history_tokens + self.prompt_tokens
    }

    /// L: the conversation's length after this turn.
    #[must_use]
    pub fn total_tokens(&self) -> Tokens {
        self.input_tokens() + self.response_tokens
    }

    /// Arrival on a millisecond clock with the trace's origin.
    #[must_use]
    pub fn at(&self) -> Millis {
        Millis(self.ts_s * 1e3)
    }
}

/// A traffic class as a small dense number; class 0 is every turn that names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u16);

impl ClassId {
    /// The class of turns that name none.
    pub const DEFAULT: Self = Self(0);

    /// The class as an index into per-class arrays.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a trace says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Tokens per block, where turns carry block ids.
    pub block_size: Option<u32>,
    /// Number of turns, where the trace says so. A hint for progress bars; not checked.
    pub turns: Option<u64>,
    /// Where it came from, in its own words.
    pub source: Option<String>,
}

/// How a line is spelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Told apart by the first line.
    #[default]
    Auto,
    /// Turn trace: strict, unknown fields are refused.
    Turn,
    /// The router's own capture: a turn trace whose lines may carry more. `{"meta":{"capture":true}}` announces one.
    Capture,
    /// Mooncake's published traces. Conversations are rebuilt from shared blocks: see the `mooncake` module's notes.
    Mooncake,
    /// Bailian's published traces. A chat with several successors continues in the first; the others are branches,
    /// which become conversations of their own with a history that no private cache holds.
    Bailian,
}

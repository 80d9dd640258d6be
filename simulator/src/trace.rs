//! Traces: requests to a fleet, turn by turn, read one line at a time.
//!
//! `docs/traces.md` describes the lines of each [`Format`], which [`Format::Auto`] tells apart by the first line's
//! fields. A capture also has `{"fleet":{…}}` lines, the workers' costs and the policy in force
//! ([`FleetRecord`](policy::fleet_record::FleetRecord)), of which the reader keeps the latest.
//!
//! The reader is a push parser: it takes lines and returns turns. It opens no file and keeps no line, so that a trace
//! of any length can be streamed, and remains usable after an error. Its state is what the checks need: per
//! conversation its last turn and length, and per distinct block id the id before it.
//!
//! A broken trace would give plausible but wrong results. So a line is refused, with its number and the reason, when
//! - it is not an object of the format, or a field is missing, unknown, negative or of another type;
//! - its time is before the line before it;
//! - a conversation's turn numbers do not increase, or its history is longer than its previous length;
//! - a block id follows another id than it did before: an id names a whole prefix, so its predecessor is fixed;
//! - the blocks do not cover the prompt.

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

/// Default tokens per block: Mooncake's.
pub const BLOCK_TOKENS: u32 = 512;

/// Newest version of captures that is read.
pub const CAPTURE_VERSION: u32 = 2;

/// Upper bound on the tokens in one field: far beyond any context window, and low enough for every later sum to fit in
/// 64 bits.
pub const MAX_TOKENS_PER_FIELD: u64 = 1 << 32;

/// Upper bound on the block ids of one turn: a run-length pair of 20 bytes could otherwise expand to any number.
pub const MAX_BLOCKS_PER_TURN: u64 = 1 << 22;

/// One request: a conversation's next prompt, and its response.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Arrival, in seconds from the trace's origin. Never before the previous turn's.
    pub ts_s: f64,
    pub conversation: ConversationId,
    /// The turn's number within the conversation; increasing, not necessarily from 0.
    pub turn: u32,
    /// Tokens that this prompt adds to the history.
    pub prompt_tokens: Tokens,
    /// Tokens of the prompt that are a prefix of the earlier prompt and response: fewer if the client drops something.
    pub history_tokens: Tokens,
    /// Tokens of the response.
    pub response_tokens: Tokens,
    /// Ids of the prompt's blocks of [`Meta::block_size`] tokens, if the trace has them. Each names the whole prefix
    /// that ends with it, across conversations. The last, partly filled block is optional.
    pub blocks: Option<Vec<u64>>,
    /// Traffic class, such as `text` or `image`; see [`Reader::class_name`].
    pub class: ClassId,
    /// Additional fields of a capture.
    pub captured: Captured,
}

/// A router's record of a turn that it served.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Captured {
    /// Time-to-first-token objective.
    pub objective: Option<Millis>,
    /// Time from arrival to first token; unknown for a response that came in one piece.
    pub ttft: Option<Millis>,
    /// Time from arrival to the end of the response.
    pub took: Option<Millis>,
    /// Prompt tokens that the worker found in its cache, as it reported.
    pub cached: Option<Tokens>,
}

impl Turn {
    /// Returns the tokens of the whole prompt: `history + new`.
    #[must_use]
    pub fn input_tokens(&self) -> Tokens {
        self.history_tokens + self.prompt_tokens
    }

    /// Returns L: the conversation's length after this turn.
    #[must_use]
    pub fn total_tokens(&self) -> Tokens {
        self.input_tokens() + self.response_tokens
    }

    /// Returns the arrival on a millisecond clock with the trace's origin.
    #[must_use]
    pub fn at(&self) -> Millis {
        Millis(self.ts_s * 1e3)
    }
}

/// A traffic class as a small dense number; class 0 is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u16);

impl ClassId {
    /// The class of turns without a class.
    pub const DEFAULT: Self = Self(0);

    /// Returns the class as an index into per-class arrays.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A trace's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Tokens per block, where turns carry block ids.
    pub block_size: Option<u32>,
    /// Number of turns, if given. A hint for progress bars, which is not checked.
    pub turns: Option<u64>,
    /// The source of the trace, as free text.
    pub source: Option<String>,
}

/// The format of a trace's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Detected from the first line.
    #[default]
    Auto,
    /// Turn trace: strict, unknown fields are refused.
    Turn,
    /// The router's own capture: a turn trace with additional fields. `{"meta":{"capture":true}}` announces one.
    Capture,
    /// Mooncake's published traces. Conversations are rebuilt from shared blocks: see the `mooncake` module.
    Mooncake,
    /// Bailian's published traces. A chat continues in its first successor; others become conversations of their own.
    Bailian,
}

use thiserror::Error;

/// A refused line, with its number and the reason.
#[derive(Debug, Error, PartialEq)]
#[error("line {line}: {fault}")]
pub struct TraceError {
    /// Number of the line, from 1, blank lines included.
    pub line: u64,
    #[source]
    pub fault: TraceFault,
}

/// The reason why a line was refused.
#[derive(Debug, Error, PartialEq)]
pub enum TraceFault {
    /// The line is not JSON, or not an object.
    #[error("not a JSON object: {0}")]
    Syntax(String),
    /// A field is missing, unknown, repeated, out of range or of another type.
    #[error("field `{field}`: {reason}")]
    Field {
        /// The field's name.
        field: String,
        /// The reason.
        reason: String,
    },
    /// The line has no known format.
    #[error("not a line of a turn trace, a capture, Mooncake or Bailian: it has none of their fields")]
    UnknownFormat,
    /// The line is a second meta line, or a meta line after the first turn.
    #[error("a single meta line is allowed, before the first turn")]
    LateMeta,
    /// The lines are not in order of time.
    #[error("not sorted by time: {ts_s} s comes after {previous_s} s")]
    Unsorted {
        /// This line's time.
        ts_s: f64,
        /// The previous line's time.
        previous_s: f64,
    },
    /// Turn numbers of a conversation do not increase.
    #[error("conversation {conversation}: turn {turn} comes after turn {previous}")]
    TurnOrder {
        /// The conversation.
        conversation: u64,
        /// This line's turn number.
        turn: u32,
        /// The number of the conversation's previous turn.
        previous: u32,
    },
    /// The history is longer than the conversation.
    #[error("conversation {conversation}: a history of {history} tokens, but only {said} were said before")]
    HistoryTooLong {
        /// The conversation.
        conversation: u64,
        /// The claimed history.
        history: u64,
        /// Tokens of the conversation so far.
        said: u64,
    },
    /// The line has block ids but the trace no block size.
    #[error("blocks without `meta.bs`, the number of tokens per block")]
    NoBlockSize,
    /// The number of blocks does not fit the prompt.
    #[error("{blocks} blocks of {block_size} tokens do not cover a prompt of {input} tokens")]
    BlockCount {
        /// Number of block ids on the line.
        blocks: u64,
        /// Tokens per block.
        block_size: u32,
        /// Prompt length.
        input: u64,
    },
    /// A block id has two predecessors.
    #[error(
        "block {id} at position {position} follows {}, but followed {} before: an id must identify a whole prefix",
        spell(*.parent),
        spell(*.expected)
    )]
    BlockChain {
        id: u64,
        /// Position of the block in the prompt.
        position: usize,
        /// The id before it on this line.
        parent: Option<u64>,
        /// The id before it at its first occurrence.
        expected: Option<u64>,
    },
    /// The trace has too many traffic classes.
    #[error("more than {0} traffic classes")]
    TooManyClasses(usize),
}

fn spell(parent: Option<u64>) -> String {
    parent.map_or_else(|| "nothing".to_owned(), |id| format!("block {id}"))
}

impl TraceFault {
    pub(crate) fn field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            reason: reason.into(),
        }
    }
}

//! Converts a trace into one script per conversation.

use std::collections::HashMap;
use std::time::Duration;

use simulator::trace::Turn;

/// The turns to replay.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The conversations, by the time of their first turn.
    pub scripts: Vec<Script>,
    /// Total number of turns.
    pub turns: usize,
    /// Number of turns after the warm-up, which are counted.
    pub counted: usize,
    /// Tokens per block of the trace; 1 if it has no blocks.
    pub block_size: u64,
    /// Time of the last turn.
    pub span: Duration,
}

/// One conversation.
#[derive(Clone, Debug)]
pub struct Script {
    /// Id of the conversation in the trace.
    pub id: u64,
    /// The conversation's turns, in order.
    pub steps: Vec<PlannedTurn>,
}

/// One turn of a conversation.
#[derive(Clone, Debug)]
pub struct PlannedTurn {
    /// Scheduled time of the turn, from the start of the replay.
    pub at: Duration,
    /// Whether the turn comes after the warm-up.
    pub counted: bool,
    /// Tokens of the prompt that earlier turns contain.
    pub history: u64,
    /// Tokens of the whole prompt.
    pub input: u64,
    /// Tokens requested; at least 1.
    pub response: u64,
    /// Ids of the prompt's blocks; empty if the trace has none.
    pub blocks: Vec<u64>,
}

impl Plan {
    /// Plans `turns`, which are in order of time, at `speed` times the trace's pace. The first `warmup_share` of them
    /// are sent but not counted. Time begins with the first turn.
    pub fn new(turns: Vec<Turn>, block_size: Option<u32>, speed: f64, warmup_share: f64) -> Self {
        let total = turns.len();
        let warmup = (total as f64 * warmup_share).floor() as usize;
        let origin_s = turns.first().map_or(0.0, |turn| turn.ts_s);
        let mut slots: HashMap<u64, usize> = HashMap::new();
        let mut scripts: Vec<Script> = Vec::new();
        let mut span = Duration::ZERO;
        for (at, turn) in turns.into_iter().enumerate() {
            let id = turn.conversation.0;
            let slot = *slots.entry(id).or_insert(scripts.len());
            if slot == scripts.len() {
                scripts.push(Script {
                    id,
                    steps: Vec::new(),
                });
            }
            let due_s = (turn.ts_s - origin_s) / speed;
            span = Duration::try_from_secs_f64(due_s).unwrap_or(Duration::MAX);
            scripts[slot].steps.push(PlannedTurn {
                at: span,
                counted: at >= warmup,
                history: turn.history_tokens.0,
                input: turn.input_tokens().0,
                response: turn.response_tokens.0.max(1),
                blocks: turn.blocks.unwrap_or_default(),
            });
        }
        let block_size = u64::from(block_size.unwrap_or(1).max(1));
        Self {
            scripts,
            turns: total,
            counted: total - warmup,
            block_size,
            span,
        }
    }
}

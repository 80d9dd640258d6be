//! The consistency checks between lines.

use rustc_hash::FxHashMap;

use super::error::TraceFault;
use super::{MAX_BLOCKS_PER_TURN, Turn};

#[derive(Debug, Default)]
pub(super) struct Checker {
    last_ts_s: Option<f64>,
    conversations: FxHashMap<u64, Said>,
    /// Block id → the id before it (`None` at the start of a prompt).
    parents: FxHashMap<u64, Option<u64>>,
}

#[derive(Debug)]
struct Said {
    turn: u32,
    total: u64,
}

impl Checker {
    /// Accepts the turn and records it, or refuses it and records nothing of it but consistent blocks.
    pub(super) fn admit(&mut self, turn: &Turn, block_size: Option<u32>) -> Result<(), TraceFault> {
        let previous_s = self.time(turn)?;
        self.order(turn)?;
        if let Some(blocks) = &turn.blocks {
            self.blocks(blocks, turn.input_tokens().0, block_size)?;
        }
        self.last_ts_s = Some(previous_s.max(turn.ts_s));
        let said = Said {
            turn: turn.turn,
            total: turn.total_tokens().0,
        };
        self.conversations.insert(turn.conversation.0, said);
        Ok(())
    }

    fn time(&self, turn: &Turn) -> Result<f64, TraceFault> {
        let ts_s = turn.ts_s;
        if !ts_s.is_finite() || ts_s < 0.0 {
            return Err(TraceFault::field(
                "ts",
                format!("expected a time of at least 0, found {ts_s}"),
            ));
        }
        match self.last_ts_s {
            Some(previous_s) if ts_s < previous_s => Err(TraceFault::Unsorted { ts_s, previous_s }),
            _ => Ok(ts_s),
        }
    }

    fn order(&self, turn: &Turn) -> Result<(), TraceFault> {
        let Some(said) = self.conversations.get(&turn.conversation.0) else {
            return Ok(());
        };
        let conversation = turn.conversation.0;
        if turn.turn <= said.turn {
            return Err(TraceFault::TurnOrder {
                conversation,
                turn: turn.turn,
                previous: said.turn,
            });
        }
        if turn.history_tokens.0 > said.total {
            let history = turn.history_tokens.0;
            return Err(TraceFault::HistoryTooLong {
                conversation,
                history,
                said: said.total,
            });
        }
        Ok(())
    }

    fn blocks(&mut self, blocks: &[u64], input: u64, block_size: Option<u32>) -> Result<(), TraceFault> {
        let block_size = block_size.ok_or(TraceFault::NoBlockSize)?;
        let per_block = u64::from(block_size.max(1));
        let count = blocks.len() as u64;
        if count < input / per_block || count > input.div_ceil(per_block) || count > MAX_BLOCKS_PER_TURN {
            return Err(TraceFault::BlockCount {
                blocks: count,
                block_size,
                input,
            });
        }
        let mut parent = None;
        for (position, &id) in blocks.iter().enumerate() {
            let expected = *self.parents.entry(id).or_insert(parent);
            if expected != parent {
                return Err(TraceFault::BlockChain {
                    id,
                    position,
                    parent,
                    expected,
                });
            }
            parent = Some(id);
        }
        Ok(())
    }
}

//! Whose blocks are these? Answered for events that name no conversation.
//!
//! SGLang's events, and vLLM's before 0.32, carry hashes and token ids but no session. Without a tokenizer neither says
//! whose prompt they are. But a turn that is over is known by its shape, to the token: it found `cached` tokens, and it
//! ended at `total`. So the chain that it left ends at block `⌊(total − 1)/b⌋` (the last token's own state is never
//! computed), its block after the cached ones was stored after the turn was sent (it was not there before), and it goes
//! through the blocks that the turn's first keys are bound to already. A chain that fits is the turn's if it is the only
//! one; where two fit, or one fits two turns, nothing is bound and the mirror speaks.
//!
//! That is exact but for one case: a chain of the same shape, of a request that the router did not send or whose answer is
//! not over yet. The next report contradicts such a binding, and it is dropped
//! ([`WorkerEvidence::contradicted`](super::WorkerEvidence::contradicted)).

use std::collections::VecDeque;

use super::TurnBlocks;
use crate::evidence::blocks::Blocks;

/// Chains that are remembered until a turn claims them.
const CHAINS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Its last block.
    hash: u64,
    /// The count of store events when that was stored.
    at: u64,
}

/// Chains that were stored without a name, the newest last.
#[derive(Debug, Default)]
pub(super) struct Unnamed(VecDeque<Chain>);

/// What was found for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Nothing yet.
    Nothing,
    /// This chain, and no other.
    One(u64),
    /// More than one fits.
    Several,
}

/// Number of blocks that a turn leaves behind.
pub(super) fn depth_of(turn: &TurnBlocks, block: u64) -> u64 {
    turn.total.saturating_sub(1) / block
}

impl Unnamed {
    /// Blocks were stored after `parent`, ending in `last`.
    pub(super) fn stored(&mut self, parent: Option<u64>, last: u64, at: u64) {
        let chain = Chain { hash: last, at };
        match self.0.back_mut() {
            // A prompt's blocks may come one by one.
            Some(newest) if parent == Some(newest.hash) => *newest = chain,
            _ => {
                if self.0.len() == CHAINS {
                    self.0.pop_front();
                }
                self.0.push_back(chain);
            }
        }
    }

    /// The chain that a turn left, if only one can be it.
    pub(super) fn claim(
        &self,
        turn: &TurnBlocks,
        block: u64,
        blocks: &Blocks,
        fits: impl Fn(&[u64]) -> bool,
    ) -> Claim {
        let (depth, cached) = (depth_of(turn, block), turn.cached.unwrap_or(0) / block);
        if cached >= depth {
            // It left no block that was not there.
            return Claim::Nothing;
        }
        let mut found = Claim::Nothing;
        for chain in self.0.iter().rev().take_while(|chain| chain.at > turn.since) {
            if blocks.depth(chain.hash) != Some(depth as u32) {
                continue;
            }
            let Some(path) = blocks.path(chain.hash) else {
                continue;
            };
            let first_new = path.get(cached as usize).and_then(|&hash| blocks.stored_at(hash));
            if first_new.is_some_and(|at| at > turn.since) && fits(&path) {
                match found {
                    Claim::Nothing => found = Claim::One(chain.hash),
                    _ => return Claim::Several,
                }
            }
        }
        found
    }

    /// A chain has found its turn.
    pub(super) fn take(&mut self, hash: u64) {
        if let Some(at) = self.0.iter().rposition(|chain| chain.hash == hash) {
            self.0.remove(at);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

//! Binds events without a conversation to turns.
//!
//! SGLang's events, and vLLM's before 0.32, carry hashes and token ids but no session. But the shape of a completed
//! turn is known to the token: the block after its `cached` tokens was stored after it was sent, and its chain ends at
//! block `⌊(total − 1)/b⌋` and passes through the blocks already bound to its first keys. If exactly one chain fits one
//! turn, it is bound; the next report contradicts a mistake
//! ([`WorkerEvidence::contradicted`](super::WorkerEvidence::contradicted)).

use std::collections::VecDeque;

use super::TurnBlocks;
use crate::evidence::blocks::Blocks;

const CHAINS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Chain {
    hash: u64,
    at: u64,
}

/// Chains stored without a name, newest last.
#[derive(Debug, Default)]
pub(super) struct UnboundChains(VecDeque<Chain>);

/// The chains found for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Nothing,
    One(u64),
    Several,
}

pub(super) fn depth_of(turn: &TurnBlocks, block: u64) -> u64 {
    turn.total.saturating_sub(1) / block
}

impl UnboundChains {
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

    pub(super) fn claim(
        &self,
        turn: &TurnBlocks,
        block: u64,
        blocks: &Blocks,
        fits: impl Fn(&[u64]) -> bool,
    ) -> Claim {
        let (depth, cached) = (depth_of(turn, block), turn.cached.unwrap_or(0) / block);
        if cached >= depth {
            // The turn stored no new block.
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

    pub(super) fn take(&mut self, hash: u64) {
        if let Some(at) = self.0.iter().rposition(|chain| chain.hash == hash) {
            self.0.remove(at);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

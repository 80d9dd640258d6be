use std::cmp::Reverse;

use super::List;
use crate::cache::blocks::trimmed::Pass;
use crate::cache::{CacheConfig, Served};
use policy::ids::PrefixHash;
use policy::units::Tokens;

/// The twin of [`super::super::trimmed::TrimmedBlocks`]. Per block: the turn that used it last, and that turn's budget,
/// which may be negative.
pub(in crate::cache::blocks) struct NaiveTrimmed {
    config: CacheConfig,
    pass: Pass,
    blocks: List<(u64, f64)>,
    served: u64,
}

impl NaiveTrimmed {
    pub(in crate::cache::blocks) fn new(config: CacheConfig, pass: Pass) -> Self {
        Self {
            config,
            pass,
            blocks: List(Vec::new()),
            served: 0,
        }
    }

    pub(in crate::cache::blocks) fn cached(&self, chain: &[PrefixHash]) -> Tokens {
        Tokens(self.blocks.prefix(chain).len() as u64 * u64::from(self.config.block_tokens))
    }

    pub(in crate::cache::blocks) fn dump(&self) -> Vec<PrefixHash> {
        self.blocks.dump()
    }

    fn over(&self) -> bool {
        self.blocks.0.len() as u64 * u64::from(self.config.block_tokens) > self.config.capacity.0
    }

    /// Returns the leaves: turn, depth, whether it may be evicted, block. Oldest first, and within a turn the deepest.
    fn leaves(&self) -> Vec<(u64, Reverse<u32>, bool, PrefixHash)> {
        let block = f64::from(self.config.block_tokens);
        let leaves = self.blocks.0.iter().filter(|b| self.blocks.children(b.hash) == 0);
        let mut leaves: Vec<_> = leaves
            .map(|b| {
                let (served, budget) = b.note;
                let free = match self.pass {
                    Pass::OneEach => f64::from(b.depth + 1) * block >= (budget / block).ceil() * block,
                    Pass::AllFree => f64::from(b.depth) * block >= budget,
                };
                (served, Reverse(b.depth), free, b.hash)
            })
            .collect();
        leaves.sort();
        leaves
    }

    pub(in crate::cache::blocks) fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        self.served += 1;
        let budget = turn.length.as_f64() + self.config.next_prompt.as_f64() - self.config.xi_tokens.floor();
        for hash in self.blocks.grow(chain, || (0, 0.0)) {
            self.blocks.find(*hash).unwrap().note = (self.served, budget);
        }
        match self.pass {
            Pass::AllFree if self.over() => {
                while let Some(free) = self.leaves().into_iter().find(|leaf| leaf.2) {
                    self.blocks.drop(free.3);
                }
            }
            Pass::OneEach => {
                // Every turn in order, with its leaf at the time the pass reaches it.
                for served in 1..=self.served {
                    let leaf = self.leaves().into_iter().find(|leaf| leaf.0 == served && leaf.2);
                    if let Some(leaf) = leaf.filter(|_| self.over()) {
                        self.blocks.drop(leaf.3);
                    }
                }
            }
            Pass::AllFree => {}
        }
        while self.over() {
            let oldest = self.leaves()[0].3;
            self.blocks.drop(oldest);
        }
    }
}

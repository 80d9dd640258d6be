use std::cmp::Reverse;

use super::List;
use crate::cache::tiers::Tier;
use crate::cache::{CacheConfig, Served};
use policy::ids::PrefixHash;

/// The twin of [`super::super::tiered::TieredBlocks`]: per block the tier that holds it, the turn that used it last,
/// and whether it is free.
pub(in crate::cache::blocks) struct NaiveTiered {
    config: CacheConfig,
    tiers: Vec<(u64, u64)>,
    blocks: List<(usize, u64, bool)>,
    served: u64,
}

impl NaiveTiered {
    pub(in crate::cache::blocks) fn new(config: CacheConfig, lower: &[Tier]) -> Self {
        let top = (config.capacity.0, u64::from(config.block_tokens));
        let lower = lower
            .iter()
            .map(|tier| (tier.capacity.0, u64::from(tier.unit_tokens)));
        Self {
            config,
            tiers: std::iter::once(top).chain(lower).collect(),
            blocks: List(Vec::new()),
            served: 0,
        }
    }

    pub(in crate::cache::blocks) fn per_tier(&self, chain: &[PrefixHash]) -> Vec<usize> {
        let held = |tier| {
            let prefix = self.blocks.prefix(chain);
            let here = self
                .blocks
                .0
                .iter()
                .filter(|b| b.note.0 == tier && prefix.contains(&b.hash));
            here.count()
        };
        (0..self.tiers.len()).map(held).collect()
    }

    pub(in crate::cache::blocks) fn dump(&self) -> Vec<PrefixHash> {
        self.blocks.dump()
    }

    fn over(&self, tier: usize) -> bool {
        let (capacity, unit) = self.tiers[tier];
        let blocks = self.blocks.0.iter().filter(|b| b.note.0 == tier).count() as u64;
        blocks * u64::from(self.config.block_tokens).div_ceil(unit) * unit > capacity
    }

    pub(in crate::cache::blocks) fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        self.served += 1;
        let budget = turn.length.as_f64() + self.config.next_prompt.as_f64() - self.config.xi_tokens.floor();
        for (at, hash) in self.blocks.grow(chain, || (0, 0, false)).iter().enumerate() {
            let begin = at as f64 * f64::from(self.config.block_tokens);
            self.blocks.find(*hash).unwrap().note = (0, self.served, begin >= budget);
        }
        for tier in 0..self.tiers.len() {
            while self.over(tier) {
                let child_here = |hash| {
                    let mut children = self.blocks.0.iter().filter(|b| b.parent == Some(hash));
                    children.any(|child| child.note.0 == tier)
                };
                let here = self
                    .blocks
                    .0
                    .iter()
                    .filter(|b| b.note.0 == tier && !child_here(b.hash));
                let victim = here
                    .min_by_key(|b| (!b.note.2, b.note.1, Reverse(b.depth)))
                    .unwrap()
                    .hash;
                self.blocks.find(victim).unwrap().note.0 += 1;
                if tier + 1 == self.tiers.len() {
                    self.blocks.drop(victim);
                }
            }
        }
    }
}

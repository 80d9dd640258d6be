use std::cmp::Reverse;

use super::{Block, List};
use crate::cache::flop_aware::tuning::{BOOTSTRAP, GRID, GROWTH, MARGIN};
use crate::cache::flop_aware::{FlopAwareOptions, Utility, Worth};
use crate::cache::{CacheConfig, Served};
use policy::ids::PrefixHash;
use policy::units::Tokens;

/// The twin of [`super::super::hybrid::HybridBlocks`] and its tuning: ranks every state at every eviction, and records
/// turns since a copy of the list.
#[derive(Clone)]
pub(in crate::cache::blocks) struct NaiveHybrid {
    config: CacheConfig,
    blocks: List<Option<(Worth, u64)>>,
    utility: Utility,
    served: u64,
    windows: Option<(usize, usize)>,
    copy: Option<Box<Self>>,
    since: Vec<(Vec<PrefixHash>, Served)>,
    until: usize,
}

impl NaiveHybrid {
    pub(in crate::cache::blocks) fn new(config: CacheConfig, options: FlopAwareOptions) -> Self {
        Self {
            config,
            blocks: List(Vec::new()),
            utility: Utility::new(options),
            served: 0,
            windows: options.tuning(),
            copy: None,
            since: Vec::new(),
            until: 0,
        }
    }

    pub(in crate::cache::blocks) fn weight(&self) -> f64 {
        self.utility.weight()
    }

    pub(in crate::cache::blocks) fn resumable(&self, chain: &[PrefixHash]) -> Vec<usize> {
        let prefix = self.blocks.prefix(chain);
        let saved = |hash| {
            self.blocks
                .0
                .iter()
                .any(|block| block.hash == hash && block.note.is_some())
        };
        (1..=prefix.len()).filter(|end| saved(prefix[end - 1])).collect()
    }

    pub(in crate::cache::blocks) fn cached(&self, chain: &[PrefixHash]) -> Tokens {
        let block = u64::from(self.config.block_tokens);
        Tokens(
            self.resumable(chain)
                .last()
                .map_or(0, |blocks| *blocks as u64 * block),
        )
    }

    pub(in crate::cache::blocks) fn used(&self) -> Tokens {
        let states = self.blocks.0.iter().filter(|block| block.note.is_some()).count() as u64;
        let blocks = self.blocks.0.len() as u64 * u64::from(self.config.block_tokens);
        Tokens(blocks + states * self.utility.state_tokens().0)
    }

    pub(in crate::cache::blocks) fn dump(&self) -> Vec<PrefixHash> {
        self.blocks.dump()
    }

    pub(in crate::cache::blocks) fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        let evicted = self.serve(chain, turn);
        let Some((least, most)) = self.windows else { return };
        if let Some(copy) = &self.copy {
            self.since.push((chain.to_vec(), *turn));
            if self.since.len() == self.until {
                let saved = GRID.map(|weight| (weight, copy.saved(&self.since, weight)));
                let worth_it = |best: (f64, u64), next: (f64, u64)| {
                    if next.1 > best.1 + best.1 / MARGIN {
                        next
                    } else {
                        best
                    }
                };
                let best = saved.into_iter().fold((0.0, 0), worth_it).0;
                self.utility.set_weight(best);
                self.begin(most.min(self.until * GROWTH));
            }
        } else if evicted {
            self.begin((self.served as usize * BOOTSTRAP).max(least).min(most));
        }
    }

    fn begin(&mut self, turns: usize) {
        (self.copy, self.since, self.until) = (None, Vec::new(), turns);
        self.copy = Some(Box::new(self.clone()));
    }

    fn saved(&self, turns: &[(Vec<PrefixHash>, Served)], weight: f64) -> u64 {
        let mut replay = self.clone();
        replay.utility.set_weight(weight);
        let mut saved = 0;
        for (chain, turn) in turns {
            saved += replay.cached(chain).0;
            replay.serve(chain, turn);
        }
        saved
    }

    fn serve(&mut self, chain: &[PrefixHash], turn: &Served) -> bool {
        self.utility.learn(turn);
        self.served += 1;
        let resumed = self.resumable(chain).last().map(|end| chain[end - 1]);
        let shared = self.blocks.prefix(chain).last().copied();
        let last = self.blocks.grow(chain, || None).last().copied();
        for hash in [resumed, shared, last].into_iter().flatten() {
            let (served, block) = (self.served, self.config.block_tokens);
            let touched = self.blocks.find(hash).unwrap();
            let length = Tokens(u64::from((touched.depth + 1) * block));
            touched.note = Some((self.utility.of(length), served));
        }
        let fits = self.used() <= self.config.capacity;
        while self.used() > self.config.capacity {
            let candidates = self
                .blocks
                .0
                .iter()
                .filter(|block| self.blocks.children(block.hash) <= 1);
            let scored = candidates.filter_map(|block| {
                let (worth, served) = block.note?;
                Some((
                    self.utility.score(worth),
                    served,
                    Reverse(block.depth),
                    block.hash,
                ))
            });
            let least = scored.min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
            let Some((.., hash)) = least else { break };
            self.blocks.find(hash).unwrap().note = None;
            // Blocks without a state after them.
            while let Some(dead) = self.dead() {
                self.blocks.drop(dead);
            }
        }
        !fits
    }

    fn dead(&self) -> Option<PrefixHash> {
        let dead = |block: &&Block<Option<_>>| block.note.is_none() && self.blocks.children(block.hash) == 0;
        self.blocks.0.iter().find(dead).map(|block| block.hash)
    }
}

//! The naive twins: blocks in a list, every question answered by looking at all of them. They share with the real
//! caches what scores a block, and nothing that finds one.

use std::cmp::Reverse;

use super::super::flop_aware::{FlopAwareOptions, Utility};
use super::super::{CacheConfig, Served};
use super::scored::{Score, Used};
use crate::ids::PrefixHash;
use crate::units::Tokens;

#[derive(Clone, Debug)]
pub(super) struct Block<T> {
    hash: PrefixHash,
    parent: Option<PrefixHash>,
    depth: u32,
    pub(super) note: T,
}

/// Blocks in the order in which they came.
#[derive(Clone, Debug)]
pub(super) struct List<T>(pub(super) Vec<Block<T>>);

impl<T> List<T> {
    fn find(&mut self, hash: PrefixHash) -> Option<&mut Block<T>> {
        self.0.iter_mut().find(|block| block.hash == hash)
    }

    fn children(&self, hash: PrefixHash) -> usize {
        self.0.iter().filter(|block| block.parent == Some(hash)).count()
    }

    /// The resident prefix of a chain.
    fn prefix<'a>(&self, chain: &'a [PrefixHash]) -> &'a [PrefixHash] {
        let stands = |at: usize| {
            let parent = at.checked_sub(1).map(|above| chain[above]);
            self.0
                .iter()
                .any(|block| block.hash == chain[at] && block.parent == parent)
        };
        let missing = (0..chain.len()).find(|at| !stands(*at));
        &chain[..missing.unwrap_or(chain.len())]
    }

    /// Adds what is missing, as far as names allow, and returns what is resident then.
    fn grow<'a>(&mut self, chain: &'a [PrefixHash], note: impl Fn() -> T) -> &'a [PrefixHash] {
        for at in self.prefix(chain).len()..chain.len() {
            if self.find(chain[at]).is_some() {
                break;
            }
            let parent = at.checked_sub(1).map(|above| chain[above]);
            let (hash, depth, note) = (chain[at], at as u32, note());
            self.0.push(Block {
                hash,
                parent,
                depth,
                note,
            });
        }
        self.prefix(chain)
    }

    fn drop(&mut self, hash: PrefixHash) {
        assert_eq!(self.children(hash), 0, "a block goes after what hangs below it");
        self.0.retain(|block| block.hash != hash);
    }

    pub(super) fn dump(&self) -> Vec<PrefixHash> {
        self.0.iter().map(|block| block.hash).collect()
    }
}

/// The twin of [`super::hybrid::HybridBlocks`], with a given weight.
pub(super) struct NaiveHybrid {
    config: CacheConfig,
    blocks: List<Option<(f64, u64)>>,
    utility: Utility,
    served: u64,
}

impl NaiveHybrid {
    pub(super) fn new(config: CacheConfig, options: FlopAwareOptions) -> Self {
        Self {
            config,
            blocks: List(Vec::new()),
            utility: Utility::new(options),
            served: 0,
        }
    }

    pub(super) fn resumable(&self, chain: &[PrefixHash]) -> Vec<usize> {
        let prefix = self.blocks.prefix(chain);
        let saved = |hash| {
            self.blocks
                .0
                .iter()
                .any(|block| block.hash == hash && block.note.is_some())
        };
        (1..=prefix.len()).filter(|end| saved(prefix[end - 1])).collect()
    }

    pub(super) fn cached(&self, chain: &[PrefixHash]) -> Tokens {
        let block = u64::from(self.config.block_tokens);
        Tokens(
            self.resumable(chain)
                .last()
                .map_or(0, |blocks| *blocks as u64 * block),
        )
    }

    pub(super) fn used(&self) -> Tokens {
        let states = self.blocks.0.iter().filter(|block| block.note.is_some()).count() as u64;
        let blocks = self.blocks.0.len() as u64 * u64::from(self.config.block_tokens);
        Tokens(blocks + states * self.utility.state_tokens().0)
    }

    pub(super) fn dump(&self) -> Vec<PrefixHash> {
        self.blocks.dump()
    }

    pub(super) fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
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
        while self.used() > self.config.capacity {
            let candidates = self
                .blocks
                .0
                .iter()
                .filter(|block| self.blocks.children(block.hash) <= 1);
            let scored = candidates.filter_map(|block| {
                let (value, served) = block.note?;
                Some((value, served, Reverse(block.depth), block.hash))
            });
            let least = scored.min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
            let Some((.., hash)) = least else { return };
            self.blocks.find(hash).unwrap().note = None;
            // Blocks that no state stands behind.
            while let Some(dead) = self.dead() {
                self.blocks.drop(dead);
            }
        }
    }

    fn dead(&self) -> Option<PrefixHash> {
        let dead = |block: &&Block<Option<_>>| block.note.is_none() && self.blocks.children(block.hash) == 0;
        self.blocks.0.iter().find(dead).map(|block| block.hash)
    }
}

/// Group, value, turn, uses.
type Scored = (usize, f64, u64, u32);

/// The twin of [`super::scored::ScoredBlocks`].
pub(super) struct NaiveScored<S> {
    config: CacheConfig,
    blocks: List<Scored>,
    score: S,
    served: u64,
}

impl<S: Score> NaiveScored<S> {
    pub(super) fn new(config: CacheConfig, score: S) -> Self {
        Self {
            config,
            blocks: List(Vec::new()),
            score,
            served: 0,
        }
    }

    pub(super) fn cached(&self, chain: &[PrefixHash]) -> Tokens {
        Tokens(self.blocks.prefix(chain).len() as u64 * u64::from(self.config.block_tokens))
    }

    pub(super) fn dump(&self) -> Vec<PrefixHash> {
        self.blocks.dump()
    }

    pub(super) fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        self.score.turn(turn);
        self.served += 1;
        let block = u64::from(self.config.block_tokens);
        for (at, hash) in (0..).zip(self.blocks.grow(chain, || (0, 0.0, 0, 0))) {
            let used = self.blocks.find(*hash).unwrap();
            let (begin, end, times) = (Tokens(at * block), Tokens((at + 1) * block), used.note.3 + 1);
            let value = self.score.value(Used { begin, end, times });
            used.note = (self.score.group(), value, self.served, times);
        }
        while self.blocks.0.len() as u64 * block > self.config.capacity.0 {
            let victim = self.victim();
            let value = self.blocks.find(victim).unwrap().note.1;
            self.score.evicted(value);
            self.blocks.drop(victim);
        }
    }

    /// The least of each group's least.
    fn victim(&self) -> PrefixHash {
        let leaves: Vec<_> = self
            .blocks
            .0
            .iter()
            .filter(|block| self.blocks.children(block.hash) == 0)
            .collect();
        let least = leaves.iter().filter(|leaf| {
            let place = |block: &Block<Scored>| (block.note.1, block.note.2, Reverse(block.depth));
            !leaves
                .iter()
                .any(|other| other.note.0 == leaf.note.0 && place(other) < place(leaf))
        });
        let worth = |leaf: &Block<Scored>| self.score.worth(leaf.note.0, leaf.note.1);
        let least = least.min_by(|a, b| {
            let age = |leaf: &Block<Scored>| (Reverse(leaf.depth), leaf.note.2);
            worth(a).total_cmp(&worth(b)).then(age(a).cmp(&age(b)))
        });
        least.unwrap().hash
    }
}

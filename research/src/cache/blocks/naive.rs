//! The naive twins: blocks in a list, with exhaustive search. They share with the real caches only what scores a block.

mod hybrid;
mod tiered;
mod trimmed;

use std::cmp::Reverse;

pub(super) use self::hybrid::NaiveHybrid;
pub(super) use self::tiered::NaiveTiered;
pub(super) use self::trimmed::NaiveTrimmed;
use super::super::{CacheConfig, Served};
use super::scored::{Score, Used};
use policy::ids::PrefixHash;
use policy::units::Tokens;

#[derive(Clone, Debug)]
pub(super) struct Block<T> {
    hash: PrefixHash,
    parent: Option<PrefixHash>,
    depth: u32,
    pub(super) note: T,
}

#[derive(Clone, Debug)]
pub(super) struct List<T>(pub(super) Vec<Block<T>>);

impl<T> List<T> {
    fn find(&mut self, hash: PrefixHash) -> Option<&mut Block<T>> {
        self.0.iter_mut().find(|block| block.hash == hash)
    }

    fn children(&self, hash: PrefixHash) -> usize {
        self.0.iter().filter(|block| block.parent == Some(hash)).count()
    }

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

    /// Adds the missing blocks, as far as names do not conflict, and returns the resident prefix.
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

/// Score of a block: group, value, turn and number of uses.
type Scored = (usize, f64, u64, u32);

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

/// The twin of [`super::foresight`]: searches the rest of the trace for the block.
#[derive(Clone, Debug)]
pub(super) struct NaiveHindsight {
    pub(super) config: CacheConfig,
    pub(super) capped: bool,
    pub(super) turns: Vec<(Vec<PrefixHash>, u64)>,
    pub(super) served: usize,
}

impl Score for NaiveHindsight {
    fn turn(&mut self, _: &Served) {
        self.served += 1;
    }

    fn value(&self, block: Used) -> f64 {
        let at = (block.begin.0 / u64::from(self.config.block_tokens)) as usize;
        let hash = self.turns[self.served - 1].0[at];
        let rest = self.turns.iter().enumerate().skip(self.served);
        let next = rest.clone().find(|(_, (chain, _))| chain.contains(&hash));
        match next {
            Some((turn, (_, input)))
                if !self.capped || (block.begin.0 as f64) < *input as f64 - self.config.xi_tokens.floor() =>
            {
                -(turn as f64)
            }
            _ => f64::NEG_INFINITY,
        }
    }
}

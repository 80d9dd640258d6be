//! Shared blocks under any score: the least of the leaves goes.
//!
//! A score sorts blocks into groups. Within a group blocks never change places while nothing touches them, so a group
//! is an ordered set of its leaves; between groups they may, so the least of each group are compared at each eviction:
//! O(groups + log n) per block evicted, O(log n) for the leaf enlisted by a turn. Scores that change alike for all need
//! one group.
//!
//! Of equals the one served longest ago goes, and of one turn's the deepest. Scored by recency this is the LRU of
//! [`super::super::prefix`] block by block, which a property test says.
//!
//! A turn is served at once ([`BlockPolicy`]), or its blocks are held while it runs ([`leased`]). A cache is used in one
//! of the two ways.

pub mod leased;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::super::ranked::Rank;
use super::super::{CacheConfig, Served};
use super::BlockPolicy;
use super::tree::{SlotId, Tree};
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

/// A block that a turn used.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// Tokens before it.
    pub begin: Tokens,
    /// Tokens up to its end.
    pub end: Tokens,
    /// Turns that used it since it became resident, this one included.
    pub times: u32,
}

/// What blocks are worth.
pub trait Score {
    /// A turn was served. Values asked for next are of its blocks.
    fn turn(&mut self, turn: &Served);

    /// The group that this turn's blocks belong to: a small dense number.
    fn group(&self) -> usize {
        0
    }

    /// What a block of this turn is worth, until it is used again: its place within its group.
    fn value(&self, block: Used) -> f64;

    /// What a block of `value` in `group` is worth now, among those of all groups. Never falls as `value` rises.
    fn worth(&self, group: usize, value: f64) -> f64 {
        let _ = group;
        value
    }

    /// A block of this value is gone.
    fn evicted(&mut self, value: f64) {
        let _ = value;
    }

    /// The time, where turns take some: never before the last one's.
    fn now(&mut self, at: Millis) {
        let _ = at;
    }

    /// What a block with `begin` tokens before it is worth at this moment, whatever it was worth when it was used. Only
    /// of a score whose values change while nothing touches a block.
    fn renewed(&self, hash: PrefixHash, begin: Tokens) -> Option<f64> {
        let _ = (hash, begin);
        None
    }

    /// A turn of the trace can no longer use what is resident. Returns the values of the blocks that have to be
    /// [renewed](Score::renewed).
    fn passed(&mut self, turn: u32) -> Vec<f64> {
        let _ = turn;
        Vec::new()
    }
}

/// A block's place among all: where it stands, and what it is worth there.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    group: usize,
    value: f64,
    served: u64,
    times: u32,
    /// Running sequences that hold it.
    pins: u32,
}

/// Rank, age, depth; the least goes first.
type Key = (Rank, u64, Reverse<u32>, SlotId);

/// A cache of shared blocks under a score.
#[derive(Clone, Debug)]
pub struct ScoredBlocks<S> {
    config: CacheConfig,
    tree: Tree,
    score: S,
    places: Vec<Place>,
    /// The leaves of each group.
    leaves: Vec<BTreeSet<Key>>,
    served: u64,
    /// Counts clears, so that a lease from before one holds nothing.
    epoch: u64,
}

impl<S: Score> ScoredBlocks<S> {
    /// An empty cache. Blocks weigh `config.block_tokens`.
    #[must_use]
    pub fn new(config: CacheConfig, score: S) -> Self {
        Self {
            config,
            tree: Tree::default(),
            score,
            places: Vec::new(),
            leaves: Vec::new(),
            served: 0,
            epoch: 0,
        }
    }

    fn block(&self) -> u64 {
        u64::from(self.config.block_tokens.max(1))
    }

    fn key(&self, slot: SlotId) -> Key {
        let place = &self.places[slot as usize];
        (
            Rank::of(place.value),
            place.served,
            Reverse(self.tree.depth(slot)),
            slot,
        )
    }

    fn enlist(&mut self, slot: SlotId) {
        let (key, group) = (self.key(slot), self.places[slot as usize].group);
        if self.leaves.len() <= group {
            self.leaves.resize(group + 1, BTreeSet::new());
        }
        self.leaves[group].insert(key);
    }

    fn delist(&mut self, slot: SlotId) {
        let (key, group) = (self.key(slot), self.places[slot as usize].group);
        self.leaves[group].remove(&key);
    }

    /// Scores the blocks that this turn used, of which the first `hits` were resident.
    fn touch(&mut self, path: &[SlotId], hits: usize) {
        let last = path.iter().copied().max().map_or(0, |slot| slot as usize + 1);
        if self.places.len() < last {
            self.places.resize(last, Place::default());
        }
        let (group, served) = (self.score.group(), self.served);
        for (at, &slot) in path.iter().enumerate() {
            let times = if at < hits {
                self.places[slot as usize].times.saturating_add(1)
            } else {
                1
            };
            let begin = Tokens(at as u64 * self.block());
            let end = Tokens(begin.0 + self.block());
            let value = self.score.value(Used { begin, end, times });
            self.places[slot as usize] = Place {
                group,
                value,
                served,
                times,
                pins: 0,
            };
        }
    }

    fn victim(&self) -> Option<SlotId> {
        let heads = self.leaves.iter().filter_map(BTreeSet::first);
        let keyed = heads.map(|&(_, served, depth, slot)| {
            let place = &self.places[slot as usize];
            (
                (
                    Rank::of(self.score.worth(place.group, place.value)),
                    depth,
                    served,
                ),
                slot,
            )
        });
        keyed.min().map(|(_, slot)| slot)
    }
}

impl<S: Score> BlockPolicy for ScoredBlocks<S> {
    fn cached(&self, chain: &[PrefixHash]) -> Tokens {
        Tokens(self.tree.walk(chain).count() as u64 * self.block())
    }

    fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        self.score.turn(turn);
        self.served += 1;
        let mut path: Vec<SlotId> = self.tree.walk(chain).collect();
        let hits = path.len();
        // Of the blocks that stand above others none is listed.
        if let Some(&leaf) = path.last().filter(|slot| self.tree.is_leaf(**slot)) {
            self.delist(leaf);
        }
        self.tree.grow(&mut path, chain);
        self.touch(&path, hits);
        if let Some(&leaf) = path.last().filter(|slot| self.tree.is_leaf(**slot)) {
            self.enlist(leaf);
        }
        while self.used() > self.config.capacity {
            let Some(victim) = self.victim() else { return };
            self.delist(victim);
            self.score.evicted(self.places[victim as usize].value);
            if let Some(parent) = self
                .tree
                .prune(victim)
                .filter(|parent| self.tree.is_leaf(*parent))
            {
                self.enlist(parent);
            }
        }
    }

    fn used(&self) -> Tokens {
        Tokens(self.tree.len() as u64 * self.block())
    }

    fn dump(&self) -> Vec<PrefixHash> {
        self.tree.slots().map(|(hash, _)| hash).collect()
    }

    fn check(&self) -> Result<(), String> {
        self.tree.check()?;
        if self.used() > self.config.capacity {
            return Err(format!("{} tokens in {}", self.used(), self.config.capacity));
        }
        let mut leaves = 0;
        let free = |slot: SlotId| self.tree.is_leaf(slot) && self.places[slot as usize].pins == 0;
        for (hash, slot) in self.tree.slots().filter(|(_, slot)| free(*slot)) {
            leaves += 1;
            let group = self.leaves.get(self.places[slot as usize].group);
            if !group.is_some_and(|group| group.contains(&self.key(slot))) {
                return Err(format!("leaf {} is not listed", hash.0));
            }
        }
        let listed: usize = self.leaves.iter().map(BTreeSet::len).sum();
        if leaves == listed {
            Ok(())
        } else {
            Err(format!("{leaves} leaves, {listed} listed"))
        }
    }
}

//! Shared blocks under any score: the lowest leaf is evicted.
//!
//! A score sorts blocks into groups. Within a group the order of untouched blocks is fixed, so a group is an ordered
//! set of its leaves. Between groups it may change, so the least of each group are compared at each eviction: O(log n +
//! groups) per evicted block, O(log n) for the leaf added by a turn.
//!
//! Ties go to the least recently served, and within one turn to the deepest. Scored by recency this equals the LRU of
//! [`crate::simulate::shared`] block by block (a property test). A cache serves turns at once ([`BlockPolicy`]) or
//! holds their blocks while they run ([`leased`]), never both.

pub mod leased;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::super::ranked::Rank;
use super::super::{CacheConfig, Served};
use super::tree::{SlotId, Tree};
use super::{BlockPolicy, blocks_of_tree};
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

/// A block that a turn used.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// Tokens of the chain before the block.
    pub begin: Tokens,
    /// Tokens of the chain up to and including the block.
    pub end: Tokens,
    /// Turns that used the block since it became resident, this one included.
    pub times: u32,
}

/// The value of blocks.
pub trait Score {
    /// Records a served turn. The following calls of `value` are for its blocks.
    fn turn(&mut self, turn: &Served);

    /// Returns the group of this turn's blocks: a small dense number.
    fn group(&self) -> usize {
        0
    }

    /// Returns the value of a block of this turn until the block's next use: a position within the group.
    fn value(&self, block: Used) -> f64;

    /// Returns the current worth of a block, comparable between groups. Never falls as `value` rises.
    fn worth(&self, group: usize, value: f64) -> f64 {
        let _ = group;
        value
    }

    /// Records that a block of this value was evicted.
    fn evicted(&mut self, value: f64) {
        let _ = value;
    }

    /// Sets the time, where turns overlap: never earlier than before.
    fn now(&mut self, at: Millis) {
        let _ = at;
    }

    /// Returns the current value of a block after `begin` tokens, for scores that change while a block is untouched.
    fn renewed(&self, hash: PrefixHash, begin: Tokens) -> Option<f64> {
        let _ = (hash, begin);
        None
    }

    /// Records that a turn can no longer use resident blocks. Returns the values to be [renewed](Score::renewed).
    fn passed(&mut self, turn: u32) -> Vec<f64> {
        let _ = turn;
        Vec::new()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    group: usize,
    value: f64,
    served: u64,
    times: u32,
    /// Number of running sequences that hold the block.
    pins: u32,
}

/// Key of a leaf in the order of eviction: rank, age, depth. The least is evicted first.
type Key = (Rank, u64, Reverse<u32>, SlotId);

/// A cache of shared blocks under a score.
#[derive(Clone, Debug)]
pub struct ScoredBlocks<S> {
    config: CacheConfig,
    tree: Tree,
    score: S,
    places: Vec<Place>,
    leaves: Vec<BTreeSet<Key>>,
    served: u64,
    /// Number of clears, which invalidates leases from before the last one.
    epoch: u64,
}

impl<S: Score> ScoredBlocks<S> {
    /// Creates an empty cache. Blocks weigh `config.block_tokens`.
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

    /// Scores the blocks of this turn, of which the first `hits` were resident.
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
            let begin = Tokens(at as u64 * self.config.block());
            let end = Tokens(begin.0 + self.config.block());
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
    blocks_of_tree!();

    fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        self.score.turn(turn);
        self.served += 1;
        let mut path: Vec<SlotId> = self.tree.walk(chain).collect();
        let hits = path.len();
        // Only leaves are listed.
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

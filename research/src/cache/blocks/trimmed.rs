//! The alternative readings of T-LRU, on shared blocks.
//!
//! [`super::super::t_lru_printed`] takes one unit from every conversation that has one to give, in one pass. Here a
//! unit is a block, and a conversation is the leaf of the last turn that used it. A block exposed by a pass belongs to
//! the same turn, which has given already, or to a later one, which gives in its turn. [`super::super::t_lru_trim_all`]
//! drops every block past its budget, and the blocks this exposes. After either, LRU applies. O(blocks of the chain +
//! log n) per turn and evicted block.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::super::{CacheConfig, Served};
use super::tree::{Key, SlotId, Tree};
use super::{BlockPolicy, blocks_of_tree};
use policy::ids::PrefixHash;
use policy::units::Tokens;

/// The trimming of an overflowing cache before LRU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// One block is taken from each turn's leaf at or past its budget (`≥`, as printed), oldest first, until the cache
    /// fits.
    OneEach,
    /// Every block past its budget is taken.
    AllFree,
}

/// A cache of shared blocks under one of the readings.
#[derive(Clone, Debug)]
pub struct TrimmedBlocks {
    config: CacheConfig,
    pass: Pass,
    tree: Tree,
    states: Vec<(u64, bool)>,
    leaves: BTreeSet<Key>,
    candidates: BTreeSet<Key>,
    served: u64,
}

impl TrimmedBlocks {
    /// Creates an empty cache. Blocks weigh `config.block_tokens`.
    pub fn new(config: CacheConfig, pass: Pass) -> Self {
        Self {
            config,
            pass,
            tree: Tree::default(),
            states: Vec::new(),
            leaves: BTreeSet::new(),
            candidates: BTreeSet::new(),
            served: 0,
        }
    }

    fn key(&self, slot: SlotId) -> Key {
        self.tree.key(self.states[slot as usize].0, slot)
    }

    fn enlist(&mut self, slot: SlotId) {
        let key = self.key(slot);
        self.leaves.insert(key);
        if self.states[slot as usize].1 {
            self.candidates.insert(key);
        }
    }

    fn delist(&mut self, slot: SlotId) {
        let key = self.key(slot);
        self.leaves.remove(&key);
        self.candidates.remove(&key);
    }

    fn prune(&mut self, leaf: SlotId) {
        self.delist(leaf);
        if let Some(parent) = self.tree.prune(leaf).filter(|parent| self.tree.is_leaf(*parent)) {
            self.enlist(parent);
        }
    }

    fn touch(&mut self, path: &[SlotId], turn: &Served) {
        let last = path.iter().copied().max().map_or(0, |slot| slot as usize + 1);
        if self.states.len() < last {
            self.states.resize(last, (0, false));
        }
        let budget = self.config.budget(turn.length, self.config.next_prompt);
        let block = self.config.block();
        for (end, &slot) in (1..).map(|blocks: u64| blocks * block).zip(path) {
            let free = match self.pass {
                Pass::OneEach => end >= budget,
                Pass::AllFree => end > budget,
            };
            self.states[slot as usize] = (self.served, free);
        }
    }

    fn trim(&mut self) {
        let mut from = (0, Reverse(u32::MAX), 0);
        while self.used() > self.config.capacity || self.pass == Pass::AllFree {
            let Some(&(served, _, slot)) = self.candidates.range(from..).next() else {
                return;
            };
            if self.pass == Pass::OneEach {
                // Each turn gives once.
                from.0 = served + 1;
            }
            self.prune(slot);
        }
    }
}

impl BlockPolicy for TrimmedBlocks {
    blocks_of_tree!();

    fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        self.served += 1;
        let mut path: Vec<SlotId> = self.tree.walk(chain).collect();
        if let Some(&leaf) = path.last().filter(|slot| self.tree.is_leaf(**slot)) {
            self.delist(leaf);
        }
        self.tree.grow(&mut path, chain);
        self.touch(&path, turn);
        if let Some(&leaf) = path.last().filter(|slot| self.tree.is_leaf(**slot)) {
            self.enlist(leaf);
        }
        if self.used() > self.config.capacity {
            self.trim();
        }
        while self.used() > self.config.capacity {
            let Some(&(_, _, oldest)) = self.leaves.first() else {
                return;
            };
            self.prune(oldest);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.tree.check()?;
        if self.used() > self.config.capacity {
            return Err(format!("{} tokens in {}", self.used(), self.config.capacity));
        }
        let leaves: Vec<SlotId> = self
            .tree
            .slots()
            .map(|(_, slot)| slot)
            .filter(|slot| self.tree.is_leaf(*slot))
            .collect();
        let free = leaves.iter().filter(|slot| self.states[**slot as usize].1);
        let listed = |set: &BTreeSet<Key>, slot: &SlotId| set.contains(&self.key(*slot));
        if leaves.len() != self.leaves.len() || !leaves.iter().all(|slot| listed(&self.leaves, slot)) {
            return Err(format!("{} leaves, {} listed", leaves.len(), self.leaves.len()));
        }
        let (free, listed_free) = (
            free.clone().count(),
            free.filter(|slot| listed(&self.candidates, slot)).count(),
        );
        if (free, listed_free) == (self.candidates.len(), free) {
            Ok(())
        } else {
            Err(format!(
                "{free} free leaves, {} candidates",
                self.candidates.len()
            ))
        }
    }
}

//! T-LRU over a stack of tiers that hold shared blocks.
//!
//! The rules are those of private conversations ([`super::super::tiers`]): a turn's blocks move to the top. A tier that
//! overflows demotes free blocks first, the longest unused first, then any, to the next tier; the last tier drops them.
//! Sharing adds:
//! - *No block is above its parent*: a tier demotes blocks without a child in the same tier, and a chain's blocks load
//!   from their tiers.
//! - *A block takes whole units.* Another chain may branch off after any block, so each is stored and loaded
//!   separately: in a tier whose unit is larger than a block it takes a unit, and a block of several units takes these.
//! - *The last turn decides* whether a block is free, as in [`crate::simulate::shared`].
//!
//! O(blocks of the chain · log n) per turn, and O(log n) per block and tier that it is demoted.

use std::collections::BTreeSet;

use super::super::tiers::Tier;
use super::super::{CacheConfig, Served, round_up};
use super::tree::{Key, SlotId, Tree};
use super::{BlockPolicy, blocks_of_tree};
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

/// T-LRU over tiers of shared blocks.
#[derive(Clone, Debug)]
pub struct TieredBlocks {
    config: CacheConfig,
    levels: Vec<Level>,
    tree: Tree,
    states: Vec<Standing>,
    children: Vec<u32>,
    served: u64,
}

#[derive(Clone, Debug)]
struct Level {
    tier: Tier,
    size: u64,
    used: u64,
    /// Blocks of this tier without a child in it.
    edges: BTreeSet<Key>,
    free: BTreeSet<Key>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    level: usize,
    served: u64,
    free: bool,
}

impl TieredBlocks {
    /// Creates an empty stack: the configuration's tier on top, in its blocks and without loading time, then `lower`.
    pub fn new(config: CacheConfig, lower: &[Tier]) -> Self {
        let block = config.block();
        let top = Tier {
            capacity: config.capacity,
            ms_per_token: 0.0,
            unit_tokens: config.block_tokens,
        };
        let level = |tier: &Tier| Level {
            tier: *tier,
            size: round_up(block, u64::from(tier.unit_tokens.max(1))),
            used: 0,
            edges: BTreeSet::new(),
            free: BTreeSet::new(),
        };
        Self {
            config,
            levels: std::iter::once(&top).chain(lower).map(level).collect(),
            tree: Tree::default(),
            states: Vec::new(),
            children: Vec::new(),
            served: 0,
        }
    }

    /// Returns the number of blocks of a chain's resident prefix by tier, top first.
    #[cfg(test)]
    pub fn per_tier(&self, chain: &[PrefixHash]) -> Vec<usize> {
        let mut blocks = vec![0; self.levels.len()];
        let levels = self.tree.walk(chain).map(|slot| self.states[slot as usize].level);
        levels.for_each(|level| blocks[level] += 1);
        blocks
    }

    fn key(&self, slot: SlotId) -> Key {
        self.tree.key(self.states[slot as usize].served, slot)
    }

    fn below(&mut self, slot: SlotId, level: usize) -> &mut u32 {
        &mut self.children[slot as usize * self.levels.len() + level]
    }

    fn is_edge(&self, slot: SlotId) -> bool {
        let level = self.states[slot as usize].level;
        self.children[slot as usize * self.levels.len() + level] == 0
    }

    fn enlist_edge(&mut self, slot: SlotId) {
        if self.is_edge(slot) {
            let (key, Standing { level, free, .. }) = (self.key(slot), self.states[slot as usize]);
            self.levels[level].edges.insert(key);
            if free {
                self.levels[level].free.insert(key);
            }
        }
    }

    fn delist(&mut self, slot: SlotId) {
        let (key, level) = (self.key(slot), self.states[slot as usize].level);
        self.levels[level].edges.remove(&key);
        self.levels[level].free.remove(&key);
    }

    /// Moves a turn's blocks, of which the first `hits` were resident, to the top.
    fn lift(&mut self, path: &[SlotId], hits: usize, turn: &Served) {
        let last = path.iter().copied().max().map_or(0, |slot| slot as usize + 1);
        if self.states.len() < last {
            self.states.resize(last, Standing::default());
            self.children.resize(last * self.levels.len(), 0);
        }
        let budget = self.config.budget(turn.length, self.config.next_prompt);
        for (at, &slot) in path.iter().enumerate() {
            let parent = at.checked_sub(1).map(|above| path[above]);
            if at < hits {
                self.delist(slot);
                let level = self.states[slot as usize].level;
                self.levels[level].used -= self.levels[level].size;
                if let Some(parent) = parent {
                    *self.below(parent, level) -= 1;
                }
            } else {
                (0..self.levels.len()).for_each(|level| *self.below(slot, level) = 0);
            }
            if let Some(parent) = parent {
                *self.below(parent, 0) += 1;
            }
            self.levels[0].used += self.levels[0].size;
            self.states[slot as usize] = Standing {
                level: 0,
                served: self.served,
                free: (at as u64 + 1) * self.config.block() > budget,
            };
        }
        if let Some(&end) = path.last() {
            self.enlist_edge(end);
        }
    }

    /// Moves a block without a child in its tier one tier down, or out of the last.
    fn sink(&mut self, slot: SlotId) {
        self.delist(slot);
        let level = self.states[slot as usize].level;
        let parent = self.tree.parent(slot);
        self.levels[level].used -= self.levels[level].size;
        if let Some(parent) = parent {
            *self.below(parent, level) -= 1;
        }
        if level + 1 == self.levels.len() {
            self.tree.prune(slot);
        } else {
            self.states[slot as usize].level = level + 1;
            self.levels[level + 1].used += self.levels[level + 1].size;
            if let Some(parent) = parent {
                *self.below(parent, level + 1) += 1;
            }
            self.enlist_edge(slot);
        }
        if let Some(parent) = parent.filter(|parent| self.states[*parent as usize].level == level) {
            self.enlist_edge(parent);
        }
    }

    fn settle(&mut self, level: usize) {
        while self.levels[level].used > self.levels[level].tier.capacity.0 {
            let Level { edges, free, .. } = &self.levels[level];
            let Some(&(_, _, slot)) = free.first().or(edges.first()) else {
                return;
            };
            self.sink(slot);
        }
    }
}

impl BlockPolicy for TieredBlocks {
    blocks_of_tree!();

    fn load_time(&self, chain: &[PrefixHash]) -> Millis {
        let tier = |slot: SlotId| &self.levels[self.states[slot as usize].level].tier;
        let load = |slot| Millis(tier(slot).ms_per_token * self.config.block() as f64);
        self.tree.walk(chain).map(load).sum()
    }

    fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        self.served += 1;
        let mut path: Vec<SlotId> = self.tree.walk(chain).collect();
        let hits = path.len();
        self.tree.grow(&mut path, chain);
        self.lift(&path, hits, turn);
        (0..self.levels.len()).for_each(|level| self.settle(level));
    }

    fn check(&self) -> Result<(), String> {
        self.tree.check()?;
        let mut counted = vec![(0, 0, 0); self.levels.len()];
        for (hash, slot) in self.tree.slots() {
            let Standing { level, free, .. } = self.states[slot as usize];
            let above = self
                .tree
                .parent(slot)
                .map(|parent| self.states[parent as usize].level);
            if above.is_some_and(|above| above > level) {
                return Err(format!("block {} lies above its parent", hash.0));
            }
            let (used, edges, free_edges) = &mut counted[level];
            *used += self.levels[level].size;
            if self.is_edge(slot) {
                *edges += 1;
                *free_edges += usize::from(free);
                if !self.levels[level].edges.contains(&self.key(slot)) {
                    return Err(format!("block {} is not listed in tier {level}", hash.0));
                }
            }
        }
        for (at, (level, counted)) in self.levels.iter().zip(counted).enumerate() {
            let kept = (level.used, level.edges.len(), level.free.len());
            if kept != counted || level.used > level.tier.capacity.0 {
                let capacity = level.tier.capacity;
                return Err(format!(
                    "tier {at} of {capacity}: {counted:?} counted, {kept:?} kept"
                ));
            }
        }
        Ok(())
    }
}

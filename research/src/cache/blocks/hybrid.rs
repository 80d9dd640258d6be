//! FLOP-aware caching of shared blocks for hybrid models, with selective admission of states (Marconi).
//!
//! To resume a prefix, a hybrid model needs all KV blocks of its attention layers and a state of its recurrent layers
//! saved at exactly that point, a *checkpoint*. A checkpoint is large, so the policy decides which to save.
//! - *Admission*: the sequence is inserted into the tree before it is computed, which shows where it diverges from
//!   cached sequences. Prefill saves a state there (a third sequence will need the common part), and one at the
//!   sequence's last block (where the conversation's next turn resumes). So at most two are saved per turn.
//! - *Eviction*: the checkpoint of least `recency + w·FLOPs saved per byte` ([`super::super::flop_aware`], with `w`
//!   tuned the same way). The checkpoint that was resumed from and the admitted ones are touched; one that was merely
//!   passed was not used. One with two or more branches stays; one with a single branch loses its state alone; one at a
//!   leaf loses its blocks too, leaf first, up to the next checkpoint, since the blocks between cannot be resumed.
//!
//! So every leaf and every branching has a checkpoint, and every block precedes one. O(chain length + log n) per turn.
//!
//! # Gaps in the source, and the choices made
//! - The FLOPs saved and the bytes charged are those of the whole prefix, shared or not. The savings beyond the
//!   checkpoint above would change with every neighbour that comes or goes.
//! - States are saved at the ends of blocks; a partly filled last block is not cached.
//! - Prefill passes the branching on its way from the point of resumption, so its state needs no second pass.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::super::flop_aware::tuning::{Tunable, Tuning};
use super::super::flop_aware::{FlopAwareOptions, Utility, Worth};
use super::super::ranked::Rank;
use super::super::{CacheConfig, Served};
use super::BlockPolicy;
use super::tree::{SlotId, Tree};
use policy::ids::PrefixHash;
use policy::units::Tokens;

/// FLOP-aware caching of a hybrid model's blocks and states.
#[derive(Clone, Debug)]
pub struct HybridBlocks {
    held: Held,
    tuning: Tuning<Held>,
}

#[derive(Clone, Debug)]
struct Held {
    config: CacheConfig,
    tree: Tree,
    /// By slot: the checkpoint at the block's end, if there is one.
    checkpoints: Vec<Option<Checkpoint>>,
    saved: u64,
    /// Checkpoints with at most one branch below them, least first.
    evictable: BTreeSet<(Standing, SlotId)>,
    utility: Utility,
    served: u64,
}

#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    worth: Worth,
    served: u64,
}

/// Key of a checkpoint in the order of eviction: utility, then age; within one turn the deeper goes first.
type Standing = (Rank, u64, Reverse<u32>);

impl HybridBlocks {
    /// Creates an empty cache. Blocks weigh `config.block_tokens`, checkpoints `options.state_tokens`.
    pub fn new(config: CacheConfig, options: FlopAwareOptions) -> Self {
        let held = Held {
            config,
            tree: Tree::default(),
            checkpoints: Vec::new(),
            saved: 0,
            evictable: BTreeSet::new(),
            utility: Utility::new(options),
            served: 0,
        };
        let tuning = Tuning::new(options.tuning());
        Self { held, tuning }
    }

    /// Returns the current weight.
    pub fn weight(&self) -> f64 {
        self.held.utility.weight()
    }

    /// Returns the number of saved checkpoints.
    #[cfg(test)]
    pub fn checkpoints(&self) -> usize {
        self.held.saved as usize
    }

    /// Returns the points at which a chain can be resumed, in blocks from the chain's beginning, ascending.
    pub fn resumable(&self, chain: &[PrefixHash]) -> Vec<usize> {
        self.held.resumable(chain).collect()
    }
}

impl Held {
    fn resumable(&self, chain: &[PrefixHash]) -> impl Iterator<Item = usize> {
        let ends = self.tree.walk(chain).zip(1..);
        ends.filter(|(slot, _)| self.checkpoint(*slot).is_some())
            .map(|(_, blocks)| blocks)
    }

    fn cached(&self, chain: &[PrefixHash]) -> Tokens {
        let blocks = self.resumable(chain).last().unwrap_or(0);
        Tokens(blocks as u64 * self.config.block())
    }

    fn used(&self) -> Tokens {
        let states = self.saved * self.utility.state_tokens().0;
        Tokens(self.tree.len() as u64 * self.config.block() + states)
    }

    fn checkpoint(&self, slot: SlotId) -> Option<Standing> {
        let Checkpoint { worth, served } = self.checkpoints.get(slot as usize).copied().flatten()?;
        let rank = Rank::of(self.utility.score(worth));
        Some((rank, served, Reverse(self.tree.depth(slot))))
    }

    /// Saves or renews the checkpoint at this block's end.
    fn touch(&mut self, slot: SlotId) {
        self.delist(slot);
        let length = Tokens((u64::from(self.tree.depth(slot)) + 1) * self.config.block());
        let checkpoint = Checkpoint {
            worth: self.utility.of(length),
            served: self.served,
        };
        if self.checkpoints.len() <= slot as usize {
            self.checkpoints.resize(slot as usize + 1, None);
        }
        let before = self.checkpoints[slot as usize].replace(checkpoint);
        self.saved += u64::from(before.is_none());
        self.enlist(slot);
    }

    fn enlist(&mut self, slot: SlotId) {
        if let Some(standing) = self.checkpoint(slot).filter(|_| self.tree.children(slot) <= 1) {
            self.evictable.insert((standing, slot));
        }
    }

    fn delist(&mut self, slot: SlotId) {
        if let Some(standing) = self.checkpoint(slot) {
            self.evictable.remove(&(standing, slot));
        }
    }

    /// Evicts the least checkpoint, and the blocks that can only be resumed with it.
    fn evict(&mut self) -> bool {
        let Some((_, mut slot)) = self.evictable.pop_first() else {
            return false;
        };
        self.checkpoints[slot as usize] = None;
        self.saved -= 1;
        while self.tree.is_leaf(slot) {
            let Some(parent) = self.tree.prune(slot) else {
                return true;
            };
            if self.checkpoint(parent).is_some() {
                self.enlist(parent);
                return true;
            }
            slot = parent;
        }
        true
    }

    /// Serves a turn and returns whether anything was evicted.
    fn serve(&mut self, chain: &[PrefixHash], turn: &Served) -> bool {
        self.utility.learn(turn);
        self.served += 1;
        let mut path: Vec<SlotId> = self.tree.walk(chain).collect();
        let resumed = path
            .iter()
            .rfind(|slot| self.checkpoint(**slot).is_some())
            .copied();
        let leaves_at = path.last().copied();
        if let Some(slot) = leaves_at {
            // It may be about to branch.
            self.delist(slot);
        }
        self.tree.grow(&mut path, chain);
        // Each block once, where two of them coincide.
        let mut touched = [resumed, leaves_at, path.last().copied()];
        for at in 1..touched.len() {
            if touched[..at].contains(&touched[at]) {
                touched[at] = None;
            }
        }
        touched.into_iter().flatten().for_each(|slot| self.touch(slot));
        let fits = self.used() <= self.config.capacity;
        while self.used() > self.config.capacity && self.evict() {}
        !fits
    }
}

#[derive(Clone, Debug)]
struct ServedChain {
    chain: Box<[PrefixHash]>,
    turn: Served,
}

impl Tunable for Held {
    type Record = ServedChain;

    fn reweigh(&mut self, weight: f64) {
        self.utility.set_weight(weight);
        let slots = std::mem::take(&mut self.evictable).into_iter();
        self.evictable = slots
            .filter_map(|(_, slot)| Some((self.checkpoint(slot)?, slot)))
            .collect();
    }

    fn replay(&mut self, record: &ServedChain) -> u64 {
        let saved = self.cached(&record.chain).0;
        self.serve(&record.chain, &record.turn);
        saved
    }
}

impl BlockPolicy for HybridBlocks {
    fn cached(&self, chain: &[PrefixHash]) -> Tokens {
        self.held.cached(chain)
    }

    fn served(&mut self, chain: &[PrefixHash], turn: &Served) {
        let evicted = self.held.serve(chain, turn);
        let record = || {
            let served = ServedChain {
                chain: Box::from(chain),
                turn: *turn,
            };
            (served, chain.len())
        };
        self.tuning.served(&mut self.held, evicted, record);
    }

    fn used(&self) -> Tokens {
        self.held.used()
    }

    fn dump(&self) -> Vec<PrefixHash> {
        self.held.tree.slots().map(|(hash, _)| hash).collect()
    }

    fn check(&self) -> Result<(), String> {
        self.held.check()
    }
}

impl Held {
    fn check(&self) -> Result<(), String> {
        self.tree.check()?;
        if self.used() > self.config.capacity {
            return Err(format!("{} tokens in {}", self.used(), self.config.capacity));
        }
        let (mut saved, mut evictable) = (0, 0);
        for (hash, slot) in self.tree.slots() {
            let (children, checkpoint) = (self.tree.children(slot), self.checkpoint(slot));
            if children != 1 && checkpoint.is_none() {
                return Err(format!("block {} has {children} branches and no state", hash.0));
            }
            saved += u64::from(checkpoint.is_some());
            if let Some(standing) = checkpoint.filter(|_| children <= 1) {
                evictable += 1;
                if !self.evictable.contains(&(standing, slot)) {
                    return Err(format!("the state after block {} is not listed", hash.0));
                }
            }
        }
        if (saved, evictable) == (self.saved, self.evictable.len()) {
            Ok(())
        } else {
            Err(format!(
                "{saved} states, {} counted; {evictable} evictable, {} listed",
                self.saved,
                self.evictable.len()
            ))
        }
    }
}

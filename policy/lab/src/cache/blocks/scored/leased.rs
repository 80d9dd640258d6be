//! Scored blocks that running sequences hold: what a worker of a fleet caches under a policy that ranks.
//!
//! A sequence holds its prompt's blocks, adds its answer's blocks and releases all of them, as it does in
//! [`super::super::super::prefix`]. Held blocks are never evicted. A block is scored when it is released, and the free
//! leaf of the lowest score is evicted when a new block needs room. Caching is forced, since an engine computes into its cache.
//!
//! - *Sequences overlap.* The last release decides what a block is worth, and [`Used::times`] counts the holds.
//! - *Room that is not there cuts a sequence short*: it keeps the prefix that it holds.
//!
//! Scored by recency this does what [`PrefixCache`](policy::cache::PrefixCache) does, change by change,
//! however sequences overlap: a property test.

use std::cmp::Reverse;
use std::fmt;
use std::ops::Bound;

use super::super::super::CacheConfig;
use super::super::super::Served;
use super::super::super::ranked::Rank;
use super::super::BlockPolicy as _;
use super::super::scores::{ClassReuse, Frequency};
use super::super::tree::{SlotId, Tree};
use super::super::uses::Upcoming;
use super::{Key, Place, Score, ScoredBlocks, Used};
use policy::cache::Change;
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};

/// A running sequence's hold on its blocks. Dropping it without [`LeasedBlocks::release`] leaves them held.
#[derive(Debug)]
#[must_use = "a dropped lease leaves its blocks held"]
pub struct BlockLease {
    held: Vec<SlotId>,
    hit_tokens: u64,
    cut: bool,
    epoch: u64,
}

impl BlockLease {
    /// Leading tokens that were resident when the sequence began.
    #[must_use]
    pub fn hit_tokens(&self) -> Tokens {
        Tokens(self.hit_tokens)
    }
}

/// A cache of blocks that sequences hold while they run.
pub trait LeasedBlocks: fmt::Debug {
    /// A sequence begins: its resident prefix is held, and the rest is stored as far as there is room.
    fn acquire(&mut self, now: Millis, chain: &[PrefixHash], changes: &mut Vec<Change>) -> BlockLease;

    /// It grew by these blocks.
    fn extend(&mut self, lease: &mut BlockLease, grown: &[PrefixHash], changes: &mut Vec<Change>);

    /// It is complete: what it held is worth what the score says of this turn.
    fn release(&mut self, lease: BlockLease, turn: &Served);

    /// The turn at this position of the trace can no longer use resident blocks. Only hindsight policies use this.
    fn passed(&mut self, turn: u32);

    /// Removes every block, including held ones. Learned state is kept.
    fn clear(&mut self, changes: &mut Vec<Change>);

    /// Whether this block is resident, and with it every block before it.
    fn contains(&self, hash: PrefixHash) -> bool;

    /// Tokens resident.
    fn tokens(&self) -> Tokens;
}

/// Greedy-Dual-Frequency-Size; `attention` is the ratio of attention to linear cost.
#[must_use]
pub fn gdfs(config: CacheConfig, attention: f64) -> Box<dyn LeasedBlocks> {
    Box::new(ScoredBlocks::new(config, Frequency::new(attention)))
}

/// Workload-aware eviction.
#[must_use]
pub fn workload_aware(config: CacheConfig) -> Box<dyn LeasedBlocks> {
    Box::new(ScoredBlocks::new(config, ClassReuse::default()))
}

/// Belady's rule, or Tail-Optimized Belady's, by what the score says of each turn.
#[must_use]
pub fn hindsight(config: CacheConfig, score: Upcoming) -> Box<dyn LeasedBlocks> {
    Box::new(ScoredBlocks::new(config, score))
}

impl<S: Score> ScoredBlocks<S> {
    fn is_free_leaf(&self, slot: SlotId) -> bool {
        self.places[slot as usize].pins == 0 && self.tree.is_leaf(slot)
    }

    /// Puts a free leaf in its order, by its worth at this moment where that changes.
    fn list(&mut self, slot: SlotId) {
        let begin = Tokens(u64::from(self.tree.depth(slot)) * self.block());
        if let Some(value) = self.score.renewed(self.tree.hash(slot), begin) {
            self.places[slot as usize].value = value;
        }
        self.enlist(slot);
    }

    /// Makes room for one more block. `false` where everything left is held.
    fn make_room(&mut self, changes: &mut Vec<Change>) -> bool {
        while self.used().0 + self.block() > self.config.capacity.0 {
            let Some(victim) = self.victim() else {
                return false;
            };
            self.delist(victim);
            self.score.evicted(self.places[victim as usize].value);
            let hash = self.tree.hash(victim);
            changes.push(Change::Removed { hash });
            if let Some(parent) = self.tree.prune(victim)
                && self.is_free_leaf(parent)
            {
                self.list(parent);
            }
        }
        true
    }

    /// Stores a block below those held. The sequence holds it.
    fn store(&mut self, held: &[SlotId], hash: PrefixHash, changes: &mut Vec<Change>) -> SlotId {
        let slot = self.tree.push(held, hash);
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, Place::default());
        }
        self.places[slot as usize] = Place {
            times: 1,
            pins: 1,
            ..Place::default()
        };
        let parent = held.last().map(|parent| self.tree.hash(*parent));
        changes.push(Change::Stored { hash, parent });
        slot
    }

    fn hold(&mut self, slot: SlotId) {
        if self.is_free_leaf(slot) {
            self.delist(slot);
        }
        let place = &mut self.places[slot as usize];
        place.pins += 1;
        place.times = place.times.saturating_add(1);
    }

    /// The free leaves of this value.
    fn leaves_of(&self, value: f64) -> Vec<SlotId> {
        let rank = Rank::of(value);
        let first: Key = (rank, 0, Reverse(u32::MAX), 0);
        let last: Key = (rank, u64::MAX, Reverse(0), SlotId::MAX);
        let range = (Bound::Included(first), Bound::Included(last));
        let keys = self.leaves.iter().flat_map(|group| group.range(range));
        keys.map(|key| key.3).collect()
    }
}

impl<S: Score + fmt::Debug> LeasedBlocks for ScoredBlocks<S> {
    fn acquire(&mut self, now: Millis, chain: &[PrefixHash], changes: &mut Vec<Change>) -> BlockLease {
        self.score.now(now);
        let held: Vec<SlotId> = self.tree.walk(chain).collect();
        for &slot in &held {
            self.hold(slot);
        }
        let hits = held.len();
        let mut lease = BlockLease {
            hit_tokens: hits as u64 * self.block(),
            held,
            cut: false,
            epoch: self.epoch,
        };
        self.extend(&mut lease, &chain[hits..], changes);
        lease
    }

    fn extend(&mut self, lease: &mut BlockLease, grown: &[PrefixHash], changes: &mut Vec<Change>) {
        if lease.cut || lease.epoch != self.epoch {
            return;
        }
        for &hash in grown {
            match self.tree.find(hash) {
                // Another sequence grew the same way.
                Some(slot) if self.tree.parent(slot) == lease.held.last().copied() => {
                    self.hold(slot);
                    lease.held.push(slot);
                }
                None if self.make_room(changes) => {
                    let slot = self.store(&lease.held, hash, changes);
                    lease.held.push(slot);
                }
                // No room, or a name that stands for another prefix.
                _ => {
                    lease.cut = true;
                    return;
                }
            }
        }
    }

    fn release(&mut self, lease: BlockLease, turn: &Served) {
        self.score.now(turn.at);
        self.score.turn(turn);
        if lease.epoch != self.epoch {
            return;
        }
        self.served += 1;
        let (group, served, block) = (self.score.group(), self.served, self.block());
        for (at, &slot) in (0..).zip(&lease.held) {
            let Place { times, pins, .. } = self.places[slot as usize];
            let begin = Tokens(at * block);
            let end = Tokens(begin.0 + block);
            let value = self.score.value(Used { begin, end, times });
            self.places[slot as usize] = Place {
                group,
                value,
                served,
                times,
                pins: pins - 1,
            };
        }
        // Of the blocks that stand above others none is listed.
        if let Some(&leaf) = lease.held.last().filter(|slot| self.is_free_leaf(**slot)) {
            self.list(leaf);
        }
    }

    fn passed(&mut self, turn: u32) {
        for value in self.score.passed(turn) {
            for slot in self.leaves_of(value) {
                self.delist(slot);
                self.list(slot);
            }
        }
    }

    fn clear(&mut self, changes: &mut Vec<Change>) {
        self.tree = Tree::default();
        self.places.clear();
        self.leaves.clear();
        self.epoch += 1;
        changes.push(Change::Cleared);
    }

    fn contains(&self, hash: PrefixHash) -> bool {
        self.tree.find(hash).is_some()
    }

    fn tokens(&self) -> Tokens {
        self.used()
    }
}

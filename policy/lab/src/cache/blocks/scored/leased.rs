//! Scored blocks held by running sequences: the cache of a fleet's worker under a ranking policy.
//!
//! A sequence holds its prompt's blocks, adds its response's blocks and releases all of them, as in [`policy::cache`].
//! Held blocks are never evicted. A block is scored when it is released, and the lowest free leaf is evicted when a new
//! block needs room. Caching is forced, since an engine computes into its cache.
//! - *Sequences overlap.* The last release decides a block's value, and [`Used::times`] counts the holds.
//! - *Without room a sequence is cut short*: it keeps the prefix that it holds.
//!
//! Scored by recency this equals [`PrefixCache`](policy::cache::PrefixCache), change by change (a property test).

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
    /// Returns the leading tokens that were resident when the sequence began.
    pub fn hit_tokens(&self) -> Tokens {
        Tokens(self.hit_tokens)
    }
}

/// A cache of blocks that sequences hold while they run.
pub trait LeasedBlocks: fmt::Debug {
    /// Begins a sequence: holds its resident prefix, and stores the rest as far as there is room.
    fn acquire(&mut self, now: Millis, chain: &[PrefixHash], changes: &mut Vec<Change>) -> BlockLease;

    /// Adds the blocks by which a sequence grew.
    fn extend(&mut self, lease: &mut BlockLease, grown: &[PrefixHash], changes: &mut Vec<Change>);

    /// Ends a sequence: its blocks get the value of this turn.
    fn release(&mut self, lease: BlockLease, turn: &Served);

    /// Records that the turn at this position of the trace can no longer use resident blocks. Only hindsight policies
    /// use this.
    fn passed(&mut self, turn: u32);

    /// Removes every block, including held ones. Learned state is kept.
    fn clear(&mut self, changes: &mut Vec<Change>);

    /// Returns whether this block, and with it every block before it, is resident.
    fn contains(&self, hash: PrefixHash) -> bool;

    /// Returns the resident tokens.
    fn tokens(&self) -> Tokens;
}

/// Creates a cache under Greedy-Dual-Frequency-Size; `attention` is the ratio of attention to linear cost.
#[must_use]
pub fn gdfs(config: CacheConfig, attention: f64) -> Box<dyn LeasedBlocks> {
    Box::new(ScoredBlocks::new(config, Frequency::new(attention)))
}

/// Creates a cache under workload-aware eviction.
#[must_use]
pub fn workload_aware(config: CacheConfig) -> Box<dyn LeasedBlocks> {
    Box::new(ScoredBlocks::new(config, ClassReuse::default()))
}

/// Creates a cache under Belady's rule, or Tail-Optimized Belady's, depending on the score.
#[must_use]
pub fn hindsight(config: CacheConfig, score: Upcoming) -> Box<dyn LeasedBlocks> {
    Box::new(ScoredBlocks::new(config, score))
}

impl<S: Score> ScoredBlocks<S> {
    fn is_free_leaf(&self, slot: SlotId) -> bool {
        self.places[slot as usize].pins == 0 && self.tree.is_leaf(slot)
    }

    fn list(&mut self, slot: SlotId) {
        let begin = Tokens(u64::from(self.tree.depth(slot)) * self.config.block());
        if let Some(value) = self.score.renewed(self.tree.hash(slot), begin) {
            self.places[slot as usize].value = value;
        }
        self.enlist(slot);
    }

    /// Makes room for one more block. Returns `false` if everything left is held.
    fn make_room(&mut self, changes: &mut Vec<Change>) -> bool {
        while self.used().0 + self.config.block() > self.config.capacity.0 {
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

    /// Stores a block below those held, and holds it for the sequence.
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
            hit_tokens: hits as u64 * self.config.block(),
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
                Some(slot) if self.tree.parent(slot) == lease.held.last().copied() => {
                    self.hold(slot);
                    lease.held.push(slot);
                }
                None if self.make_room(changes) => {
                    let slot = self.store(&lease.held, hash, changes);
                    lease.held.push(slot);
                }
                // No room, or a name of another prefix.
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
        let (group, served, block) = (self.score.group(), self.served, self.config.block());
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
        // Only leaves are listed.
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

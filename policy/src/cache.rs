//! The block cache shared by simulated engines and the router's mirrors.
//!
//! An engine caches a prompt as a chain of blocks; block `i` is useful only while blocks `0..i` are resident. So this
//! cache is *prefix-closed*: a node is evicted only when it has no children. Pieces weigh tokens, not slots: an
//! engine's blocks all weigh `block_size`, a mirror's text chunks weigh their estimated tokens.
//!
//! Room is found in three bands, as in a vLLM scheduler with Tail-Optimized LRU: free space; then *evict-first* pieces,
//! marked as useless by a release or a hint, in the order of marking; then the least recently used, or another
//! [`Order`]. Within the last two a conversation is evicted from its end. Both are intrusive lists in a slab, and every
//! operation is O(1) per block. The order needs no clock: a released chain is appended leaf first, and touching a node
//! touches all its ancestors, so a parent always comes after its children. Three rules cover the details:
//!
//! - *The last release decides the mark, and a hit clears it.* A block that another lease still pins is not marked.
//! - *A marked node waits for its children.* It enters the evict-first band when its last unmarked or pinned child is
//!   marked or gone. `blockers` counts these children, so the wait has no cost.
//! - *Free space goes first.* Prepending marked blocks to one free list would use them before free space.
//!
//! Rejected: a heap by `last_access`, as in radix caches: O(log n) per block, and ties between a parent and its child.

mod lease;
mod listing;
mod order;
mod piece;
mod room;
mod slab;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

pub use self::lease::Lease;
pub use self::order::Order;
pub use self::piece::{Change, Entry, Keep, Piece, Standing, Trimmed};
use self::slab::{Band, NONE, Nodes};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// A token-weighted, prefix-closed cache of chained blocks. The order of eviction is in the module's documentation.
#[derive(Debug)]
pub struct PrefixCache {
    capacity: u64,
    used: u64,
    pinned: u64,
    nodes: Nodes,
    /// Number of clears, which invalidates leases from before the last one.
    epoch: u64,
}

impl PrefixCache {
    /// Creates an empty cache with room for `capacity` tokens.
    pub fn new(capacity: Tokens) -> Self {
        Self {
            capacity: capacity.0,
            used: 0,
            pinned: 0,
            nodes: Nodes::default(),
            epoch: 0,
        }
    }

    /// Returns an empty cache to replace this one. Leases of this one are void there.
    pub fn succeeded(&self, capacity: Tokens) -> Self {
        Self {
            epoch: self.epoch + 1,
            ..Self::new(capacity)
        }
    }

    /// Returns the eviction order of unmarked pieces.
    pub fn order(&self) -> Order {
        self.nodes.order()
    }

    /// Changes that order, effective for the next eviction.
    pub fn set_order(&mut self, order: Order) {
        self.nodes.set_order(order);
        self.debug_check();
    }

    /// Returns the capacity.
    pub fn capacity(&self) -> Tokens {
        Tokens(self.capacity)
    }

    /// Returns the resident tokens: at most the capacity, except while leases hold more than a reduced capacity.
    pub fn used(&self) -> Tokens {
        Tokens(self.used)
    }

    /// Returns the tokens held by leases, which cannot be evicted.
    pub fn pinned(&self) -> Tokens {
        Tokens(self.pinned)
    }

    /// Returns the tokens in the evict-first band.
    pub fn evict_first(&self) -> Tokens {
        Tokens(self.nodes.evict_first_tokens())
    }

    /// Returns the tokens that can be stored before anything unmarked is evicted.
    pub fn room(&self) -> Tokens {
        Tokens(self.capacity.saturating_sub(self.used) + self.nodes.evict_first_tokens())
    }

    /// Returns the number of resident pieces.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether nothing is resident.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 0
    }

    /// Returns whether this piece, and therefore every piece before it, is resident.
    pub fn contains(&self, hash: PrefixHash) -> bool {
        self.nodes.find(hash).is_some()
    }

    /// Returns how many leading pieces of `chain` are resident, without touching them.
    pub fn resident(&self, chain: &[PrefixHash]) -> usize {
        self.walk(chain.iter().copied()).count()
    }

    /// Returns how many leading pieces of `chain` have descendants of other chains.
    pub fn shared(&self, chain: &[PrefixHash]) -> usize {
        let own = self.resident(chain);
        let branches = |&(at, slot): &(usize, u32)| match at + 1 == own {
            true => !self.nodes.is_leaf(slot),
            false => self.nodes.is_fork(slot),
        };
        let forks = self.walk(chain.iter().copied()).enumerate().filter(branches);
        forks.last().map_or(0, |(at, _)| at + 1)
    }

    /// Returns the tokens of the resident leading pieces of `chain`, without touching them.
    pub fn resident_tokens(&self, chain: &[PrefixHash]) -> Tokens {
        Tokens(
            self.walk(chain.iter().copied())
                .map(|slot| u64::from(self.nodes.get(slot).tokens))
                .sum(),
        )
    }

    /// Pins `chain`: touches its resident prefix, which clears marks, and stores the rest, evicting as needed. If only
    /// pinned pieces are left to evict, [`Lease::is_cut`] is true. A resident piece keeps its weight.
    pub fn acquire(&mut self, chain: &[Piece], changes: &mut Vec<Change>) -> Lease {
        let mut lease = Lease {
            held: Vec::with_capacity(chain.len()),
            hits: 0,
            hit_tokens: 0,
            cut: false,
            epoch: self.epoch,
            releases: self.nodes.releases(),
        };
        lease.held.extend(self.walk(chain.iter().map(|piece| piece.hash)));
        lease.hits = lease.held.len();
        for &slot in &lease.held {
            lease.hit_tokens += u64::from(self.nodes.get(slot).tokens);
            self.pin(slot);
        }
        let missing = &chain[lease.hits..];
        self.extend(&mut lease, missing, changes);
        lease
    }

    /// Adds the pieces by which a running sequence grew. Returns how many were added.
    pub fn extend(&mut self, lease: &mut Lease, pieces: &[Piece], changes: &mut Vec<Change>) -> usize {
        if lease.epoch != self.epoch || lease.cut {
            lease.cut = true;
            return 0;
        }
        let before = lease.held.len();
        for piece in pieces {
            let parent = lease.held.last().copied().unwrap_or(NONE);
            match self.nodes.find(piece.hash) {
                Some(slot) if self.nodes.get(slot).parent == parent => {
                    self.pin(slot);
                    lease.held.push(slot);
                }
                None if self.make_room(u64::from(piece.tokens), changes) => {
                    let slot = self.store(*piece, parent, changes);
                    lease.held.push(slot);
                }
                // No room, or a hash that names another prefix: a collision, or a chain that repeats itself.
                _ => {
                    lease.cut = true;
                    break;
                }
            }
        }
        self.debug_check();
        lease.held.len() - before
    }

    /// Releases what a lease holds past its piece `to` (`None`: everything) and drops the part that no other lease
    /// holds, with its descendants. Does nothing if `to` is not held.
    pub fn rewind(&mut self, lease: &mut Lease, to: Option<PrefixHash>, changes: &mut Vec<Change>) {
        let held = |hash: PrefixHash| {
            let slot = self.nodes.find(hash)?;
            Some(1 + lease.held.iter().rposition(|&held| held == slot)?)
        };
        let Some(keep) = to.map_or(Some(0), held).filter(|_| lease.epoch == self.epoch) else {
            return;
        };
        while lease.held.len() > keep
            && let Some(slot) = lease.held.pop()
        {
            let (hash, tokens) = (self.nodes.get(slot).hash, u64::from(self.nodes.get(slot).tokens));
            if self.nodes.unpin(slot, false) {
                self.pinned -= tokens;
                self.remove(hash, changes);
            }
        }
        self.debug_check();
    }

    /// Replaces the estimated weights of what a sequence holds, and evicts other pieces that no longer fit.
    pub fn reweigh(&mut self, lease: &Lease, pieces: &[Piece], changes: &mut Vec<Change>) {
        if lease.epoch != self.epoch {
            return;
        }
        for (&slot, piece) in lease.held.iter().zip(pieces) {
            let node = self.nodes.get(slot);
            debug_assert_eq!(node.hash, piece.hash, "another chain's weights");
            let (was, is) = (u64::from(node.tokens), u64::from(piece.tokens));
            self.used = self.used - was + is;
            self.pinned = self.pinned - was + is;
            self.nodes.reweigh(slot, piece.tokens);
        }
        self.shrink(changes);
        self.debug_check();
    }

    /// Releases a sequence's blocks, deepest first, to the evict-first band past `keep`, else to the LRU band.
    pub fn release(&mut self, lease: Lease, keep: Keep, changes: &mut Vec<Change>) {
        if lease.epoch != self.epoch {
            return;
        }
        let mut end: u64 = lease
            .held
            .iter()
            .map(|&slot| u64::from(self.nodes.get(slot).tokens))
            .sum();
        self.nodes.begin_release();
        for &slot in lease.held.iter().rev() {
            let tokens = u64::from(self.nodes.get(slot).tokens);
            end -= tokens;
            let mark = match keep {
                Keep::All => false,
                Keep::First(budget) => end >= budget.0,
            };
            self.nodes.mark_computed(slot);
            if self.nodes.unpin(slot, mark) {
                self.pinned -= tokens;
                if matches!(keep, Keep::First(budget) if (end + 1..end + tokens).contains(&budget.0)) {
                    self.nodes.mark_in_part(slot);
                }
            }
        }
        self.shrink(changes);
        self.debug_check();
    }

    /// Releases a sequence that never ran, and drops what no other sequence holds or has released.
    pub fn withdraw(&mut self, lease: Lease, changes: &mut Vec<Change>) {
        if lease.epoch != self.epoch {
            return;
        }
        self.nodes.begin_release();
        for &slot in lease.held.iter().rev() {
            if !self.nodes.unpin(slot, false) {
                continue;
            }
            self.pinned -= u64::from(self.nodes.get(slot).tokens);
            // No child remains: children have been released with this one, or are held, and then so is this.
            if !self.nodes.get(slot).ran {
                self.drop_node(slot, changes);
            }
        }
        self.shrink(changes);
        self.debug_check();
    }

    /// Touches and stores `chain` without holding it: acquire and release in one. Returns how many pieces are resident.
    pub fn insert(&mut self, chain: &[Piece], keep: Keep, changes: &mut Vec<Change>) -> usize {
        let lease = self.acquire(chain, changes);
        let held = lease.len();
        self.release(lease, keep, changes);
        held
    }

    /// Marks resident, unpinned pieces evict-first, each to go after its descendants. Returns how many were marked.
    pub fn mark_evict_first(&mut self, tail: impl IntoIterator<Item = PrefixHash>) -> usize {
        let mut marked = 0;
        for hash in tail {
            if let Some(slot) = self.nodes.find(hash) {
                marked += usize::from(self.nodes.mark(slot));
            }
        }
        self.debug_check();
        marked
    }

    /// Marks a piece and its ancestors evict-first, except for what begins within the first `keep` tokens. `hash`
    /// should be the last unmarked piece, since none is evicted before its descendants. `None` if it is not resident.
    pub fn trim(&mut self, hash: PrefixHash, keep: Tokens) -> Option<Trimmed> {
        let tip = self.nodes.find(hash)?;
        let above = |slot: u32| Some(self.nodes.get(slot).parent).filter(|&parent| parent != NONE);
        let chain = std::iter::successors(Some(tip), |&slot| above(slot));
        let mut end: u64 = chain.map(|slot| u64::from(self.nodes.get(slot).tokens)).sum();
        let mut trimmed = Trimmed {
            pieces: 0,
            keep: Tokens::ZERO,
            end: None,
        };
        let mut slot = tip;
        while slot != NONE {
            let node = self.nodes.get(slot);
            let (begin, parent) = (end - u64::from(node.tokens), node.parent);
            if begin < keep.0 {
                trimmed.keep = Tokens(end);
                trimmed.end = Some(node.hash);
                break;
            }
            end = begin;
            trimmed.pieces += usize::from(self.nodes.mark(slot));
            slot = parent;
        }
        self.debug_check();
        Some(trimmed)
    }

    /// Drops a piece and all its descendants, except what leases hold. Returns how many pieces were dropped.
    pub fn remove(&mut self, hash: PrefixHash, changes: &mut Vec<Change>) -> usize {
        let Some(top) = self.nodes.find(hash) else {
            return 0;
        };
        let below = self.nodes.subtree(top);
        let mut removed = 0;
        // Deepest first; a pinned node's ancestors are pinned, so the rest stays prefix-closed.
        for &slot in below.iter().rev() {
            if self.nodes.get(slot).pins == 0 {
                self.drop_node(slot, changes);
                removed += 1;
            }
        }
        self.debug_check();
        removed
    }

    /// Corrects the cache after a worker lacked this piece when it was requested, and so all its descendants.
    pub fn stored_again(&mut self, hash: PrefixHash, changes: &mut Vec<Change>) {
        let Some(top) = self.nodes.find(hash) else {
            return;
        };
        self.remove(hash, changes);
        // The piece is gone if no lease holds it.
        if self.nodes.find(hash) == Some(top) {
            self.nodes.begin_anew(top);
        }
        self.debug_check();
    }

    /// Corrects the cache after a worker lacked this chain when it was requested. As the worker computes it anew, its
    /// held pieces count as last released at the next release, even while other leases hold them.
    pub fn computed_anew(&mut self, chain: &[PrefixHash]) {
        let slots: Vec<u32> = self.walk(chain.iter().copied()).collect();
        for slot in slots {
            self.nodes.computed_anew(slot);
        }
    }

    /// Returns the number of releases so far.
    pub fn releases(&self) -> u64 {
        self.nodes.releases()
    }

    /// Returns the number of releases before a lease was acquired, as in [`Standing::released`]; 0 if the lease is void.
    pub fn acquired(&self, lease: &Lease) -> u64 {
        if lease.epoch == self.epoch {
            lease.releases
        } else {
            0
        }
    }

    /// Returns a resident piece's position in the order of eviction, or its last one if it is held now.
    pub fn standing(&self, hash: PrefixHash) -> Option<Standing> {
        let slot = self.nodes.find(hash)?;
        Some(Standing {
            released: self.nodes.released(slot),
            marked: Some(self.nodes.entered(slot)).filter(|&entered| entered > 0),
        })
    }

    /// Drops what must have been evicted before a piece of this position: for an unmarked one, everything released
    /// before it; for a marked one, only what was also marked before it. Returns how many pieces were dropped.
    pub fn drop_older(&mut self, than: Standing, changes: &mut Vec<Change>) -> usize {
        // A release includes the ancestors, so the LRU band is in the order of releases.
        let is_old = |slot: &u32| self.nodes.released(*slot) < than.released;
        let went_first = |slot: &u32| {
            than.marked
                .is_none_or(|marked| self.nodes.entered(*slot) < marked)
        };
        let marked = self.nodes.in_band(Band::EvictFirst);
        let mut old: Vec<u32> = marked.filter(is_old).filter(went_first).collect();
        if than.marked.is_none() {
            old.extend(self.nodes.in_band(Band::Lru).take_while(is_old));
        }
        for &slot in &old {
            self.drop_node(slot, changes);
        }
        self.debug_check();
        old.len()
    }

    /// Drops everything, held pieces included, as for a restarted worker. Earlier leases are void.
    pub fn clear(&mut self, changes: &mut Vec<Change>) {
        self.nodes = Nodes::ordered(self.nodes.order());
        self.used = 0;
        self.pinned = 0;
        self.epoch += 1;
        changes.push(Change::Cleared);
    }

    /// Changes the capacity and evicts what no longer fits. Held pieces are evicted when released.
    pub fn set_capacity(&mut self, capacity: Tokens, changes: &mut Vec<Change>) {
        self.capacity = capacity.0;
        self.shrink(changes);
        self.debug_check();
    }

    fn walk(&self, chain: impl Iterator<Item = PrefixHash>) -> impl Iterator<Item = u32> {
        let mut parent = NONE;
        chain.map_while(move |hash| {
            let slot = self.nodes.find(hash)?;
            let linked = self.nodes.get(slot).parent == parent;
            parent = slot;
            linked.then_some(slot)
        })
    }

    fn pin(&mut self, slot: u32) {
        if self.nodes.pin(slot) {
            self.pinned += u64::from(self.nodes.get(slot).tokens);
        }
    }

    fn store(&mut self, piece: Piece, parent: u32, changes: &mut Vec<Change>) -> u32 {
        let slot = self.nodes.insert_pinned(piece.hash, piece.tokens, parent);
        self.used += u64::from(piece.tokens);
        self.pinned += u64::from(piece.tokens);
        let parent = (parent != NONE).then(|| self.nodes.get(parent).hash);
        changes.push(Change::Stored {
            hash: piece.hash,
            parent,
        });
        slot
    }

    /// Whole-cache checks are quadratic over a run, so a debug build makes them only while the cache is small.
    fn debug_check(&self) {
        debug_assert!(
            self.len() > 64 || self.invariants().is_ok(),
            "{:?}",
            self.invariants()
        );
    }
}

//! Which prefixes are resident on which worker: the index, and one mirror per worker that keeps it correct.
//!
//! Most workers do not report evictions. So each has a *mirror*: a cache of its real capacity that replays what was
//! sent to it. What the mirror evicts leaves the index. In experiments a mirror of the true capacity came within 1-2 %
//! of exact; one four times too small cost up to 44 %. A request in flight counts as resident on its worker, and its
//! pieces are pinned in the mirror, so that the next turn of the same burst is not sent elsewhere.

mod capacity;
mod mirror;
mod resets;
mod unhinted;

pub use self::capacity::MOST as MOST_TOKENS;
use self::mirror::Mirror;
pub use self::mirror::{Corrected, Report};
pub use self::unhinted::Compared;
use crate::cache::{Change, Entry, Keep, Lease, Order, Piece, Trimmed};
use crate::fingerprint::Chain;
use crate::ids::{PrefixHash, WorkerId};
use crate::index::{Index, IndexLimits, IndexReader, IndexStats, Prefix, Reach, StoreError};
use crate::units::Tokens;

/// Upper bound on the unused remainder of a full cache: one piece of the largest size, or several of the usual size.
const LEFT_OVER: Tokens = Tokens(1024);

/// The index and the mirrors of all workers.
#[derive(Debug)]
pub struct Residency {
    index: Index,
    mirrors: Vec<Mirror>,
    changes: Vec<Change>,
    gone: Vec<PrefixHash>,
    refused: Refused,
}

/// Chains that the mirrors hold and the index refused. Lookups underestimate these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Chains whose parent the index had evicted.
    pub unknown_parents: u64,
    /// Chains with a key that already names another prefix: two prompts collide.
    pub conflicts: u64,
    /// Chains too long for the index, and all other errors.
    pub too_long: u64,
    /// The most recent error.
    pub last: Option<StoreError>,
}

impl Refused {
    /// Returns the total number of refused chains.
    pub fn count(&self) -> u64 {
        self.unknown_parents + self.conflicts + self.too_long
    }

    fn add(&mut self, error: StoreError) {
        let count = match error {
            StoreError::UnknownParent { .. } => &mut self.unknown_parents,
            StoreError::Conflict { .. } => &mut self.conflicts,
            StoreError::TooLong { .. } | StoreError::NoSuchWorker { .. } => &mut self.too_long,
        };
        *count += 1;
        self.last = Some(error);
    }
}

/// A request's lease on the mirror of its worker.
#[derive(Debug)]
#[must_use = "give it back with settle or retract"]
pub struct Reservation {
    worker: WorkerId,
    lease: Lease,
    /// The prompt's last key, if all keys are held.
    last: Option<PrefixHash>,
    compared: Option<Compared>,
}

impl Reservation {
    /// Returns the prompt tokens cached with hints and under LRU. `None` if the worker was never sent a hint.
    pub fn compared(&self) -> Option<Compared> {
        self.compared
    }
}

/// The response to a prompt, as a chain.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The prompt's key that the response extends; `None` for the prompt's beginning. In a plain prompt it is not the
    /// last, short key: the response's first key covers that key's text.
    pub parent: Option<PrefixHash>,
    /// The response's keys.
    pub chain: &'a Chain,
    /// Where the parent ends, in the chain's unit.
    pub before: u64,
    /// Whether the last key ends within a chunk that the next turn continues under another key.
    pub open: bool,
}

impl Reply<'_> {
    /// Returns the open chunk's key and the key before it, which the next turn repeats.
    fn open_end(&self) -> Option<(PrefixHash, PrefixHash)> {
        let keys = self.chain.hashes();
        let (&end, before) = keys.split_last().filter(|_| self.open)?;
        Some((before.last().copied().or(self.parent)?, end))
    }
}

impl Residency {
    /// Creates an empty state for workers of these capacities, in slot order.
    pub fn new(limits: IndexLimits, capacities: &[Tokens]) -> Self {
        Self {
            index: Index::new(limits),
            mirrors: capacities.iter().map(|&capacity| Mirror::new(capacity)).collect(),
            changes: Vec::new(),
            gone: Vec::new(),
            refused: Refused::default(),
        }
    }

    /// Admits a worker of this capacity to a slot, which must be the next free one or have nothing in flight.
    pub fn admit(&mut self, worker: WorkerId, capacity: Tokens) {
        self.forget(worker);
        if self.mirrors.len() <= worker.index() {
            self.mirrors
                .resize_with(worker.index() + 1, || Mirror::new(Tokens::ZERO));
        }
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            *mirror = mirror.succeeded(capacity);
        }
    }

    /// Returns the capacity of a worker's mirror.
    pub fn capacity_of(&self, worker: WorkerId) -> Tokens {
        self.mirrors
            .get(worker.index())
            .map_or(Tokens::ZERO, |mirror| mirror.cache.capacity())
    }

    /// Returns whether a worker's capacity is learned from its responses.
    pub fn learns_capacity(&self, worker: WorkerId) -> bool {
        self.mirrors
            .get(worker.index())
            .is_some_and(Mirror::learns_capacity)
    }

    /// Starts learning a worker's capacity from its responses, where neither configuration nor worker states it.
    pub fn learn_capacity(&mut self, worker: WorkerId) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.learn_capacity();
        }
    }

    /// Sets the capacity that a worker reported. Pieces that no longer fit are evicted.
    pub fn set_reported_capacity(&mut self, worker: WorkerId, capacity: Tokens) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.set_reported_capacity(capacity, &mut self.changes);
            self.apply(worker, None, &[]);
        }
    }

    /// Sets the capacity that an earlier process learned, where it is still learned and no more than a mirror may hold.
    /// Returns whether it is in force.
    pub fn restore_capacity(&mut self, worker: WorkerId, learned: Tokens) -> bool {
        let mirror = self.mirrors.get_mut(worker.index());
        let Some(mirror) = mirror.filter(|mirror| mirror.learns_capacity()) else {
            return false;
        };
        let is_possible = learned > Tokens::ZERO && learned <= MOST_TOKENS;
        if is_possible {
            mirror.cache.set_capacity(learned, &mut self.changes);
            self.apply(worker, None, &[]);
        }
        is_possible
    }

    /// Records that a worker found more of a prompt than its mirror holds.
    pub fn found_more(&mut self, worker: WorkerId) {
        let is_full = self.filled_on(worker) >= self.capacity_of(worker);
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.found_more(is_full);
        }
    }

    /// Sets the eviction order of a worker's unmarked pieces. The default is LRU.
    pub fn set_order(&mut self, worker: WorkerId, order: Order) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.cache.set_order(order);
        }
    }

    /// Returns a handle for lookups by other threads. Lookups take no lock and never wait for writes.
    pub fn reader(&self) -> IndexReader {
        self.index.reader()
    }

    /// Writes to `reach` how many leading keys of the chain each worker holds.
    pub fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        self.index.lookup(chain, reach);
    }

    /// Returns the tokens that a worker can store before it evicts anything unmarked.
    pub fn room_on(&self, worker: WorkerId) -> Tokens {
        let mirror = self.mirrors.get(worker.index());
        mirror.map_or(Tokens::ZERO, |mirror| mirror.cache.room())
    }

    /// Returns the tokens believed resident on a worker.
    pub fn tokens_on(&self, worker: WorkerId) -> Tokens {
        self.mirrors
            .get(worker.index())
            .map_or(Tokens::ZERO, |mirror| mirror.cache.used())
    }

    /// Returns the resident tokens for comparison between workers: a full cache counts as its capacity. Without
    /// rounding, the worker with the largest random remainder would attract many turns in a row.
    pub fn filled_on(&self, worker: WorkerId) -> Tokens {
        let Some(mirror) = self.mirrors.get(worker.index()) else {
            return Tokens::ZERO;
        };
        let (used, capacity) = (mirror.cache.used(), mirror.cache.capacity());
        if used + LEFT_OVER.min(Tokens(capacity.0 / 64)) > capacity {
            used.max(capacity)
        } else {
            used
        }
    }

    /// Returns the chains that the index refused.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// Returns the ends of the most recently used prefixes; see [`Index::newest`].
    pub fn newest(&self, most: usize, worker: Option<WorkerId>, copies: usize) -> (Vec<Prefix>, bool) {
        self.index.newest(most, worker, copies)
    }

    /// Returns the tokens up to and including a key, on a worker believed to hold it.
    pub fn tokens_up_to(&self, worker: WorkerId, key: PrefixHash) -> Option<Tokens> {
        self.mirrors.get(worker.index())?.cache.tokens_up_to(key)
    }

    /// Returns the index's statistics.
    pub fn stats(&self) -> IndexStats {
        self.index.stats()
    }

    /// Records a prompt sent to a worker. `tokens` maps chain ends to token offsets. `None` for an unknown worker.
    pub fn sent(
        &mut self,
        worker: WorkerId,
        chain: &Chain,
        tokens: impl Fn(u64) -> u64,
    ) -> Option<Reservation> {
        let pieces = pieces(chain, 0, tokens);
        let mirror = self.mirrors.get_mut(worker.index())?;
        mirror.goes_on(chain.hashes(), &mut self.changes);
        let lease = mirror.cache.acquire(&pieces, &mut self.changes);
        let compared = mirror.compare(&pieces, lease.hits());
        let held = &chain.hashes()[..lease.len()];
        self.apply(worker, None, held);
        let last = chain.last().filter(|_| held.len() == chain.len());
        Some(Reservation {
            worker,
            lease,
            last,
            compared,
        })
    }

    /// Records a complete response. The last `evict_first` of the conversation's `total` tokens may be evicted first.
    pub fn settle(
        &mut self,
        mut hold: Reservation,
        reply: Option<Reply<'_>>,
        tokens: impl Fn(u64) -> u64,
        evict_first: Tokens,
        total: Tokens,
    ) {
        let worker = hold.worker;
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return;
        };
        let mut open = None;
        if let Some(reply) = reply {
            let keys = reply.chain.hashes();
            let pieces = pieces(reply.chain, reply.before, tokens);
            mirror
                .cache
                .rewind(&mut hold.lease, reply.parent, &mut self.changes);
            let added = mirror.cache.extend(&mut hold.lease, &pieces, &mut self.changes);
            open = reply.open_end().filter(|_| added == keys.len());
            self.apply(worker, reply.parent, &keys[..added]);
            if let (Some(last), Some(&first)) = (hold.last, keys[..added].first())
                && reply.parent != Some(last)
                && first != last
            {
                self.begins(worker, first, reply.parent, last);
            }
        }
        let keep = if evict_first == Tokens::ZERO {
            Keep::All
        } else {
            Keep::First(total.saturating_sub(evict_first))
        };
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.settle(hold.lease, keep, &mut self.changes);
            if let Some((parent, end)) = open {
                mirror.ends_open(parent, end);
            }
        }
        self.apply(worker, None, &[]);
    }

    /// Replaces the estimated weights of a held prompt by the worker's token count.
    pub fn counted(&mut self, hold: &Reservation, chain: &Chain, tokens: impl Fn(u64) -> u64) {
        if let Some(mirror) = self.mirrors.get_mut(hold.worker.index()) {
            let pieces = pieces(chain, 0, tokens);
            mirror.cache.reweigh(&hold.lease, &pieces, &mut self.changes);
            self.apply(hold.worker, None, &[]);
        }
    }

    /// Withdraws a request that never reached the worker, with the pieces that only it would have stored.
    pub fn retract(&mut self, hold: Reservation) {
        let Reservation { worker, lease, .. } = hold;
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return;
        };
        mirror.cache.withdraw(lease, &mut self.changes);
        self.apply(worker, None, &[]);
    }

    /// Applies a worker's report on a prompt that is not settled yet.
    pub fn reported(&mut self, hold: &Reservation, report: &Report<'_>) -> Corrected {
        let Some(mirror) = self.mirrors.get_mut(hold.worker.index()) else {
            return Corrected::default();
        };
        let sent = mirror.cache.acquired(&hold.lease);
        let corrected = mirror.reported(report, sent, &mut self.changes);
        self.apply(hold.worker, None, &[]);
        corrected
    }

    /// Marks a chain evict-first, after a hint to the worker that it is of no more use.
    pub fn released(&mut self, worker: WorkerId, chain: &[PrefixHash]) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.follow_unhinted();
            mirror.cache.mark_evict_first(chain.iter().rev().copied());
        }
    }

    /// Returns the tokens that the worker would evict before any other.
    #[must_use]
    pub fn evict_first_on(&self, worker: WorkerId) -> Tokens {
        self.mirrors
            .get(worker.index())
            .map_or(Tokens::ZERO, |mirror| mirror.cache.evict_first())
    }

    /// Returns how many leading keys of a conversation lead to other conversations on the worker too.
    #[must_use]
    pub fn shared(&self, worker: WorkerId, chain: &[PrefixHash]) -> usize {
        self.mirrors
            .get(worker.index())
            .map_or(0, |mirror| mirror.cache.shared(chain))
    }

    /// Marks the end of a conversation evict-first past its first `keep` tokens, and returns what the hint to the
    /// worker should name. `keys` are some of its keys, last first. `None` if no key is resident.
    pub fn trimmed(
        &mut self,
        worker: WorkerId,
        keys: impl IntoIterator<Item = PrefixHash>,
        keep: Tokens,
    ) -> Option<Trimmed> {
        let mirror = self.mirrors.get_mut(worker.index())?;
        let end = keys.into_iter().find(|key| mirror.cache.contains(*key))?;
        mirror.follow_unhinted();
        mirror.cache.trim(end, keep)
    }

    /// Refreshes and unmarks a prefix, after a hint to the worker that many conversations share it.
    pub fn protected(&mut self, worker: WorkerId, keys: &[PrefixHash]) {
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return;
        };
        // Resident pieces keep their weight, so none is given here.
        let piece = |&hash: &PrefixHash| Piece { hash, tokens: 0 };
        let held: Vec<Piece> = keys[..mirror.cache.resident(keys)].iter().map(piece).collect();
        mirror.cache.insert(&held, Keep::All, &mut self.changes);
        self.apply(worker, None, &[]);
    }

    /// Drops everything but what is in flight: the worker cleared its cache while it was idle.
    pub fn cleared(&mut self, worker: WorkerId) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.cleared(&mut self.changes);
            self.apply(worker, None, &[]);
        }
    }

    /// Drops everything believed resident on a worker.
    pub fn forget(&mut self, worker: WorkerId) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.forget(&mut self.changes);
            self.apply(worker, None, &[]);
        }
    }

    /// Returns the resident entries for a snapshot; see [`crate::cache::PrefixCache::entries`].
    pub fn entries(&self, worker: WorkerId) -> Vec<Entry> {
        self.mirrors
            .get(worker.index())
            .map_or_else(Vec::new, |mirror| mirror.cache.entries())
    }

    /// Restores one of the [`chains`] of a snapshot as most recently used.
    pub fn restore(&mut self, worker: WorkerId, chain: &[Piece]) {
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return;
        };
        // A snapshot may contain zero weights.
        let weighed = |&Piece { hash, tokens }: &Piece| Piece {
            hash,
            tokens: tokens.max(1),
        };
        let chain: Vec<Piece> = chain.iter().map(weighed).collect();
        let lease = mirror.cache.acquire(&chain, &mut self.changes);
        let held: Vec<PrefixHash> = chain[..lease.len()].iter().map(|piece| piece.hash).collect();
        mirror.cache.release(lease, Keep::All, &mut self.changes);
        self.apply(worker, None, &held);
    }

    /// Lets the index answer for the prompt's last, short key as long as the response's first piece is resident.
    fn begins(&mut self, worker: WorkerId, first: PrefixHash, parent: Option<PrefixHash>, short: PrefixHash) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            if let Some(before) = mirror.begins(first, short) {
                self.index.remove(worker, before);
            }
            self.apply(worker, parent, &[short]);
        }
    }

    /// Applies the mirror's changes to the index: removals first, then the keys now held. The index never holds more.
    fn apply(&mut self, worker: WorkerId, parent: Option<PrefixHash>, held: &[PrefixHash]) {
        for change in self.changes.drain(..) {
            match change {
                Change::Removed { hash } => {
                    self.gone.push(hash);
                    let mirror = self.mirrors.get_mut(worker.index());
                    self.gone.extend(mirror.and_then(|mirror| mirror.left(hash)));
                }
                Change::Cleared => {
                    self.gone.clear();
                    self.index.forget(worker);
                }
                Change::Stored { .. } => {}
            }
        }
        self.index.remove_all(worker, &self.gone);
        self.gone.clear();
        if !held.is_empty() {
            // The index then holds less than the mirror, which is allowed and should be rare.
            if let Err(error) = self.index.store_after(worker, parent, held) {
                self.refused.add(error);
            }
        }
    }
}

/// Returns the chains that rebuild a cache with these entries, last uses included, when restored in this order.
pub fn chains(entries: &[Entry]) -> impl Iterator<Item = Vec<Piece>> {
    let path = |from: usize| {
        let mut chain = vec![entries[from].piece];
        let mut at = from;
        // Parents come later, so the loop ends on any input.
        while let Some(parent) = entries[at].parent.map(|parent| parent as usize)
            && parent > at
            && parent < entries.len()
        {
            chain.push(entries[parent].piece);
            at = parent;
        }
        chain.reverse();
        chain
    };
    let stands_alone = |&at: &usize| at == 0 || entries[at - 1].parent != Some(at as u32);
    (0..entries.len()).filter(stands_alone).map(path)
}

/// Returns the chain's keys with their weights. `before` is the chain's start in its own unit (bytes or tokens). Each
/// piece weighs at least one token, which bounds a mirror's pieces; the next piece is lighter by that much.
fn pieces(chain: &Chain, before: u64, tokens: impl Fn(u64) -> u64) -> Vec<Piece> {
    let mut start = tokens(before);
    let weigh = |(&hash, &end): (&PrefixHash, &u64)| {
        let from = start;
        start = tokens(end).max(from.saturating_add(1));
        Piece {
            hash,
            tokens: u32::try_from(start - from).unwrap_or(u32::MAX),
        }
    };
    chain.hashes().iter().zip(chain.ends()).map(weigh).collect()
}

#[cfg(test)]
mod tests;

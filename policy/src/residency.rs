//! What lives where: the index, and one mirror per worker that keeps it true.
//!
//! A worker does not say what it evicts (unless it publishes events). So each worker has a *mirror*: a cache of its
//! real capacity, which drops what the worker was told to drop, or trims by itself, and then goes by the worker's own
//! [`Order`], to which everything is done that was done to the worker. What the mirror evicts leaves the index. A mirror of the true capacity was
//! within 1-2 % of exact in experiments; one four times too small cost up to 44 %.
//!
//! A request in flight counts as resident where it was sent: it is, or soon will be, and the next turn of the same
//! burst must not be sent elsewhere. Its pieces are pinned in the mirror as they are in the engine.

mod capacity;
mod mirror;
mod untold;

pub use self::capacity::MOST as MOST_TOKENS;
use self::mirror::Mirror;
pub use self::mirror::Report;
pub use self::untold::Compared;
use crate::cache::{Change, Entry, Keep, Lease, Order, Piece, Trimmed};
use crate::fingerprint::Chain;
use crate::ids::{PrefixHash, WorkerId};
use crate::index::{Index, IndexLimits, IndexReader, IndexStats, Prefix, Reach, StoreError};
use crate::units::Tokens;

/// Most tokens that a full cache has left over: a piece of the largest, or several of the usual size.
const LEFT_OVER: Tokens = Tokens(1024);

/// What lives where.
#[derive(Debug)]
pub struct Residency {
    index: Index,
    mirrors: Vec<Mirror>,
    changes: Vec<Change>,
    /// Keys that a worker lost, on their way to the index.
    gone: Vec<PrefixHash>,
    refused: Refused,
}

/// What the mirrors hold and the index would not take, ever: there lookups say less than is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Chains whose parent the index had evicted.
    pub unknown_parents: u64,
    /// Chains with a key that names another prefix already: two prompts collide.
    pub conflicts: u64,
    /// Chains that are too long for the index, and anything else.
    pub too_long: u64,
    /// Why the last one was.
    pub last: Option<StoreError>,
}

impl Refused {
    /// All of them.
    #[must_use]
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

/// A request's hold on the mirror of the worker that it was sent to.
#[derive(Debug)]
#[must_use = "give it back with settle or retract"]
pub struct Hold {
    worker: WorkerId,
    lease: Lease,
    /// The prompt's last key, if all of them are held.
    last: Option<PrefixHash>,
    compared: Option<Compared>,
}

impl Hold {
    /// What was cached of the prompt, with hints and without. `None` of a worker that was told nothing yet.
    #[must_use]
    pub fn compared(&self) -> Option<Compared> {
        self.compared
    }
}

/// What followed a prompt, and where.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The prompt's key that it goes on from; `None`: from the prompt's beginning. Where chunks never restart, a prompt's
    /// last, short key is not it: the text goes on within that chunk, so the reply's first key stands for what that one
    /// stood for.
    pub parent: Option<PrefixHash>,
    /// Its keys.
    pub chain: &'a Chain,
    /// Where the parent ends, in the chain's unit.
    pub before: u64,
    /// The last key ends within a chunk in which the next turn goes on, under another key.
    pub open: bool,
}

impl Reply<'_> {
    /// The key of the open chunk, after the one that the next turn repeats.
    fn open_end(&self) -> Option<(PrefixHash, PrefixHash)> {
        let keys = self.chain.hashes();
        let (&end, before) = keys.split_last().filter(|_| self.open)?;
        Some((before.last().copied().or(self.parent)?, end))
    }
}

impl Residency {
    /// Nothing known, for workers of these capacities, in the order of their slots.
    #[must_use]
    pub fn new(limits: IndexLimits, capacities: &[Tokens]) -> Self {
        Self {
            index: Index::new(limits),
            mirrors: capacities.iter().map(|&capacity| Mirror::new(capacity)).collect(),
            changes: Vec::new(),
            gone: Vec::new(),
            refused: Refused::default(),
        }
    }

    /// A worker of this capacity takes a slot, of which nothing is known any more: a slot may be the next free one, or one
    /// whose last holder has nothing in flight.
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

    /// How many tokens a worker's mirror has room for.
    #[must_use]
    pub fn capacity_of(&self, worker: WorkerId) -> Tokens {
        self.mirrors
            .get(worker.index())
            .map_or(Tokens::ZERO, |mirror| mirror.cache.capacity())
    }

    /// Whether a worker's capacity is learned from its answers.
    #[must_use]
    pub fn learns_capacity(&self, worker: WorkerId) -> bool {
        self.mirrors
            .get(worker.index())
            .is_some_and(Mirror::learns_capacity)
    }

    /// Learns a worker's capacity from its answers: neither the configuration nor the worker states it.
    pub fn learn_capacity(&mut self, worker: WorkerId) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.learn_capacity();
        }
    }

    /// A worker stated its capacity. Pieces that no longer fit are evicted.
    pub fn capacity_told(&mut self, worker: WorkerId, capacity: Tokens) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.capacity_told(capacity, &mut self.changes);
            self.apply(worker, None, &[]);
        }
    }

    /// A worker found more of a prompt than its mirror holds.
    pub fn found_more(&mut self, worker: WorkerId) {
        let is_full = self.filled_on(worker) >= self.capacity_of(worker);
        if let Some(mirror) = self.mirrors.get_mut(worker.index()).filter(|_| is_full) {
            mirror.found_more();
        }
    }

    /// A worker drops what is not marked in this order. Until it is said, the least recently used first.
    pub fn set_order(&mut self, worker: WorkerId, order: Order) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.cache.set_order(order);
        }
    }

    /// A handle for lookups by other threads: they take no lock and never wait for what is applied here.
    #[must_use]
    pub fn reader(&self) -> IndexReader {
        self.index.reader()
    }

    /// How many leading keys of the chain each worker holds.
    pub fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        self.index.lookup(chain, reach);
    }

    /// Tokens that a worker can store before it evicts anything unmarked.
    #[must_use]
    pub fn room_on(&self, worker: WorkerId) -> Tokens {
        let mirror = self.mirrors.get(worker.index());
        mirror.map_or(Tokens::ZERO, |mirror| mirror.cache.room())
    }

    /// Tokens believed resident on a worker.
    #[must_use]
    pub fn tokens_on(&self, worker: WorkerId) -> Tokens {
        self.mirrors
            .get(worker.index())
            .map_or(Tokens::ZERO, |mirror| mirror.cache.used())
    }

    /// The same, to compare workers by: a full cache counts as its capacity. Pieces of text are of all sizes, so a little is
    /// always left over, and how much is a matter of chance: what goes to the least full of full caches would go to one of
    /// them at a time, many turns in a row.
    #[must_use]
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

    /// What the index would not take.
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// Where the prefixes that were used last end: see [`Index::newest`].
    #[must_use]
    pub fn newest(&self, most: usize, worker: Option<WorkerId>, copies: usize) -> (Vec<Prefix>, bool) {
        self.index.newest(most, worker, copies)
    }

    /// Tokens of what leads to a key and the key itself, on a worker that is believed to hold it.
    #[must_use]
    pub fn tokens_up_to(&self, worker: WorkerId, key: PrefixHash) -> Option<Tokens> {
        self.mirrors.get(worker.index())?.cache.tokens_up_to(key)
    }

    /// The index's counts.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        self.index.stats()
    }

    /// A prompt was sent to a worker. `tokens` tells where in tokens an end of the chain is. `None` if the worker is not
    /// known.
    pub fn sent(&mut self, worker: WorkerId, chain: &Chain, tokens: impl Fn(u64) -> u64) -> Option<Hold> {
        let pieces = pieces(chain, 0, tokens);
        let mirror = self.mirrors.get_mut(worker.index())?;
        mirror.goes_on(chain.hashes(), &mut self.changes);
        let lease = mirror.cache.acquire(&pieces, &mut self.changes);
        let compared = mirror.compare(&pieces, lease.hits());
        let held = &chain.hashes()[..lease.len()];
        self.apply(worker, None, held);
        let last = chain.last().filter(|_| held.len() == chain.len());
        Some(Hold {
            worker,
            lease,
            last,
            compared,
        })
    }

    /// The answer ended. The worker also holds the `reply` that followed the prompt, and may drop the last
    /// `evict_first` tokens of the whole, which is `total` tokens long, before anything else.
    pub fn settle(
        &mut self,
        mut hold: Hold,
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

    /// The worker counted a prompt's tokens: what is held of it weighs what it does, and not what was estimated.
    pub fn counted(&mut self, hold: &Hold, chain: &Chain, tokens: impl Fn(u64) -> u64) {
        if let Some(mirror) = self.mirrors.get_mut(hold.worker.index()) {
            let pieces = pieces(chain, 0, tokens);
            mirror.cache.reweigh(&hold.lease, &pieces, &mut self.changes);
            self.apply(hold.worker, None, &[]);
        }
    }

    /// The request never reached the worker: what it alone would have brought there is not there.
    pub fn retract(&mut self, hold: Hold) {
        let Hold { worker, lease, .. } = hold;
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return;
        };
        mirror.cache.withdraw(lease, &mut self.changes);
        self.apply(worker, None, &[]);
    }

    /// A worker reported how much of a prompt it found in its cache; to be told before the prompt is settled. Returns how
    /// many keys are believed there no longer.
    pub fn reported(&mut self, worker: WorkerId, report: &Report) -> usize {
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return 0;
        };
        let dropped = mirror.reported(report, &mut self.changes);
        self.apply(worker, None, &[]);
        dropped
    }

    /// A worker was told that this chain is no use there any more: it may drop it first.
    pub fn released(&mut self, worker: WorkerId, chain: &[PrefixHash]) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.is_told();
            mirror.cache.mark_evict_first(chain.iter().rev().copied());
        }
    }

    /// Marks the end of a conversation evict-first, past its first `keep` tokens. Pieces below it that belong to other
    /// conversations stay. `keys` are some of its keys, the last one first. The worker should be told to keep what the mirror
    /// then keeps, so that both forget the same. `None` if no key is resident.
    pub fn trimmed(
        &mut self,
        worker: WorkerId,
        keys: impl IntoIterator<Item = PrefixHash>,
        keep: Tokens,
    ) -> Option<Trimmed> {
        let mirror = self.mirrors.get_mut(worker.index())?;
        let end = keys.into_iter().find(|key| mirror.cache.contains(*key))?;
        mirror.is_told();
        mirror.cache.trim(end, keep)
    }

    /// A worker was told that the beginning with these keys is used by many: it is fresh, and no mark lies on it.
    pub fn protected(&mut self, worker: WorkerId, keys: &[PrefixHash]) {
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return;
        };
        // What is resident keeps its own weight, so none is given here.
        let piece = |&hash: &PrefixHash| Piece { hash, tokens: 0 };
        let held: Vec<Piece> = keys[..mirror.cache.resident(keys)].iter().map(piece).collect();
        mirror.cache.insert(&held, Keep::All, &mut self.changes);
        self.apply(worker, None, &[]);
    }

    /// A worker cleared its cache while nothing was running: only what is in flight now is there.
    pub fn cleared(&mut self, worker: WorkerId) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.cleared(&mut self.changes);
            self.apply(worker, None, &[]);
        }
    }

    /// A worker holds nothing any more.
    pub fn forget(&mut self, worker: WorkerId) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            mirror.forget(&mut self.changes);
            self.apply(worker, None, &[]);
        }
    }

    /// What is believed to be on a worker, to be written down: see [`PrefixCache::entries`].
    #[must_use]
    pub fn entries(&self, worker: WorkerId) -> Vec<Entry> {
        self.mirrors
            .get(worker.index())
            .map_or_else(Vec::new, |mirror| mirror.cache.entries())
    }

    /// Brings back one of [`chains`] of what was written down, as one that was served just now.
    pub fn restore(&mut self, worker: WorkerId, chain: &[Piece]) {
        let Some(mirror) = self.mirrors.get_mut(worker.index()) else {
            return;
        };
        // Whoever wrote it down.
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

    /// Whoever asks for the prompt's last, short key again is answered by the reply's first piece.
    fn begins(&mut self, worker: WorkerId, first: PrefixHash, parent: Option<PrefixHash>, short: PrefixHash) {
        if let Some(mirror) = self.mirrors.get_mut(worker.index()) {
            if let Some(before) = mirror.begins(first, short) {
                self.index.remove(worker, before);
            }
            self.apply(worker, parent, &[short]);
        }
    }

    /// Carries the mirror's changes over to the index: what left, then what is held now. The index keeps its own
    /// bounds, so it may know less than the mirror, never more.
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
            // Then the index knows less than the mirror, which is allowed, but should be rare.
            if let Err(error) = self.index.store_after(worker, parent, held) {
                self.refused.add(error);
            }
        }
    }
}

/// The chains that rebuild a cache with these entries when they are restored in this order: each entry's last touch comes
/// where it was. An entry right before its parent stands for both, so there are about as many chains as conversations.
pub fn chains(entries: &[Entry]) -> impl Iterator<Item = Vec<Piece>> {
    let path = |from: usize| {
        let mut chain = vec![entries[from].piece];
        let mut at = from;
        // Parents come later, so this ends whatever the list says.
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

/// The chain's keys with their weights. `before` is where the chain begins in its own unit (bytes or tokens).
///
/// Each weighs a token at the least, so that a mirror holds no more pieces than its capacity has tokens, whatever workers
/// count: a template may leave out most of what a client sends. The next piece weighs as much less, so a few bytes that
/// round to nothing leave the sum as it is.
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

//! Which workers hold how much of a prompt, exactly, in bounded memory.
//!
//! The question, asked for every request: of this chain of prefix keys, how many leading keys does each worker hold?
//! Residency is *prefix-closed*: an engine that evicted a block cannot use the blocks after it, so a worker's copy of a
//! chain is always a prefix of it, and losing a key loses everything below it.
//!
//! Keys are [`PrefixHash`]es: each names its whole prefix, so a key has one parent for ever, the keys known form a
//! forest, and two chains that agree at one position agree at all positions before it. Several models, cache salts and
//! kinds of keys live in one index; their roots keep them apart.
//!
//! # Shape
//!
//! A radix tree whose edges are *runs*: maximal stretches of keys without a branch. A run's record names its first and
//! last key, its holders in full (a bit each) and, for the few whose copy ends inside, how far each reaches. A walk finds
//! the next run by its first key, and since a key names all before it, compares just the run's last key: a chain of 512
//! keys held as two runs costs two probes and two comparisons. The answer is written a bitset word at a time.
//!
//! Readers take no lock and write nothing ([`IndexReader`], `read`): what they see are atomic words in chunks that stay
//! allocated (`words`), guarded by a version per run. One writer changes them (`writer`); its private `locator` knows the
//! place of every key, for events that name one. Blocks live in a log that is cleaned (`pool`), runs merge again when a
//! branch or a holder goes, and the least recently used leaves are evicted when the byte budget is used up: churn leaves
//! nothing behind.
//!
//! # Rejected
//!
//! - *A hash probe per key*, or per power of two of the depth: a cache miss each, where a run costs two in all.
//! - *Two copies, one read while the other is written* (left-right): every event applied twice and the memory doubled, to
//!   spare readers a version check of a nanosecond.
//! - *Reference counting or epochs* to free what readers might still look at: both make readers write, and need `unsafe`
//!   where atomic words that stay allocated need none.
//! - *Splitting runs wherever a worker's copy ends*: a conversation that moved ten times would be ten runs.
//! - *A map from key to run per worker*, as engines' events suggest: 16 bytes or more per (key, worker), against the
//!   locator's 14 per key. Keys are the router's own, the same on every worker.

mod heads;
mod holders;
mod limits;
mod locator;
pub mod naive;
mod pool;
mod prefix;
mod reach;
mod read;
mod run;
mod words;
mod writer;

#[cfg(test)]
mod tests;

pub use limits::{IndexLimits, IndexStats, StoreError};
pub use prefix::{Copy, Prefix};
pub use reach::Reach;
pub use read::IndexReader;

use std::sync::Arc;

use crate::ids::{PrefixHash, WorkerId};
use writer::Writer;

/// The global index. Lookups take `&self` and write nothing; evidence is applied through `&mut self`.
#[derive(Debug)]
pub struct Index {
    writer: Writer,
}

impl Index {
    /// An empty index that will never hold more than its limits.
    #[must_use]
    pub fn new(limits: IndexLimits) -> Self {
        Self {
            writer: Writer::new(limits),
        }
    }

    /// A handle for lookups by other threads, while this one applies evidence. They share the index.
    #[must_use]
    pub fn reader(&self) -> IndexReader {
        IndexReader {
            shared: Arc::clone(&self.writer.shared),
        }
    }

    /// The first broken invariant of the structure, if any: for tests. Visits every key.
    #[must_use]
    pub fn broken(&self) -> Option<String> {
        self.writer.broken()
    }

    /// Reclaims up to about `keys` of the keys that removals left to later writes; returns how many are left. Each write
    /// does a part of this anyway: for an owner that is idle.
    pub fn tidy(&mut self, keys: u64) -> u64 {
        self.writer.tidy(keys)
    }

    /// How many leading keys of `chain` each worker holds. Overwrites `reach`; a `reach` used before is not reallocated.
    pub fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        self.writer.shared.lookup(chain, reach);
    }

    /// `worker` holds the whole of `chain`, which starts at a prompt's first key. Counts as a use of it.
    /// Returns how many of its keys the worker did not hold before.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] where a key is known with another parent; the keys before it are stored.
    pub fn store(&mut self, worker: WorkerId, chain: &[PrefixHash]) -> Result<u64, StoreError> {
        self.writer.store_after(worker, None, chain)
    }

    /// `worker` holds `hashes`, which follow `parent` (`None`: they start a prompt): what engines' events say.
    /// Returns how many of the keys the worker did not hold before.
    ///
    /// # Errors
    /// [`StoreError::UnknownParent`] if the worker does not hold `parent`: an event was lost, or the index evicted it.
    /// Nothing is stored, and it is counted. [`StoreError::Conflict`] as for [`Self::store`].
    pub fn store_after(
        &mut self,
        worker: WorkerId,
        parent: Option<PrefixHash>,
        hashes: &[PrefixHash],
    ) -> Result<u64, StoreError> {
        self.writer.store_after(worker, parent, hashes)
    }

    /// `worker` no longer holds `hash`, nor anything that continues it. Returns how many keys the worker lost; 0 if it
    /// did not hold `hash` (a duplicate, or below one removed before), which is counted.
    pub fn remove(&mut self, worker: WorkerId, hash: PrefixHash) -> u64 {
        self.writer.remove(worker, hash)
    }

    /// [`Self::remove`] of each, in this order. Keys that leave one after the other from the end of a prompt, as they leave a
    /// cache, cost as much as one of them.
    pub fn remove_all(&mut self, worker: WorkerId, hashes: &[PrefixHash]) {
        self.writer.remove_all(worker, hashes);
    }

    /// `worker` holds nothing any more: it left, restarted, cleared its cache or lost events. Returns the keys it lost.
    ///
    /// Takes time by the runs that the worker holds any of, whatever others hold and however many keys the runs have.
    /// Answers and counts are exact at once, and the slot may be used again; the memory of keys that nobody else holds
    /// is reclaimed by later writes, a bounded part by each ([`IndexStats::owed_keys`]).
    pub fn forget(&mut self, worker: WorkerId) -> u64 {
        self.writer.forget(worker)
    }

    /// Counts as a use of what is known of `chain`, for the index's own eviction, and changes nothing else.
    pub fn touch(&mut self, chain: &[PrefixHash]) {
        self.writer.touch(chain);
    }

    /// Whether `worker` holds `hash`.
    #[must_use]
    pub fn holds(&self, worker: WorkerId, hash: PrefixHash) -> bool {
        self.writer.holds(worker, hash)
    }

    /// Keys that `worker` holds.
    #[must_use]
    pub fn entries_of(&self, worker: WorkerId) -> u64 {
        self.writer.entries_of(worker)
    }

    /// Where the `most` runs of keys that were used last end, the newest first, each with at most so many `copies`, or
    /// with that of one worker alone; and whether these were all. For people: it takes time by the runs that it looks at.
    #[must_use]
    pub fn newest(&self, most: usize, worker: Option<WorkerId>, copies: usize) -> (Vec<Prefix>, bool) {
        self.writer.newest(most, worker, copies)
    }

    /// Exact counts.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        self.writer.stats()
    }
}

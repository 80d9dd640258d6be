//! An exact index, in bounded memory, of which workers hold how much of a prompt.
//!
//! Each request looks up: of this chain of prefix keys, how many leading keys does each worker hold? Residency is
//! *prefix-closed*: an engine that evicted a block cannot use the blocks after it, so losing a key loses everything
//! below it. Several models, cache salts and kinds of keys share one index; their roots keep them apart.
//! `docs/prefix-index.md` explains the structure and why concurrent reads are correct.
//!
//! The index is a radix tree whose edges are *runs*: maximal stretches of keys without a branch. A walk finds the next
//! run by its first key and compares only its last one, since a key names all keys before it. Readers take no lock and
//! write nothing ([`IndexReader`], `read`). They see atomic words in chunks that stay allocated (`words`), guarded by a
//! version per run. One writer changes them (`writer`); its private `locator` maps every key to its position, for
//! events that name one. Blocks are stored in a log that is cleaned (`pool`).
//!
//! # Rejected
//! - *A hash probe per key*, or per power of two of the depth: a cache miss each, where a run costs two in all.
//! - *Two copies, one read while the other is written*: twice the work and memory, to spare readers a version check.
//! - *Reference counting or epochs*: both make readers write, and need `unsafe`.
//! - *Splitting runs wherever a worker's copy ends*: a conversation that moved ten times would be ten runs.
//! - *A map from key to run per worker*: 16 bytes or more per (key, worker), against the locator's 14 per key.

mod heads;
mod holders;
mod limits;
mod locator;
#[cfg(test)]
mod naive;
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

/// The global index. Lookups take `&self` and write nothing; updates take `&mut self`.
#[derive(Debug)]
pub struct Index {
    writer: Writer,
}

impl Index {
    /// Creates an empty index that stays within these limits.
    pub fn new(limits: IndexLimits) -> Self {
        Self {
            writer: Writer::new(limits),
        }
    }

    /// Returns a handle for lookups by other threads, concurrent with updates here. The handle shares the index.
    pub fn reader(&self) -> IndexReader {
        IndexReader {
            shared: Arc::clone(&self.writer.shared),
        }
    }

    /// Returns the first broken invariant, if any. For tests: visits every key.
    pub fn broken(&self) -> Option<String> {
        self.writer.broken()
    }

    /// Reclaims about `keys` of the keys whose cleanup was deferred by removals, while the owner is idle. Returns how
    /// many remain.
    pub fn tidy(&mut self, keys: u64) -> u64 {
        self.writer.tidy(keys)
    }

    /// Writes to `reach` how many leading keys of `chain` each worker holds. Reuses the memory of `reach`.
    pub fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        self.writer.shared.lookup(chain, reach);
    }

    /// Records that `worker` holds all of `chain`, from a prompt's first key on, and marks it as used. Returns how
    /// many keys it lacked. Fails with [`StoreError::Conflict`] if a key has another parent; those before it are stored.
    pub fn store(&mut self, worker: WorkerId, chain: &[PrefixHash]) -> Result<u64, StoreError> {
        self.writer.store_after(worker, None, chain)
    }

    /// Records that `worker` holds `hashes`, which follow `parent` (`None`: the start of a prompt). Returns how many it
    /// lacked. Fails as [`Self::store`] does, and with [`StoreError::UnknownParent`] before anything is stored.
    pub fn store_after(
        &mut self,
        worker: WorkerId,
        parent: Option<PrefixHash>,
        hashes: &[PrefixHash],
    ) -> Result<u64, StoreError> {
        self.writer.store_after(worker, parent, hashes)
    }

    /// Removes `hash`, and everything below it, from `worker`. Returns how many keys the worker lost. Returns 0 and
    /// counts an unknown removal if the worker did not hold `hash` (a duplicate, or below a key removed before).
    pub fn remove(&mut self, worker: WorkerId, hash: PrefixHash) -> u64 {
        self.writer.remove(worker, hash)
    }

    /// Removes each of `hashes` in this order. Consecutive keys from the end of a prompt cost as much as one.
    pub fn remove_all(&mut self, worker: WorkerId, hashes: &[PrefixHash]) {
        self.writer.remove_all(worker, hashes);
    }

    /// Removes everything from `worker`: it left, restarted, cleared its cache or lost events. Returns the number of
    /// keys lost. The slot may be reused at once; later writes reclaim the memory ([`IndexStats::owed_keys`]).
    pub fn forget(&mut self, worker: WorkerId) -> u64 {
        self.writer.forget(worker)
    }

    /// Marks the known part of `chain` as used, for the index's own eviction.
    pub fn touch(&mut self, chain: &[PrefixHash]) {
        self.writer.touch(chain);
    }

    /// Returns whether `worker` holds `hash`.
    pub fn holds(&self, worker: WorkerId, hash: PrefixHash) -> bool {
        self.writer.holds(worker, hash)
    }

    /// Returns the number of keys that `worker` holds.
    pub fn entries_of(&self, worker: WorkerId) -> u64 {
        self.writer.entries_of(worker)
    }

    /// Returns the ends of the `most` most recently used runs, newest first, each with at most `copies` copies, or only
    /// with that of `worker`; and whether these are all runs. For display: takes time proportional to the runs visited.
    pub fn newest(&self, most: usize, worker: Option<WorkerId>, copies: usize) -> (Vec<Prefix>, bool) {
        self.writer.newest(most, worker, copies)
    }

    /// Returns exact counts.
    pub fn stats(&self) -> IndexStats {
        self.writer.stats()
    }
}

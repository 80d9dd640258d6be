//! An exact index, in bounded memory, of which workers hold how much of a prompt.
//!
//! Each request looks up: of this chain of prefix keys, how many leading keys does each worker hold? Residency is
//! *prefix-closed*: an engine that evicted a block cannot use the blocks after it, so a worker's copy of a chain is
//! always a prefix of it, and losing a key loses everything below it.
//!
//! Keys are [`PrefixHash`]es. Each names its whole prefix, so a key has exactly one parent, the known keys form a
//! forest, and two chains that agree at one position agree at all positions before it. Several models, cache salts and
//! kinds of keys share one index; their roots keep them apart.
//!
//! # Shape
//!
//! A radix tree whose edges are *runs*: maximal stretches of keys without a branch. A run's record has its first and
//! last key, the workers that hold it in full (a bit each) and, for the few whose copy ends inside, the reach of each.
//! A walk finds the next run by its first key. Since a key names all keys before it, only the run's last key is
//! compared: a chain of 512 keys held as two runs costs two probes and two comparisons. The answer is written a bitset
//! word at a time.
//!
//! Readers take no lock and write nothing ([`IndexReader`], `read`). They see atomic words in chunks that stay
//! allocated (`words`), guarded by a version per run. One writer changes them (`writer`); its private `locator` maps
//! every key to its position, for events that name one. Blocks are stored in a log that is cleaned (`pool`), runs merge
//! again when a branch or a holder goes, and the least recently used leaves are evicted when the byte budget is used
//! up, so churn does not accumulate garbage.
//!
//! # Rejected
//!
//! - *A hash probe per key*, or per power of two of the depth: a cache miss each, where a run costs two in all.
//! - *Two copies, one read while the other is written* (left-right): every event applied twice and the memory doubled,
//!   to spare readers a version check of a nanosecond.
//! - *Reference counting or epochs* to free what readers might still look at: both make readers write, and need
//!   `unsafe` where atomic words that stay allocated need none.
//! - *Splitting runs wherever a worker's copy ends*: a conversation that moved ten times would be ten runs.
//! - *A map from key to run per worker*, as engines' events suggest: 16 bytes or more per (key, worker), against the
//!   locator's 14 per key. Keys are computed by the router and are the same on every worker.

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

    /// Reclaims up to about `keys` of the keys whose cleanup removals deferred, and returns how many remain. Each write
    /// reclaims some anyway; this is for an idle owner.
    pub fn tidy(&mut self, keys: u64) -> u64 {
        self.writer.tidy(keys)
    }

    /// Writes to `reach` how many leading keys of `chain` each worker holds. Reuses the memory of `reach`.
    pub fn lookup(&self, chain: &[PrefixHash], reach: &mut Reach) {
        self.writer.shared.lookup(chain, reach);
    }

    /// Records that `worker` holds the whole of `chain`, which starts at a prompt's first key, and marks the chain as
    /// used. Returns how many of its keys are new for the worker.
    /// Fails with [`StoreError::Conflict`] if a key is known with another parent; the keys before it are stored.
    pub fn store(&mut self, worker: WorkerId, chain: &[PrefixHash]) -> Result<u64, StoreError> {
        self.writer.store_after(worker, None, chain)
    }

    /// Records that `worker` holds `hashes`, which follow `parent` (`None`: the start of a prompt), as engines' events
    /// report it. Returns how many of the keys are new for the worker.
    /// Fails with [`StoreError::UnknownParent`] if the worker does not hold `parent`: an event was lost, or the index
    /// evicted it. Nothing is stored, and the refusal is counted. [`StoreError::Conflict`] as for [`Self::store`].
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

    /// Removes each of `hashes` in this order. Consecutive keys from the end of a prompt, the order in which caches
    /// evict, cost as much as one.
    pub fn remove_all(&mut self, worker: WorkerId, hashes: &[PrefixHash]) {
        self.writer.remove_all(worker, hashes);
    }

    /// Removes everything from `worker`: it left, restarted, cleared its cache or lost events. Returns the number of
    /// keys lost.
    ///
    /// Takes time proportional to the runs that the worker holds any of, independent of the length of the runs and of
    /// other holders. Lookups and counts are exact at once, and the slot may be reused. The memory of keys without a
    /// holder is reclaimed by later writes, a bounded part by each ([`IndexStats::owed_keys`]).
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

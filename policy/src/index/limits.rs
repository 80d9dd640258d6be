//! Limits, counts and errors of the index.

use thiserror::Error;

use crate::ids::{PrefixHash, WorkerId};

/// Limits of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLimits {
    /// Total memory in bytes. When it is used up, the least recently used leaves are evicted.
    pub max_bytes: u64,
}

impl IndexLimits {
    /// Lower bound on the budget; smaller values are raised to it.
    pub const MIN_BYTES: u64 = crate::sync::SMALLEST_BUDGET;
    /// Upper bound on the budget, given by the range of run numbers. Larger values are lowered to it.
    pub const MAX_BYTES: u64 = 8 << 30;
    /// Number of worker slots. Slots are dense by contract; the bound keeps an invalid number from sizing an array.
    pub const MAX_WORKERS: u32 = 1 << 16;
    /// Longest chain that is indexed, in keys: 268 MB of text, or 16 M tokens in blocks of 16.
    pub const MAX_DEPTH: usize = 1 << 20;
}

impl Default for IndexLimits {
    /// Returns limits of 256 MiB, which hold about ten million (key, worker) entries.
    fn default() -> Self {
        Self { max_bytes: 256 << 20 }
    }
}

/// Exact counts of what the index holds and what happened to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Distinct keys held by any worker.
    pub keys: u64,
    /// (key, worker) pairs: the sum of every worker's entries.
    pub entries: u64,
    /// Runs that the keys are compressed into.
    pub runs: u64,
    /// Bytes in use, spare capacity included.
    pub bytes: u64,
    /// Keys without a holder whose memory is yet to be reclaimed. No lookup returns them.
    pub owed_keys: u64,
    /// Keys evicted to stay within the budget, in total.
    pub evicted_keys: u64,
    /// (key, worker) pairs evicted with them, in total.
    pub evicted_entries: u64,
    /// Stores refused because the worker did not hold the parent, in total.
    pub unknown_parents: u64,
    /// Removals of keys that the worker did not hold, in total.
    pub unknown_removals: u64,
    /// Stores cut short because a key was known with another parent, in total.
    pub conflicts: u64,
}

/// Why a store was refused. The index stays correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The worker does not hold the parent of the keys.
    #[error("worker {worker:?} does not hold the parent {parent:?}", worker = .worker.0, parent = .parent.0)]
    UnknownParent {
        /// The worker of the store.
        worker: WorkerId,
        /// The missing parent.
        parent: PrefixHash,
    },
    /// A key was stored with a second parent. A key has exactly one parent.
    #[error("key {key:?} is known with another parent", key = .key.0)]
    Conflict {
        /// The key. Those before it were stored.
        key: PrefixHash,
    },
    /// The number is not a worker slot.
    #[error("worker slot {worker:?} is past the last possible one", worker = .worker.0)]
    NoSuchWorker {
        /// The invalid slot.
        worker: WorkerId,
    },
    /// The chain is longer than any prompt, or than the index's memory.
    #[error("a chain of {keys} keys is longer than the index can hold")]
    TooLong {
        /// Number of keys up to the limit. A prefix of the chain may have been stored.
        keys: usize,
    },
}

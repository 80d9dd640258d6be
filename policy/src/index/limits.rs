//! Bounds and counts of the index, and why evidence may be refused.

use thiserror::Error;

use crate::ids::{PrefixHash, WorkerId};

/// What the index may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLimits {
    /// Bytes of memory in all. When they are used up, the least recently stored leaves go first.
    pub max_bytes: u64,
}

impl IndexLimits {
    /// The least budget that makes sense; a smaller one is taken as this.
    pub const MIN_BYTES: u64 = crate::sync::SMALLEST_BUDGET;
    /// The largest budget: what run numbers can address. A larger one is taken as this.
    pub const MAX_BYTES: u64 = 8 << 30;
    /// Worker slots. Slots are dense by contract; the bound keeps a stray number from sizing an array.
    pub const MAX_WORKERS: u32 = 1 << 16;
    /// The longest chain that is indexed, in keys: 268 MB of text, or 16 M tokens in blocks of 16.
    pub const MAX_DEPTH: usize = 1 << 20;
}

impl Default for IndexLimits {
    /// 256 MiB: about ten million (key, worker) entries.
    fn default() -> Self {
        Self { max_bytes: 256 << 20 }
    }
}

/// Exact counts of what the index holds and what happened to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Distinct keys held by anyone.
    pub keys: u64,
    /// (key, worker) pairs: the sum of every worker's entries.
    pub entries: u64,
    /// Runs of keys they are compressed into.
    pub runs: u64,
    /// Bytes in use, spare capacity included.
    pub bytes: u64,
    /// Keys that nobody holds any more and no answer mentions, whose memory later writes will reclaim.
    pub owed_keys: u64,
    /// Keys that the index dropped to stay within its bytes, ever.
    pub evicted_keys: u64,
    /// (key, worker) pairs dropped with them, ever.
    pub evicted_entries: u64,
    /// Stores refused because the worker did not hold their parent, ever.
    pub unknown_parents: u64,
    /// Removals of keys that the worker did not hold, ever.
    pub unknown_removals: u64,
    /// Stores cut short because a key was known with another parent, ever.
    pub conflicts: u64,
}

/// Why evidence was refused. Nothing the index holds became wrong by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The keys would hang in the air.
    #[error("worker {worker:?} does not hold the parent {parent:?}", worker = .worker.0, parent = .parent.0)]
    UnknownParent {
        /// Who said so.
        worker: WorkerId,
        /// The key its keys should follow.
        parent: PrefixHash,
    },
    /// A key names one prefix for ever; here it was given for a second.
    #[error("key {key:?} is known with another parent", key = .key.0)]
    Conflict {
        /// The key in question. Those before it were stored.
        key: PrefixHash,
    },
    /// Not a worker slot.
    #[error("worker slot {worker:?} is past the last possible one", worker = .worker.0)]
    NoSuchWorker {
        /// The slot that was given.
        worker: WorkerId,
    },
    /// The chain does not fit: it is longer than any prompt, or than the index's memory.
    #[error("a chain of {keys} keys is longer than the index can hold")]
    TooLong {
        /// Its length in keys. A prefix of it may have been stored.
        keys: usize,
    },
}

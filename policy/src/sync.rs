//! The atomics, sizes and bounds of the index in one place, so that a model checker can replace them.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::thread::yield_now;

/// Initial capacity of a table of runs' first keys, as a power of two.
pub(crate) const SMALLEST_HEADS_LOG2: u32 = 8;
/// Words of the index's smallest chunks, as a power of two.
pub(crate) const SMALLEST_CHUNK_LOG2: u32 = 13;
pub(crate) const SMALLEST_BUDGET: u64 = 4 << 20;
/// Upper bound on the walks of a lookup while a writer interferes: about a millisecond, with a yield each [`PATIENCE`].
pub(crate) const ATTEMPTS: u32 = 1 << 10;
/// Walks between yields to a writer that may have been suspended within a change.
pub(crate) const PATIENCE: u32 = 64;

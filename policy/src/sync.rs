//! The atomics that the index is built on, named in one place so that a model checker can put its own in theirs, and the
//! sizes and bounds that it makes smaller.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::thread::yield_now;

/// Entries of a table of runs' first keys when it is empty, as a power of two.
pub(crate) const SMALLEST_HEADS_LOG2: u32 = 8;
/// Words of the index's smallest chunks, as a power of two.
pub(crate) const SMALLEST_CHUNK_LOG2: u32 = 13;
/// Bytes of its smallest budget.
pub(crate) const SMALLEST_BUDGET: u64 = 4 << 20;
/// Walks of a lookup at most while a writer is in the way. The processor is offered to the writer every [`PATIENCE`], so
/// this is about a millisecond: a lookup runs on a thread that serves requests.
pub(crate) const ATTEMPTS: u32 = 1 << 10;
/// Walks before the processor is offered to a writer that may have been interrupted in the middle of a change.
pub(crate) const PATIENCE: u32 = 64;

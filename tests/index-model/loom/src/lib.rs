//! `policy::index`'s shared memory (`words`) and table of first keys (`heads`), compiled from their own sources (they are
//! links) over [loom](https://docs.rs/loom)'s atomics.
#![allow(dead_code, reason = "the model uses the parts that two threads share")]

mod heads;
mod words;

#[cfg(test)]
mod protocol;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// So small that a few keys fill it.
    pub(crate) const SMALLEST_HEADS_LOG2: u32 = 2;
}

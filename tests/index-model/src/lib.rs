//! `policy::index`, compiled from its own sources (they are links) over atomics whose every access is a point where
//! [shuttle](https://docs.rs/shuttle) may run another thread instead.

pub mod ids;
pub mod index;

mod sync {
    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use shuttle::thread::yield_now;

    // So small that tables grow, logs are cleaned and budgets bind within a few dozen operations.
    pub(crate) const SMALLEST_HEADS_LOG2: u32 = 2;
    pub(crate) const SMALLEST_CHUNK_LOG2: u32 = 9;
    pub(crate) const SMALLEST_BUDGET: u64 = 64 << 10;
    // So few that a writer which was stopped is soon given up, and far more than one that runs needs.
    pub(crate) const ATTEMPTS: u32 = 1 << 10;
    pub(crate) const PATIENCE: u32 = 4;
}

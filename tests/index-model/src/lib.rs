//! `policy::index`, compiled from its own sources (they are links) over atomics whose every access is a point where
//! [shuttle](https://docs.rs/shuttle) may run another thread instead.

pub mod ids;
pub mod index;

mod sync {
    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use shuttle::thread::yield_now;
}

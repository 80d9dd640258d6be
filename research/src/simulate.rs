//! Experiments: cache policies on traces, deterministic and in simulated time.

pub mod future;
pub mod shared;
pub mod single;

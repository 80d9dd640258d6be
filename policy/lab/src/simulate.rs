//! Experiments: the policies on traces, deterministic and in simulated time.

pub mod agentic;
mod draw;
pub mod fleet;
pub mod future;
pub mod generate;
pub mod hot;
pub mod shared;
pub mod single;
pub mod stats;

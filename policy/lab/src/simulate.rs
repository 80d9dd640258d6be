//! Experiments: the policies on traces, deterministic and in simulated time.
//!
//! - [`single`]: one cache in front of one worker, turn by turn, as the caching papers measure;
//! - [`shared`]: the same with hash blocks that conversations share;
//! - [`fleet`]: several workers, queues and caches behind the router's own code;
//! - [`future`]: the foresight of hindsight policies;
//! - [`generate`]: the papers' stochastic conversations, by seed;
//! - [`agentic`]: coding agents: long contexts, many turns, bursts;
//! - [`hot`]: assistants with long system prompts of which few are popular;
//! - [`stats`] has percentiles.

pub mod agentic;
mod draw;
pub mod fleet;
pub mod future;
pub mod generate;
pub mod hot;
pub mod shared;
pub mod single;
pub mod stats;

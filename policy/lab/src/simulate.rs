//! Experiments: the policies under traces, deterministic and as fast as the policies themselves.
//!
//! - [`single`]: one cache in front of one worker, turn by turn, as the caching papers measure;
//! - [`shared`]: the same with hash blocks that conversations share;
//! - [`fleet`]: several workers, queues and caches behind the router's own code, as a fleet is run;
//! - [`future`]: what the hindsight policies are told;
//! - [`generate`]: the papers' stochastic conversations, by seed;
//! - [`agentic`]: coding agents: long contexts, many turns, bursts;
//! - [`hot`]: assistants with long system prompts of which few are popular;
//! - [`stats`]: percentiles, the same everywhere.

pub mod agentic;
mod draw;
pub mod fleet;
pub mod future;
pub mod generate;
pub mod hot;
pub mod shared;
pub mod single;
pub mod stats;

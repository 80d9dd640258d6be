//! A simulated LLM inference engine: real HTTP, a real prefix cache, real cache events, and time that can be scaled.
//!
//! What it is for: putting a router, or anything else that speaks to vLLM, in front of several engines on a machine
//! without an accelerator, and believing what is measured. So it costs what a prompt costs (queue, uncached tokens,
//! attention over the history), keeps what an engine keeps (a block cache of a given size, evicted as vLLM evicts), and
//! says what vLLM says (usage, metrics, cache events), byte shapes included. It computes nothing: replies are words
//! drawn by seed, or calls of tools where `tool_choice` says that there must be some ([`script`]).
//!
//! ```no_run
//! # async fn example() -> Result<(), sim_engine::StartError> {
//! let engine = sim_engine::Engine::start(sim_engine::EngineConfig { time_scale: 60.0, ..Default::default() }).await?;
//! println!("curl {}/v1/models", engine.url());
//! engine.set_fault(sim_engine::Fault { slow: 3.0, ..Default::default() });
//! assert_eq!(engine.stats().aborted.total(), 0);
//! engine.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: [`scheduler`] is the clockwork (no sockets, no clock), [`memory`] the cache and its hints,
//! [`tokens`] the tokenizer; `engine` ties them to the clock and `http` to the world; `events` speaks ZMQ.

pub mod config;
mod engine;
mod events;
mod fault;
mod host;
mod http;
pub mod memory;
pub mod scheduler;
pub mod script;
mod sessions;
mod stats;
pub mod text;
pub mod tokens;

pub use config::{
    CachePolicy, ConfigError, Dialect, EngineConfig, EventStyle, Jitter, KvEventsConfig, Order,
};
pub use engine::{Engine, StartError};
pub use events::publish::KvEventSource;
pub use fault::Fault;
pub use stats::{Captured, Stats};

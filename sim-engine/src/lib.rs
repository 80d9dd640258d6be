//! A simulated LLM inference engine with real HTTP, a real prefix cache, real cache events and scalable time.
//!
//! With this engine a router, or any other client of vLLM, is measured without an accelerator. A prompt takes the time
//! of queueing, its uncached tokens and attention; the block cache evicts as vLLM's does; usage, metrics and cache
//! events have vLLM's byte formats. Replies are words drawn by seed, or tool calls if `tool_choice` requires them.
//!
//! The APIs are OpenAI's chat completions, completions and responses, and Anthropic's messages, plain and streamed. One
//! template renders all of them, so a conversation that moves to another API finds its prompt cached if its texts,
//! roles, tool names and schemas are the same. Responses are stored, up to a bound, for `previous_response_id`.
//!
//! ```no_run
//! # async fn example() -> Result<(), sim_engine::StartError> {
//! let config = sim_engine::EngineConfig { time_scale: 60.0, ..Default::default() };
//! let engine = sim_engine::Engine::start(config).await?;
//! println!("curl {}/v1/models", engine.url());
//! engine.set_fault(sim_engine::Fault { slow: 3.0, ..Default::default() });
//! assert_eq!(engine.stats().aborted.total(), 0);
//! engine.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! [`scheduler`] is the simulation core, [`memory`] the cache, [`hints`] its control by clients, [`tokens`] the
//! tokenizer; `rank` ties them to the clock, `http` serves them, and `events` publishes over ZMQ.

pub mod config;
mod engine;
mod events;
mod fault;
pub mod hints;
mod host;
mod http;
pub mod memory;
mod prompt;
mod rank;
mod responses;
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

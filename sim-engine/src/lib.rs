//! A simulated LLM inference engine with real HTTP, a real prefix cache, real cache events and scalable time.
//!
//! Its purpose is to measure a router, or any other client of vLLM, with several engines on a machine without an
//! accelerator. It takes the time that a prompt costs (queue, uncached tokens, attention over the history), keeps a
//! block cache of a given size with vLLM's eviction, and reports what vLLM reports (usage, metrics, cache events) in
//! the same byte formats. It computes nothing: replies are words drawn by seed, or tool calls where `tool_choice`
//! requires them ([`script`]).
//!
//! It serves OpenAI's chat completions, completions and responses, and Anthropic's messages, plain and streamed. All
//! conversations are rendered by one template, so a conversation that moves from one API to another finds its prompt
//! cached if its texts, roles, tool names and schemas are the same. Responses are stored, up to a bound, for
//! `previous_response_id`.
//!
//! ```no_run
//! # async fn example() -> Result<(), sim_engine::StartError> {
//! let engine = sim_engine::Engine::start(sim_engine::EngineConfig { time_scale: 60.0, ..Default::default()
//! }).await?; println!("curl {}/v1/models", engine.url()); engine.set_fault(sim_engine::Fault { slow: 3.0,
//! ..Default::default() }); assert_eq!(engine.stats().aborted.total(), 0); engine.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: [`scheduler`] is the simulation core (no sockets, no clock), [`memory`] the cache, [`hints`] what
//! clients say about it, [`tokens`] the tokenizer; `rank` ties them to the clock, `http` serves them, `events` publishes
//! over ZMQ, and `engine` starts and stops it all.

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

//! A load generator that replays a trace's conversations as chat completions and measures latency as users would.
//!
//! # Open loop, with one exception
//! Turns are sent when the trace says, however slow the responses are: a generator that waits for responses measures a
//! slow system less often just when it is slow (coordinated omission). Every time is measured from the *intended* send
//! time; how far the generator fell behind it is reported as *send lag*.
//!
//! The exception is a turn whose predecessor is still being answered. It is *held* until that response is complete and
//! its body is built, which is then its intended time. Held turns are counted in the report. At high speeds they make
//! the load lighter than the trace's, and equally so for every target of equal speed.
//!
//! # Shared prefixes
//! A prompt is the conversation so far, *with the actual responses*, so that the next turn hits an engine's cache of
//! prompt and response. New text has one short word per token ([`text`]). Where the trace has blocks, the words at a
//! position depend only on the block's id, so that conversations that share blocks share text; other text is private to
//! its conversation. A block that is a *response* in one conversation and part of the first prompt of another cannot be
//! shared, because the engine determines the response's text. Each round and target has its own words, so that no run
//! hits another's cache.
//!
//! # Generator overhead
//! One task per active conversation, bodies built ahead of their time, connections kept alive, events parsed in place.
//! The report gives the generator's own processor time.

pub mod answer;
pub mod chat;
pub mod client;
pub mod command;
pub mod plan;
pub mod report;
pub mod run;
pub mod stats;
pub mod target;
pub mod text;

#[cfg(test)]
mod tests;

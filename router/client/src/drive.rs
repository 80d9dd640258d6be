//! A load generator that replays a trace's conversations as chat completions and measures latency as users would.
//!
//! # Open loop, with one exception
//! Turns are sent when the trace says, however slow the responses are: a generator that waits for responses measures a
//! slow system less often just when it is slow (coordinated omission). Every time is measured from the *intended* send
//! time, so a generator that falls behind makes figures worse, not better; how far it fell behind is reported as *send
//! lag*.
//!
//! The exception is a turn whose predecessor is still being answered. It is *held* until that response is complete. Its
//! intended time is then the moment when it can be sent: response complete, body built. Held turns are counted in the
//! report. At high speeds they make the load lighter than the trace's, and equally so for every target of equal speed.
//!
//! # Shared prefixes
//! Prompts must share prefixes as the trace's prompts do. A prompt is the conversation so far, *with the actual
//! responses*, so that the next turn hits an engine's cache of prompt and response. New text has one short word per
//! token ([`text`]). Where the trace has blocks, the words at a position depend only on the block's id, so that two
//! conversations that share blocks share text; without blocks, text is private to its conversation. One limit: a block
//! that is a *response* in one conversation and part of the first prompt of another cannot be shared, because the
//! engine determines the response's text. Each round and target has its own words; otherwise the second run would hit
//! the first one's cache.
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

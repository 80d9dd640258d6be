//! A load generator that replays a trace's conversations as real chat completions, and measures as their users would.
//!
//! # Open loop, with one exception
//! Turns are sent when the trace says, however slow the answers are: a generator that waits for answers measures a
//! slow system less often just when it is slow (coordinated omission). Every time is measured from the *intended* send
//! time, so that a generator that falls behind makes figures worse, not better; how far it fell behind is reported as
//! *send lag*.
//!
//! The exception is that nobody answers an answer that is not there yet. A turn whose predecessor is still being
//! answered is *held* until that answer is complete; from then on its intended time is when it could be sent: answer
//! complete, body built. Held turns are counted in the report. At high speeds they make the load lighter than the
//! trace's, and equally so for every target that answers equally fast.
//!
//! # The right sharing
//! What makes the workload real is which prefixes are the same. A prompt is the conversation so far, *with the answers
//! that really came*, so that an engine's cache of prompt and answer is hit by the next turn. New text is one short
//! word a token ([`text`]). Where the trace has blocks, the words at a position depend on the block's id alone, so that
//! two conversations that share blocks share text; without blocks text is private to its conversation. One limit: a
//! block that holds an *answer* of one conversation and stands in the first prompt of another cannot be shared, for the
//! answer's text is the engine's. Each round and target has its own words, or the second would find the first's cache.
//!
//! # Not the bottleneck
//! One task a conversation that is under way, bodies built ahead of their time, connections kept alive, events parsed
//! in place. The report gives the generator's own processor time.

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

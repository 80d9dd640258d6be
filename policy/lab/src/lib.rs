//! The laboratory: what is needed to compare rules, and not to serve.
//!
//! It reads and generates traces, plays them through [`policy`]'s own code in front of simulated workers, and prints the
//! tables of the documents. The router uses it where it looks ahead: a preview of other weights plays a capture through
//! [`simulate::fleet`].

pub mod args;
pub mod cache;
pub mod progress;
pub mod sim;
pub mod simulate;
pub mod tables;
pub mod terminal;
pub mod trace;
pub mod trace_file;
pub mod trace_source;

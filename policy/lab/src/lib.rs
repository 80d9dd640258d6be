//! The laboratory: it reads and generates traces, plays them through [`policy`]'s code in front of simulated workers,
//! and prints the tables of the documents. The router previews other weights with it, by playing a capture through
//! [`simulate::fleet`].

pub mod args;
pub mod cache;
pub mod convert;
pub mod progress;
pub mod side_by_side;
pub mod sim;
pub mod simulate;
pub mod tables;
pub mod terminal;
pub mod trace;
pub mod trace_file;
pub mod trace_source;

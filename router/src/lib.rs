//! The `tailroute` binary's parts.

// `eprintln!` panics where standard error cannot be written to.
#![warn(clippy::print_stderr)]

pub mod budget;
pub mod cli;
pub mod cmd;
pub mod demo;
pub mod reload;
pub mod serve;

//! The `tailroute` binary's parts.

// `eprintln!` panics where standard error cannot be written to.
#![warn(clippy::print_stderr)]

pub mod admin;
pub mod admission;
pub mod app;
pub mod budget;
pub mod bus;
pub mod cli;
pub mod cmd;
pub mod control;
pub mod decisions;
pub mod demo;
pub mod evidence;
pub mod idle;
pub mod path;
pub mod picker;
pub mod reload;
pub mod serve;
pub mod snapshot;
pub mod supervise;
pub mod upkeep;

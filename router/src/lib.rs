//! The `tailroute` binary's parts.

pub mod admission;
pub mod app;
pub mod body;
pub mod capture;
pub mod cli;
pub mod clock;
pub mod cmd;
pub mod control;
pub mod demo;
pub mod drive;
pub mod error;
pub mod evidence;
pub mod feedback;
pub mod fleet;
pub mod knowledge;
pub mod metrics;
pub mod path;
pub mod reload;
pub mod serve;
pub mod snapshot;
pub mod tls;
pub mod trace_file;
pub mod trace_source;
pub mod upkeep;
pub mod upstream;

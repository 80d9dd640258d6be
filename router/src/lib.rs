//! The `tailroute` binary's parts.

pub mod cli;
pub mod cmd;
pub mod trace_file;
pub mod trace_source;

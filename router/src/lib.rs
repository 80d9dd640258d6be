//! The `tailroute` binary's parts.

pub mod cli;
pub mod cmd;
pub mod drive;
pub mod trace_file;
pub mod trace_source;

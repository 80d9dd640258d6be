//! (skeleton)

pub mod trace_file;

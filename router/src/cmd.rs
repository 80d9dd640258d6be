//! The subcommands: each takes arguments, prints text and returns an exit code.

pub mod check;
pub mod demo;
pub mod key;
pub mod migrate;
pub mod schema;
pub mod serve;

//! The subcommands: each takes arguments, prints text and returns an exit code.

use std::collections::BTreeMap;

pub mod check;
pub mod demo;
pub mod key;
pub mod replay;
pub mod schema;
pub mod serve;

/// Returns the process's environment, without entries that are not UTF-8, which the router never reads.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

//! The subcommands: arguments in, text out, an exit code.

use std::collections::BTreeMap;

pub mod check;
pub mod demo;
pub mod key;
pub mod replay;
pub mod schema;
pub mod serve;

/// The process's environment. Names and values that are no UTF-8 cannot be ours.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

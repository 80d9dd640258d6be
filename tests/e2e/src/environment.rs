//! Settings of long runs, from the environment.

use std::str::FromStr;

/// Returns a number from the environment, or the default.
///
/// # Panics
/// If it is set to something else.
#[must_use]
pub fn setting<T: FromStr>(name: &str, otherwise: T) -> T {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => otherwise,
    }
}

/// Returns whether figures that depend on a quiet machine are checked.
#[must_use]
pub fn is_strict() -> bool {
    std::env::var_os("STRICT").is_some()
}

//! Bounds on external names, such as models named by clients and workers, before they become labels, map keys, log
//! fields, span attributes, or entries of captures and snapshots.
//!
//! A request with an unfit name is refused. Unfit names from workers, replicas and files are replaced by [`OTHER`].

/// Length of the longest name that is kept, in bytes.
pub const MAX_BYTES: usize = 256;
/// Replacement for unfit names.
pub const OTHER: &str = "other";

/// Returns whether a name is short enough and has no control characters.
pub fn is_fit(name: &str) -> bool {
    name.len() <= MAX_BYTES && !name.chars().any(char::is_control)
}

/// Returns the name, or [`OTHER`] if it is unfit.
pub fn kept(name: &str) -> &str {
    if is_fit(name) { name } else { OTHER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_or_not_printable_is_kept_as_other() {
        let longest = "m".repeat(MAX_BYTES);
        for fit in ["", "meta-llama/Llama-3.1-8B", "größe", &longest] {
            assert_eq!(kept(fit), fit);
        }
        for unfit in [&"m".repeat(MAX_BYTES + 1), "a\nb", "a\u{0}", "a\u{85}"] {
            assert_eq!(kept(unfit), OTHER, "{unfit:?}");
        }
    }
}

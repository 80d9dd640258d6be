//! Names that strangers choose: clients' models, workers' lists. Each is bounded before it becomes a label, a key of a map, a
//! field of a log line, a span's attribute, or an entry of a capture or snapshot.
//!
//! A request that names something absurd is refused, so that what is kept of requests is fit already. What workers, other
//! replicas and files name comes under [`OTHER`].

/// Longest name that is kept.
pub const MAX_BYTES: usize = 256;
/// What every name that is not fit is kept as.
pub const OTHER: &str = "other";

/// Whether a name may be kept: it is short enough and has no control characters.
#[must_use]
pub fn is_fit(name: &str) -> bool {
    name.len() <= MAX_BYTES && !name.chars().any(char::is_control)
}

/// The name as it is kept.
#[must_use]
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

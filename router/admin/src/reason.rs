//! The reason for a change, which the body of every change contains. The audit log reads it from the unvalidated body,
//! so that refused changes are recorded with their reason.

use std::borrow::Cow;

use policy::text::acts_on_terminals;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// Longest reason in characters.
pub const MOST: usize = 500;

/// Reason for a change, recorded in the audit log.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Reason(pub String);

impl JsonSchema for Reason {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Reason".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": MOST })
    }
}

/// Returns what is wrong with a reason, beyond what its schema says.
pub(crate) fn wrong(reason: &str) -> Option<&'static str> {
    if !reason.is_empty() && reason.trim().is_empty() {
        Some("is empty; the audit log requires a reason")
    } else if reason.contains(acts_on_terminals) {
        Some("contains control characters; expected one line of text")
    } else {
        None
    }
}

/// Body of a change that takes only a reason.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Because {
    /// Reason for the change, recorded in the audit log.
    #[serde(rename = "reason")]
    _reason: Reason,
}

/// Body of a change that takes a worker out of service.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Forced {
    /// Reason for the change, recorded in the audit log.
    #[serde(rename = "reason")]
    _reason: Reason,
    /// Whether to proceed even if this is the last ready worker; clients then get 503.
    #[serde(default)]
    pub force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_line_of_text() {
        for good in ["its fan is loud", "réparé – 日本", ""] {
            assert_eq!(wrong(good), None, "{good}");
        }
        for bad in [
            " \t",
            "a\nb",
            "a\x1b[2K",
            "a\u{9b}2K",
            "\x7f",
            "\u{202e}dab",
            "a\u{2028}b",
            "a\0",
        ] {
            assert!(wrong(bad).is_some(), "{bad:?}");
        }
    }
}

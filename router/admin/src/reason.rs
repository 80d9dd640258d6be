//! The reason for a change, which the body of every change contains. The audit log reads it from the unvalidated body,
//! so that refused changes are recorded with their reason.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// Longest reason in characters.
pub const MOST: usize = 500;

/// The reason for a change.
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

/// A change that takes nothing else.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Because {
    /// Why, for the audit log, which reads it from the body.
    #[serde(rename = "reason")]
    _reason: Reason,
}

/// A change that takes a worker out of service.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Forced {
    /// Why, for the audit log, which reads it from the body.
    #[serde(rename = "reason")]
    _reason: Reason,
    /// Also if it is the last ready worker; clients then get 503.
    #[serde(default)]
    pub force: bool,
}

//! A response of the router in both forms of output.

use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) json: Value,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn new(json: Value, text: impl FnOnce(&Value) -> String) -> Self {
        let text = text(&json);
        Self { json, text }
    }

    /// Parses and formats a response. A router of another version may send something else, which is printed as JSON.
    pub(super) fn parsed<T: DeserializeOwned>(json: Value, text: impl FnOnce(T) -> String) -> Self {
        let text = T::deserialize(&json).map_or_else(|_| indented(&json), text);
        Self { json, text }
    }
}

pub(super) fn indented(json: &Value) -> String {
    serde_json::to_string_pretty(json).unwrap_or_default()
}

//! A response of the router in both forms of output.

use policy::text::printable;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) json: Value,
    pub(super) text: String,
}

impl CommandOutput {
    /// Formats a response. `text` receives the response with escaped control characters.
    pub(super) fn new(json: Value, text: impl FnOnce(&Value) -> String) -> Self {
        let text = text(&printable_json(&json));
        Self { json, text }
    }

    /// Parses and formats a response. A router of another version may send something else, which is printed as JSON.
    pub(super) fn parsed<T: DeserializeOwned>(json: Value, text: impl FnOnce(T) -> String) -> Self {
        let text = T::deserialize(&printable_json(&json)).map_or_else(|_| indented(&json), text);
        Self { json, text }
    }
}

/// Returns a document whose keys and strings are [`printable`] on one line.
pub(crate) fn printable_json(json: &Value) -> Value {
    match json {
        Value::String(text) => Value::String(printable(text).into_owned()),
        Value::Array(values) => values.iter().map(printable_json).collect(),
        Value::Object(entries) => {
            let entries = entries.iter();
            let entries = entries.map(|(key, value)| (printable(key).into_owned(), printable_json(value)));
            Value::Object(entries.collect())
        }
        other => other.clone(),
    }
}

pub(super) fn indented(json: &Value) -> String {
    serde_json::to_string_pretty(json).unwrap_or_default()
}

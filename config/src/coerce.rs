//! Conversion of text from the environment, flags and queries to the type of a key.

use crate::tree::Value;

/// Parses `text` as the schema type `kind` (`integer`, `number`, `boolean`, `string`); `None` if it does not fit.
pub(crate) fn read_as(kind: &str, text: &str) -> Option<Value> {
    let text = text.trim();
    match kind {
        "string" => Some(Value::Text(text.to_owned())),
        "integer" => text.replace('_', "").parse().ok().map(Value::Integer),
        "number" => text.replace('_', "").parse().ok().map(Value::Float),
        "boolean" => match text {
            "true" | "1" | "yes" | "on" => Some(Value::Boolean(true)),
            "false" | "0" | "no" | "off" => Some(Value::Boolean(false)),
            _ => None,
        },
        _ => None,
    }
}

//! Generated part of the chart's values.schema.json: `$defs`, with `config` as `Config`.

use serde_json::{Map, Value as Json, json};

use crate::schema;

/// Keys that follow from the pod, so that the chart sets them: `templates/_config.tpl`. A section without keys is left
/// out whole.
const CHARTS_OWN: [(&str, &[&str]); 6] = [
    ("Server", &[]),
    ("Admin", &["listen", "tokens_file", "open_metrics"]),
    ("EndpointPicker", &["listen"]),
    ("Admission", &["keys_file"]),
    ("Index", &["snapshot_path"]),
    ("Limits", &["drain_delay_s", "drain_timeout_s"]),
];

/// Returns the chart's schema with the definitions of this build, which are its last key.
pub(super) fn with_definitions(chart: &str) -> String {
    let key = "\n  \"$defs\": ";
    let (own, _) = chart.split_once(key).unwrap();
    let sections = definitions();
    let definitions = object(
        sections
            .iter()
            .map(|(name, schema)| (name.as_str(), schema.clone())),
        4,
    );
    format!("{own}{key}{definitions}\n}}\n")
}

/// Returns the router's definitions, without the keys that the chart sets; `Config` first.
fn definitions() -> Vec<(String, String)> {
    let mut whole = schema();
    let mut sections = whole["$defs"].take();
    let properties = whole["properties"].as_object_mut().unwrap();
    // Defaults are those of docs/configuration.md; the chart's own would stand among them here.
    for section in properties.values_mut() {
        section.as_object_mut().unwrap().remove("default");
    }
    properties["workers"]["minItems"] = json!(1);
    sections["Worker"]["properties"]["url"]["pattern"] = json!("^https?://");
    for (name, keys) in CHARTS_OWN {
        if keys.is_empty() {
            sections.as_object_mut().unwrap().remove(name).unwrap();
            properties.remove(&name.to_lowercase()).unwrap();
        }
        for key in keys {
            let keys = sections[name]["properties"].as_object_mut().unwrap();
            keys.remove(*key).unwrap();
        }
    }
    let config = ["description", "type", "additionalProperties", "properties"].map(|key| (key, &whole[key]));
    let config = object(config.into_iter().map(|(key, value)| (key, pretty(value, 6))), 6);
    let sections: Map<String, Json> = serde_json::from_value(sections).unwrap();
    let sections = sections
        .into_iter()
        .map(|(name, schema)| (name, pretty(&schema, 4)));
    [("Config".to_owned(), config)]
        .into_iter()
        .chain(sections)
        .collect()
}

/// Formats an object of values that are already text, with its keys indented by `indent` spaces.
fn object<'a>(entries: impl Iterator<Item = (&'a str, String)>, indent: usize) -> String {
    let entries: Vec<_> = entries
        .map(|(key, value)| format!("{:indent$}{}: {value}", "", Json::from(key)))
        .collect();
    format!("{{\n{}\n{:less$}}}", entries.join(",\n"), "", less = indent - 2)
}

/// Formats a value whose key is indented by `indent` spaces.
fn pretty(value: &Json, indent: usize) -> String {
    let text = serde_json::to_string_pretty(value).unwrap();
    text.replace('\n', &format!("\n{:indent$}", ""))
}

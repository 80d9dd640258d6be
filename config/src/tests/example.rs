//! The example, the schema and the reference agree with each other and with the defaults.

use std::collections::BTreeSet;

use policy::units::{Millis, Tokens};
use serde_json::Value as Json;

use super::*;
use crate::configuration::File;
use crate::schema::Schema;
use crate::sections::worker::WorkerSection;
use crate::tree::join;

/// Sections whose keys are names chosen by the operator: `NAME` in paths.
const NAMED: [&str; 2] = ["routing.classes", "routing.named"];

/// Collects every key of the schema, as `section.key`, with `[]` for a list's elements.
fn keys_of(schema: Schema<'_>, path: &str, keys: &mut BTreeSet<String>) {
    for (key, property) in schema.properties() {
        let path = join(path, key);
        if let Some(values) = property.values() {
            keys_of(values, &format!("{path}.NAME"), keys);
            continue;
        }
        match property.items() {
            Some(item) if item.kind() == "object" => keys_of(item, &format!("{path}[]"), keys),
            _ if property.kind() == "object" => keys_of(property, &path, keys),
            _ => drop(keys.insert(path)),
        }
    }
}

/// Collects every key of a JSON value, in the same form.
fn keys_written(value: &Json, path: &str, keys: &mut BTreeSet<String>) {
    match value {
        Json::Object(entries) if NAMED.contains(&path) => {
            let path = format!("{path}.NAME");
            entries
                .values()
                .for_each(|value| keys_written(value, &path, keys));
        }
        Json::Object(entries) => {
            entries
                .iter()
                .for_each(|(key, value)| keys_written(value, &join(path, key), keys));
        }
        Json::Array(elements) if elements.iter().any(Json::is_object) => {
            elements
                .iter()
                .for_each(|element| keys_written(element, &format!("{path}[]"), keys));
        }
        _ => drop(keys.insert(path.to_owned())),
    }
}

#[test]
fn a_url_is_all_that_has_to_be_written() {
    let config = load_text(ONE_WORKER).unwrap();
    assert_eq!(config.server.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.workers[0].name, "10.0.0.1:8000");
    assert_eq!(config.workers[0].capacity, Tokens(500_000));
    assert_eq!(config.routing.settings(), policy::route::Settings::default());
    assert_eq!(config.objective.ttft, Millis(500.0));
    assert_eq!(config.routing.utilisation_window, Millis(60_000.0));
    assert_eq!(config.limits.drain_timeout.as_secs(), 130);
}

#[test]
fn the_example_has_every_key_and_no_other() {
    let schema = schema();
    let (mut expected, mut written) = (BTreeSet::new(), BTreeSet::new());
    keys_of(Schema::of(&schema), "", &mut expected);
    keys_written(&toml::from_str::<Json>(EXAMPLE).unwrap(), "", &mut written);
    assert_eq!(written, expected);
}

#[test]
fn the_example_holds_the_defaults_as_it_says() {
    let example: File = toml::from_str(EXAMPLE).unwrap();
    let mut as_default = File {
        workers: Vec::new(),
        ..example.clone()
    };
    as_default.objective.classes.clear();
    as_default.routing.classes.clear();
    as_default.routing.named.clear();
    as_default.discovery.worker.models = None;
    as_default.keys.clear();
    assert_eq!(as_default, File::default());
    for worker in &example.workers {
        let as_default = WorkerSection {
            name: None,
            url: String::new(),
            models: None,
            ..worker.clone()
        };
        assert_eq!(as_default, WorkerSection::default());
    }
    let config = load_text(EXAMPLE).unwrap();
    assert_eq!(config.workers.len(), 2);
    assert_eq!(config.workers[0].models, ["my-model"]);
}

#[test]
fn every_key_of_the_example_is_commented() {
    let lines: Vec<&str> = EXAMPLE.lines().collect();
    for (at, line) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains(" = ") && !line.starts_with('#'))
    {
        // A comment may cover the keys that follow it without a gap.
        let group = lines[..at].iter().rev().take_while(|line| !line.is_empty());
        assert!(
            group.into_iter().any(|line| line.starts_with('#')) || line.starts_with("url"),
            "{line}"
        );
    }
}

#[test]
fn the_schema_speaks_of_every_key() {
    fn described(schema: Schema<'_>, path: &str) {
        for (key, property) in schema.properties() {
            let path = join(path, key);
            assert!(
                property.text("description").is_some(),
                "{path} has no description"
            );
            let inner = property.items().or(property.values());
            described(inner.unwrap_or(property), &path);
        }
    }
    let schema = schema();
    described(Schema::of(&schema), "");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

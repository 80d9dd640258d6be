//! Reads the values of production-stack's chart, and its dynamic configuration.

use serde_json::{Map, Value};

use crate::options::{Command, Program};
use crate::production_stack::CHART;
use crate::source::Source;

use super::{scalar, words};

const DEPLOYMENT: &str = "a property of the Deployment: see the values of the chart in deploy/helm";

/// Reads the values of production-stack's chart, which makes flags of them.
pub(super) fn chart(spec: &Map<String, Value>, values: &Map<String, Value>) -> Command {
    let mut flags = Vec::new();
    for (path, flag) in CHART {
        let mut parts = path.split('.');
        let first = parts.next().and_then(|part| spec.get(part));
        let value = parts.fold(first, |value, part| value?.get(part));
        match value {
            Some(Value::Bool(true)) => flags.push((*flag).to_owned()),
            Some(value) => {
                let value = scalar(value).filter(|text| !text.is_empty() && text != "false");
                flags.extend(value.into_iter().flat_map(|text| [(*flag).to_owned(), text]));
            }
            None => {}
        }
    }
    let default = |flags: &mut Vec<String>, flag: &str, value: &str| {
        if !flags.iter().any(|word| word == flag) {
            flags.extend([flag.to_owned(), value.to_owned()]);
        }
    };
    default(&mut flags, "--port", "8000");
    default(&mut flags, "--service-discovery", "k8s");
    default(&mut flags, "--routing-logic", "roundrobin");
    if flags.iter().any(|word| word == "k8s") {
        flags.extend(["--k8s-label-selector".to_owned(), selector(values)]);
        // The release's namespace, which is the router's own.
        flags.extend(["--k8s-namespace".to_owned(), String::new()]);
    }
    flags.extend(spec.get("extraArgs").map(words).unwrap_or_default());
    let is_flag = |key: &str| CHART.iter().any(|(path, _)| path.split('.').next() == Some(key));
    let beside = spec
        .keys()
        .filter(|key| !is_flag(key) && !matches!(key.as_str(), "enableRouter" | "extraArgs" | "vllmApiKey"));
    Command {
        program: Some(Program::Of(Source::ProductionStack)),
        words: flags,
        place: "routerSpec".to_owned(),
        beside: beside
            .map(|key| (format!("routerSpec.{key}"), DEPLOYMENT))
            .collect(),
        key_variable: has_key(spec, values).then_some("vllmApiKey"),
    }
}

fn has_key(spec: &Map<String, Value>, values: &Map<String, Value>) -> bool {
    let engines = values
        .get("servingEngineSpec")
        .and_then(|spec| spec.get("vllmApiKey"));
    let is_set = |key: &Value| match key {
        Value::String(text) => !text.is_empty(),
        Value::Object(secret) => secret
            .get("secretName")
            .and_then(Value::as_str)
            .is_some_and(|name| !name.is_empty()),
        _ => false,
    };
    spec.get("vllmApiKey").is_some_and(is_set) || engines.is_some_and(is_set)
}

fn selector(values: &Map<String, Value>) -> String {
    let labels = values
        .get("servingEngineSpec")
        .and_then(|spec| spec.get("labels"));
    match labels.and_then(Value::as_object) {
        Some(labels) => {
            let pairs = labels
                .iter()
                .filter_map(|(key, value)| Some(format!("{key}={}", scalar(value)?)));
            pairs.collect::<Vec<_>>().join(",")
        }
        None => "environment=test,release=test".to_owned(),
    }
}

/// Reads a dynamic configuration, whose keys are flags with underscores.
pub(super) fn dynamic(map: &Map<String, Value>, place: &str) -> Command {
    let mut flags = Vec::new();
    for (key, value) in map {
        let flag = format!("--{}", key.replace('_', "-"));
        match value {
            Value::Bool(true) => flags.push(flag),
            Value::Array(_) => flags.extend([flag, words(value).join(",")]),
            _ => flags.extend(
                scalar(value)
                    .filter(|text| text != "false")
                    .into_iter()
                    .flat_map(|text| [flag.clone(), text]),
            ),
        }
    }
    Command {
        program: Some(Program::Of(Source::ProductionStack)),
        words: flags,
        place: place.to_owned(),
        ..Command::default()
    }
}

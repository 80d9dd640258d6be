//! Settings of every worker found by Kubernetes or DNS: `[discovery.worker]`.

use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value as Json;

use crate::problem::{Origin, Problem, Problems};
use crate::schema::Schema;
use crate::sections::checker::Checker;
use crate::sections::worker::{self, Worker, WorkerSection};
use crate::tree::{Node, Value};
use crate::validate::{nearest, validate};

/// Keys of `[[workers]]` that differ for each worker.
const EACH_ITS_OWN: [&str; 3] = ["name", "url", "kv_events_replay"];

/// Keys of `[[workers]]` that annotations may not set: annotating a pod must not determine which files are read, or
/// which other hosts the router connects to.
const NOT_ANNOTATED: [&str; 6] = [
    "api_key_file",
    "calibration",
    "kv_events",
    "kv_events_replay",
    "name",
    "url",
];

const SECTION: &str = "discovery.worker";

/// Settings of the workers from Kubernetes and DNS, which have none of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    worker: WorkerSection,
    keys: Vec<String>,
}

impl Template {
    /// Returns the worker of this name and url, once for each rank. `changes` overrides keys of `[[workers]]`, spelled
    /// with dashes; `prefix` precedes them in problems. Fails with all problems of the settings.
    pub fn workers(
        &self,
        name: &str,
        url: &str,
        changes: &BTreeMap<String, String>,
        prefix: &str,
    ) -> Result<Vec<Worker>, Problems> {
        let mut problems = Problems::default();
        let mut table = toml::Table::try_from(&self.worker).unwrap_or_default();
        let mut keys = self.keys.clone();
        for (key, value) in annotated(changes, prefix, &mut problems) {
            keys.push(key.clone());
            table.insert(key, value);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        table.insert("name".to_owned(), name.into());
        table.insert("url".to_owned(), url.into());
        let written = table.try_into::<WorkerSection>();
        let written = written.map_err(|error| one(prefix, error.message()))?;
        let origins = keys
            .into_iter()
            .map(|key| (format!("workers[0].{key}"), Origin::Nowhere));
        let mut checker = Checker {
            origins: &origins.collect(),
            problems: &mut problems,
        };
        let workers = worker::check_all(vec![written], &mut checker);
        if problems.is_empty() {
            return Ok(workers);
        }
        let mut told = Problems::default();
        for problem in &problems {
            told.push(Problem {
                path: said_at(&problem.path, changes, prefix),
                ..problem.clone()
            });
        }
        Err(told)
    }
}

/// Returns the path of a key where it was set: by an annotation, or in the section.
fn said_at(path: &str, changes: &BTreeMap<String, String>, prefix: &str) -> String {
    let key = path.strip_prefix("workers[0].").unwrap_or(path);
    let name = key.replace('_', "-");
    if changes.contains_key(&name) {
        format!("{prefix}{name}")
    } else {
        format!("{SECTION}.{key}")
    }
}

fn one(path: &str, what: &str) -> Problems {
    let mut problems = Problems::default();
    problems.push(Problem {
        origin: Origin::Nowhere,
        path: path.to_owned(),
        what: what.to_owned(),
        hint: None,
    });
    problems
}

fn annotated(
    changes: &BTreeMap<String, String>,
    prefix: &str,
    problems: &mut Problems,
) -> Vec<(String, toml::Value)> {
    let schema = crate::schema::schema_of::<WorkerSection>();
    let schema = Schema::of(&schema);
    let allowed = |key: &str| !NOT_ANNOTATED.contains(&key);
    let mut read = Vec::new();
    for (name, text) in changes {
        let (key, path) = (name.replace('-', "_"), format!("{prefix}{name}"));
        let Some(property) = schema.property(&key).filter(|_| allowed(&key)) else {
            let names = schema
                .properties()
                .map(|(name, _)| name)
                .filter(|name| allowed(name));
            let hint = nearest(&key, names)
                .map(|name| format!("did you mean `{prefix}{}`?", name.replace('_', "-")));
            problems.push(Problem {
                origin: Origin::Nowhere,
                path: crate::problem::shortened(path),
                what: "not an annotation that is read".to_owned(),
                hint,
            });
            continue;
        };
        let leaf = |text: &str| Node {
            origin: Origin::Query { name: path.clone() },
            value: Value::Text(text.trim().to_owned()),
        };
        let mut node = leaf(text);
        if property.kind() == "array" {
            let elements = text.split(',').filter(|text| !text.trim().is_empty());
            node.value = Value::List(elements.map(leaf).collect());
        }
        let mut wrong = Problems::default();
        if validate(&mut node, property, &path, &mut wrong) {
            read.push((key, node.to_toml()));
        }
        for problem in &wrong {
            problems.push(Problem {
                origin: Origin::Nowhere,
                ..problem.clone()
            });
        }
    }
    read
}

pub(crate) fn schema(generator: &mut SchemaGenerator) -> schemars::Schema {
    let mut schema = WorkerSection::json_schema(generator).to_value();
    if let Some(properties) = schema.pointer_mut("/properties").and_then(Json::as_object_mut) {
        properties.retain(|key, _| !EACH_ITS_OWN.contains(&key.as_str()));
    }
    if let Some(entries) = schema.as_object_mut() {
        entries.remove("required");
        entries.remove("default");
        let description = "Settings of every worker that Kubernetes or DNS names: the keys of `[[workers]]`, except those that \
                           differ between workers.";
        entries.insert("description".to_owned(), Json::from(description));
        entries.insert("additionalProperties".to_owned(), Json::from(false));
    }
    schemars::Schema::try_from(schema).unwrap_or_default()
}

/// Checks the common settings on a placeholder worker.
pub(crate) fn template(worker: WorkerSection, checker: &mut Checker<'_>) -> Template {
    let prefix = format!("{SECTION}.");
    let keys = checker.origins.keys();
    let keys = keys
        .filter_map(|key| key.strip_prefix(&prefix))
        .map(str::to_owned);
    let template = Template {
        keys: keys.collect(),
        worker,
    };
    if !matches!(template.worker.kv_events.as_str(), "auto" | "off") {
        let what = format!("expected auto or off, found {:?}", template.worker.kv_events);
        let hint = "a publisher belongs to one worker: use auto, or list the workers in discovery.file";
        checker.report(&format!("{prefix}kv_events"), what, Some(hint.to_owned()));
        return template;
    }
    if let Err(found) = template.workers("a", "http://a:1", &BTreeMap::new(), "") {
        for problem in &found {
            checker.report(&problem.path, problem.what.clone(), problem.hint.clone());
        }
    }
    template
}

//! A worker that is added while the router serves.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json};

use crate::problem::{Origin, Problem, Problems};
use crate::sections::{self, Checker, Worker, WorkerSection};

/// Keys of `[[workers]]` that are only allowed in the file: API callers must not determine which files are read, and
/// each rank is a separate worker.
const NOT_HERE: [&str; 3] = ["api_key_file", "calibration", "ranks"];

/// A worker as the admin API accepts it: `[[workers]]` with its ranges and defaults, without the keys that name files.
#[derive(Clone, Debug)]
pub struct WorkerDocument {
    worker: WorkerSection,
    keys: Vec<String>,
}

impl WorkerDocument {
    /// Checks the document. Fails with all problems and their keys, never with none.
    pub fn check(self) -> Result<Worker, Problems> {
        let section = "workers[0].";
        let written = self
            .keys
            .iter()
            .map(|key| (format!("{section}{key}"), Origin::Nowhere));
        let mut found = Problems::default();
        let worker = sections::worker(
            self.worker,
            &mut Checker {
                origins: &BTreeMap::from_iter(written),
                problems: &mut found,
            },
        );
        if let (Some(worker), true) = (worker, found.is_empty()) {
            return Ok(worker);
        }
        let mut problems = Problems::default();
        for problem in found.iter() {
            let key = problem.path.strip_prefix(section).unwrap_or(&problem.path);
            problems.push(Problem {
                path: format!("worker.{key}"),
                ..problem.clone()
            });
        }
        Err(problems)
    }
}

impl<'de> Deserialize<'de> for WorkerDocument {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let table = toml::Table::deserialize(from)?;
        let keys = table.keys().cloned().collect();
        let worker = WorkerSection::deserialize(table).map_err(|error| D::Error::custom(error.message()))?;
        Ok(Self { worker, keys })
    }
}

impl JsonSchema for WorkerDocument {
    fn schema_name() -> Cow<'static, str> {
        "WorkerDocument".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = WorkerSection::json_schema(generator).to_value();
        if let Some(properties) = schema.pointer_mut("/properties").and_then(Json::as_object_mut) {
            properties.retain(|key, _| !NOT_HERE.contains(&key.as_str()));
        }
        if let Some(entries) = schema.as_object_mut() {
            entries.remove("default");
            entries.insert("additionalProperties".to_owned(), json!(false));
        }
        Schema::try_from(schema).unwrap_or_default()
    }
}

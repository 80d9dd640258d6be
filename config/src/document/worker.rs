//! A worker that the admin API adds while the router serves.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json};

use crate::problem::{Origin, Problem, Problems};
use crate::sections::checker::Checker;
use crate::sections::worker::{self, KvEvents, Worker, WorkerSection};

/// Keys of `[[workers]]` that are only allowed in the file: API callers must not determine which files are read, and
/// each rank is a separate worker.
const NOT_HERE: [&str; 3] = ["api_key_file", "calibration", "ranks"];

/// A worker as the admin API accepts it: `[[workers]]` with its ranges and defaults, without the keys that name files
/// and without `ranks`.
#[derive(Clone, Debug)]
pub struct WorkerDocument {
    worker: WorkerSection,
    keys: Vec<String>,
}

impl Worker {
    /// Returns the document that makes the same worker, without its API key, which is in a file, and its rank.
    #[must_use]
    pub fn document(&self) -> Json {
        let mut document = json!({
            "name": self.name,
            "url": self.url.to_string(),
            "block_size_tokens": self.block_size,
            "cache_policy": self.cache_policy,
            "dialect": self.dialect,
            "priority": self.priority,
        });
        if self.cost_is_known {
            document["alpha_ms_per_token"] = json!(self.cost.alpha_ms_per_token);
            document["beta_ms"] = json!(self.cost.beta_ms);
            document["gamma_ms_per_token2"] = json!(self.cost.gamma_ms_per_token2);
            document["floor_ms"] = json!(self.cost.floor_ms);
        }
        if self.capacity_is_known {
            document["capacity_tokens"] = json!(self.capacity);
        }
        if !self.models.is_empty() {
            document["models"] = json!(self.models);
        }
        match &self.kv_events {
            KvEvents::Auto => {}
            KvEvents::Off => document["kv_events"] = json!("off"),
            KvEvents::At { endpoint, replay } => {
                document["kv_events"] = json!(endpoint);
                document["kv_events_replay"] = json!(replay.as_deref().unwrap_or_default());
            }
        }
        document
    }
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
        let mut checker = Checker {
            origins: &BTreeMap::from_iter(written),
            problems: &mut found,
        };
        let worker = worker::check_one(self.worker, &mut checker);
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

#[cfg(test)]
mod tests {
    use super::super::read_document;
    use super::*;

    fn worker(document: &Json) -> Worker {
        read_document::<WorkerDocument>(document)
            .unwrap()
            .check()
            .unwrap()
    }

    #[test]
    fn a_worker_is_the_same_after_it_was_written_as_a_document() {
        for document in [
            json!({ "url": "http://10.0.0.7:8000" }),
            json!({ "url": "https://w.example/base", "name": "blue-7", "models": ["a", "b"] }),
            json!({
                "url": "http://10.0.0.7:8000", "alpha_ms_per_token": 0.3, "capacity_tokens": 480_000,
                "block_size_tokens": 32, "cache_policy": "lru", "dialect": "none", "priority": "lowest_first",
                "kv_events": "tcp://10.0.0.7:5557", "kv_events_replay": "tcp://10.0.0.7:5558",
            }),
            json!({ "url": "http://10.0.0.7:8000", "kv_events": "off", "floor_ms": 18 }),
            json!({ "url": "http://10.0.0.7:8000", "kv_events": "tcp://10.0.0.7:5557" }),
        ] {
            let first = worker(&document);
            assert_eq!(worker(&first.document()), first, "{document}");
        }
    }
}

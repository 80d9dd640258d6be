//! A policy revision in the bucket: JSON that can be read with the NATS tools.

use std::sync::Arc;

use ::policy::route::Settings;
use ::policy::units::Millis;
use config::PolicyDocument;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Bus;
use crate::bucket::{HIGHEST_NUMBER, LONGEST_BYTES};
use operator::revisions::{Adopted, Change, Pending, Revision, Source};
use operator::unix_ms;
use state::State;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Document {
    /// Id of this history of revisions. A recreated bucket gets another one.
    lineage: u32,
    revision: u64,
    settings: Value,
    since_unix_ms: u64,
    by: String,
    replica: String,
    reason: Option<String>,
    source: Source,
    #[serde(skip_serializing_if = "Option::is_none")]
    revert: Option<Revert>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Revert {
    due_unix_ms: u64,
    to_revision: u64,
    to: Value,
}

impl Document {
    /// Returns the current policy as the first document of a bucket.
    pub(super) fn first(state: &State, bus: &Bus) -> Self {
        let (now, pending) = state.policy.now();
        let change = Change {
            settings: now.settings.clone(),
            by: now.by.clone(),
            reason: now.reason.clone(),
            source: now.source,
            revert_after: (pending.as_ref()).map(|pending| pending.due - state.clock.now()),
        };
        let mut document = Self::next(state, bus, &change, &now, pending.as_ref());
        document.revision = now.revision;
        if state.policy.is_shared() {
            // The old bucket was lost, and this is a new history.
            document.lineage = document.lineage.wrapping_add(1);
        }
        document
    }

    pub(super) fn next(
        state: &State,
        bus: &Bus,
        change: &Change,
        before: &Arc<Revision>,
        pending: Option<&Pending>,
    ) -> Self {
        let now = unix_ms();
        let lasting = pending.map_or(before, |pending| &pending.to);
        Self {
            lineage: state.policy.lineage(),
            revision: before.revision + 1,
            settings: value(&change.settings),
            since_unix_ms: now,
            by: change.by.clone(),
            replica: bus.name.clone(),
            reason: change.reason.clone(),
            source: change.source,
            revert: change.revert_after.map(|after| Revert {
                due_unix_ms: now + after.0.max(0.0) as u64,
                to_revision: lasting.revision,
                to: value(&lasting.settings),
            }),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses a document written by another replica. Fails if it is invalid.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > LONGEST_BYTES {
            return Err(format!("{} bytes long", bytes.len()));
        }
        let document: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let back_to = document.revert.as_ref().map_or(0, |revert| revert.to_revision);
        let highest = document.revision.max(back_to);
        if highest > HIGHEST_NUMBER {
            return Err(format!("revision {highest}"));
        }
        Ok(document)
    }

    /// Converts the document into a revision for this replica. Fails if its settings are invalid.
    pub(super) fn adopted(&self, state: &State) -> Result<Adopted, String> {
        let revision = Revision {
            revision: self.revision,
            settings: settings(&self.settings)?,
            since_unix_ms: self.since_unix_ms,
            by: self.by.clone(),
            reason: self.reason.clone(),
            source: self.source,
            replica: Some(self.replica.clone()),
            temporary: self.revert.is_some(),
        };
        let pending = self.revert.as_ref().map(|revert| {
            let left_ms = revert.due_unix_ms as f64 - unix_ms() as f64;
            let to = Revision {
                revision: revert.to_revision,
                settings: settings(&revert.to)?,
                temporary: false,
                ..revision.clone()
            };
            Ok::<_, String>(Pending {
                due: state.clock.now() + Millis(left_ms),
                to: Arc::new(to),
            })
        });
        Ok(Adopted {
            lineage: self.lineage,
            earlier: Vec::new(),
            pending: pending.transpose()?,
            revision,
        })
    }
}

fn value(settings: &Settings) -> Value {
    serde_json::to_value(settings).unwrap_or_default()
}

/// Parses another replica's settings. It has checked the classes; one that is unknown here has no effect until it is
/// configured. The bucket outlives releases, so missing fields get their defaults and unknown ones are ignored.
fn settings(document: &Value) -> Result<Settings, String> {
    let document = completed(document, &value(&Settings::default()));
    let document: PolicyDocument = config::read_document(&document).map_err(|error| error.to_string())?;
    Ok(document.settings_for_any_classes())
}

/// Fills missing fields from `fields` and drops unknown ones. A table that is empty there has user-defined keys.
fn completed(document: &Value, fields: &Value) -> Value {
    match (document, fields) {
        (Value::Object(document), Value::Object(fields)) if !fields.is_empty() => {
            let field = |(key, other): (&String, &Value)| {
                let own = document.get(key).map(|own| completed(own, other));
                (key.clone(), own.unwrap_or_else(|| other.clone()))
            };
            Value::Object(fields.iter().map(field).collect())
        }
        _ => document.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(revision: u64, weights: &Value) -> Vec<u8> {
        let document = serde_json::json!({
            "lineage": 1, "revision": revision, "settings": { "weights": weights }, "since_unix_ms": u64::MAX, "by": "b",
            "replica": "r", "reason": null, "source": "put",
        });
        document.to_string().into_bytes()
    }

    #[test]
    fn a_revision_number_without_a_successor_is_rejected() {
        let none = serde_json::json!({});
        assert!(Document::read(&written(HIGHEST_NUMBER, &none)).is_ok());
        assert!(Document::read(&written(u64::MAX, &none)).is_err());
        for garbage in [&b"\xff"[..], b"[]", b"{}", &vec![b' '; LONGEST_BYTES + 1]] {
            assert!(Document::read(garbage).is_err());
        }
    }

    #[test]
    fn invalid_settings_are_rejected_as_on_the_admin_port() {
        for weight in [
            serde_json::json!(-1.0),
            serde_json::json!(1e300),
            serde_json::json!("x"),
        ] {
            let document = written(1, &serde_json::json!({ "load": weight }));
            let document = Document::read(&document).unwrap();
            assert!(settings(&document.settings).is_err(), "{weight}");
        }
    }

    #[test]
    fn documents_of_older_and_newer_replicas_can_be_read() {
        let mut written = Settings::default();
        written.weights.locality = 0.25;
        let mut document = value(&written);
        assert_eq!(settings(&document).unwrap(), written);
        let fields = document.as_object_mut().unwrap();
        fields.insert("of_tomorrow".to_owned(), Value::from(1));
        fields.remove("named").unwrap();
        let weights = fields.get_mut("weights").and_then(Value::as_object_mut).unwrap();
        weights.remove("load").unwrap();
        weights.insert("of_tomorrow".to_owned(), Value::from(1));
        assert_eq!(settings(&document).unwrap(), written);
        assert!(settings(&Value::Null).is_err());
    }
}

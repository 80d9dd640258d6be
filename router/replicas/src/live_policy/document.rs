//! A policy revision in the bucket: JSON that can be read with the NATS tools.

use std::sync::Arc;

use ::policy::units::Millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Bus;
use crate::bucket::{HIGHEST_NUMBER, LONGEST_BYTES};
use operator::revisions::keys::{differing, settings_of};
use operator::revisions::timers::{self, WrittenTimer};
use operator::revisions::{Adopted, Change, Revision, RevisionSource, Timer, Timers};
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
    source: RevisionSource,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    temporary: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    timers: Vec<WrittenTimer>,
    /// End of a temporary change as a whole, as replicas without timers of single keys write it.
    #[serde(default, skip_serializing)]
    revert: Option<Revert>,
}

#[derive(Debug, Deserialize)]
struct Revert {
    due_unix_ms: u64,
    to_revision: u64,
    to: Value,
}

impl Document {
    /// Returns the current policy as the first document of a bucket.
    pub(super) fn first(state: &State, bus: &Bus) -> Self {
        let (now, timers) = state.routing.policy.now();
        let mut document = Self::of(state, bus, &now, &timers);
        if state.routing.policy.is_shared() {
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
        timers: &Timers,
    ) -> Self {
        let timers = timers::after(timers, state.routing.clock.now(), before, change);
        let next = Revision {
            revision: before.revision + 1,
            settings: change.settings.clone(),
            since_unix_ms: unix_ms(),
            by: change.by.clone(),
            reason: change.reason.clone(),
            source: change.source,
            replica: None,
            temporary: change.revert_after.is_some(),
            temporary_keys: timers::values(&timers),
        };
        Self::of(state, bus, &next, &timers)
    }

    fn of(state: &State, bus: &Bus, revision: &Revision, timers: &Timers) -> Self {
        Self {
            lineage: state.routing.policy.lineage(),
            revision: revision.revision,
            settings: serde_json::to_value(&revision.settings).unwrap_or_default(),
            since_unix_ms: revision.since_unix_ms,
            by: revision.by.clone(),
            replica: bus.name.clone(),
            reason: revision.reason.clone(),
            source: revision.source,
            temporary: revision.temporary,
            timers: timers::written(timers, state.routing.clock.now(), unix_ms()),
            revert: None,
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
        let settings = settings_of(&self.settings)?;
        let now = state.routing.clock.now();
        let mut timers = timers::read(&self.timers, now, unix_ms());
        if let Some(revert) = &self.revert {
            let lasting = differing(&settings, &settings_of(&revert.to)?);
            let due = now + Millis(revert.due_unix_ms as f64 - unix_ms() as f64);
            let timer = |(key, back_to)| {
                (
                    key,
                    Timer {
                        due,
                        back_to,
                        since: self.revision,
                    },
                )
            };
            timers.extend(lasting.into_iter().map(timer));
        }
        let revision = Revision {
            revision: self.revision,
            settings,
            since_unix_ms: self.since_unix_ms,
            by: self.by.clone(),
            reason: self.reason.clone(),
            source: self.source,
            replica: Some(self.replica.clone()),
            temporary: self.temporary || self.revert.is_some(),
            temporary_keys: timers::values(&timers),
        };
        Ok(Adopted {
            lineage: self.lineage,
            earlier: Vec::new(),
            revision,
            timers,
        })
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
}

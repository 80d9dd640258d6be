//! Decisions of operators, as they outlive a process (docs/operating.md, "What survives a restart").
//!
//! A [snapshot](crate::snapshot) has them as one JSON document, in a file or handed over to the next process. Each
//! member is checked as the admin API checks it, and one that cannot be used is left out and logged. Members of workers
//! that discovery has not found yet are kept until they join ([`Pending`]).

mod workers;

use std::collections::BTreeMap;

use operator::audit::AuditRecord;
use operator::revisions::keys::settings_of;
use operator::shadow::Shadow;
use operator::unix_ms;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telemetry::logs;
use tracing::{info, warn};

pub(crate) use self::workers::KeptWorker;
use crate::Routing;
use crate::State;
use crate::learned::KeptLearning;

/// Most workers named in a line of the log, and most decisions described by [`State::decided`].
const NAMED: usize = 20;

/// Decisions of operators, as one JSON document.
#[derive(Debug, Default, Serialize)]
struct OperatorDecisions {
    policy: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<SavedShadow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_level: Option<LogLevel>,
    /// Digests of the configured workers, by name. An entry that has changed since takes precedence over decisions
    /// about it.
    configured: BTreeMap<String, String>,
    /// Workers added by hand, as the admin API accepts them.
    added: Vec<Value>,
    /// Workers of the configuration that were removed by hand.
    removed: Vec<String>,
    /// Holds, overrides of α and calibrations, by the worker's name.
    workers: BTreeMap<String, KeptWorker>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedShadow {
    settings: Value,
    since_unix_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct LogLevel {
    configured: String,
    level: String,
}

/// Kept state of workers that are not in the fleet yet, by name.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    decided: BTreeMap<String, KeptWorker>,
    pub(crate) learned: BTreeMap<String, KeptLearning>,
    /// Time at which `learned` was written, in milliseconds since 1970.
    pub(crate) taken_ms: u64,
}

/// Encodes the decisions as JSON.
pub(crate) fn taken(state: &State) -> Vec<u8> {
    let policy = state.routing.policy.kept(state.routing.clock.now(), unix_ms());
    let shadow = state.routing.shadow.load();
    let decisions = OperatorDecisions {
        policy: serde_json::to_value(policy).unwrap_or_default(),
        shadow: shadow.as_ref().map(|shadow| SavedShadow {
            settings: serde_json::to_value(&shadow.settings).unwrap_or_default(),
            since_unix_ms: shadow.since_unix_ms,
        }),
        log_level: logs::level_override().map(|(configured, level)| LogLevel { configured, level }),
        configured: workers::configured(&state.routing),
        added: workers::added(&state.routing),
        removed: workers::removed(&state.routing),
        workers: workers::kept(state),
    };
    serde_json::to_vec(&decisions).unwrap_or_default()
}

/// Restores decisions before requests are served. Invalid ones are logged and left out. Returns the change of the
/// policy by the configuration, for the audit log.
pub(crate) fn restore(state: &State, document: &[u8]) -> Option<AuditRecord> {
    let Ok(Value::Object(mut members)) = serde_json::from_slice(document) else {
        warn!("decisions of the earlier process are not restored: they are no document");
        return None;
    };
    let mut member = |name: &str| members.remove(name).unwrap_or_default();
    let policy = member("policy");
    let changed = if policy.is_null() {
        None
    } else {
        restore_policy(state, policy)
    };
    if let Some(shadow) = read::<Option<SavedShadow>>("shadow", member("shadow")).flatten() {
        restore_shadow(&state.routing, &shadow);
    }
    if let Some(level) = read::<Option<LogLevel>>("log_level", member("log_level")).flatten() {
        restore_level(&state.routing, &level);
    }
    workers::restore(state, &mut member);
    changed
}

/// Reads a member of the document. Returns the default if it is absent; logs and returns `None` if it is invalid.
fn read<T: DeserializeOwned + Default>(name: &str, member: Value) -> Option<T> {
    if member.is_null() {
        return Some(T::default());
    }
    let read = serde_json::from_value(member);
    read.inspect_err(|error| warn!(member = name, %error, "not restored: it cannot be read"))
        .ok()
}

fn restore_policy(state: &State, policy: Value) -> Option<AuditRecord> {
    let restored = serde_json::from_value(policy)
        .map_err(|error| error.to_string())
        .and_then(|policy| {
            state
                .routing
                .policy
                .restore(policy, state.routing.clock.now(), unix_ms())
        });
    let restored = match restored {
        Ok(restored) => restored,
        Err(error) => {
            warn!(
                error,
                "policy and its history are not restored: [routing] is in force"
            );
            return None;
        }
    };
    info!(
        revision = restored.revision,
        left_out = restored.left_out,
        "policy and its history restored"
    );
    if !restored.knows_configured {
        warn!("changes of [routing] since the earlier process are not applied: what it had read is unknown");
    }
    // A file that was changed in between has the last word on the keys that changed.
    let (before, after) = state.configure_policy(state.config.routing.settings())?;
    Some(AuditRecord::by_router("config.reload", &before, &after))
}

fn restore_shadow(routing: &Routing, shadow: &SavedShadow) {
    match settings_of(&shadow.settings) {
        Ok(settings) => {
            let shadow = Shadow::continued(settings, shadow.since_unix_ms);
            routing.shadow.store(Some(shadow.into()));
            info!("shadow policy restored; its counts begin anew");
        }
        Err(error) => warn!(error, "the shadow policy is not restored"),
    }
}

fn restore_level(routing: &Routing, kept: &LogLevel) {
    if kept.configured != routing.config.log.level {
        info!(
            level = kept.level,
            "log level not restored: log.level of the configuration has changed"
        );
        return;
    }
    // The log may not be the router's own.
    if let Err(error) = logs::set_level(&kept.level) {
        warn!(level = kept.level, %error, "log level not restored");
    }
}

impl State {
    /// Applies what was kept of a worker that has just joined.
    pub(crate) fn claim_pending(&self, worker: &fleet::Worker) {
        let (decided, learned, taken_ms) = {
            let mut pending = self.operations.pending.lock();
            let decided = pending.decided.remove(worker.name());
            let learned = pending.learned.remove(worker.name());
            (decided, learned, pending.taken_ms)
        };
        if let Some(decided) = decided {
            decided.apply(self, worker);
        }
        if let Some(learned) = learned {
            learned.apply(self, worker, taken_ms);
            self.routing.publish_costs();
        }
    }

    /// Drops what was kept of workers that have not joined.
    pub(crate) fn drop_pending(&self) {
        let (decided, learned) = {
            let mut pending = self.operations.pending.lock();
            (
                std::mem::take(&mut pending.decided),
                std::mem::take(&mut pending.learned),
            )
        };
        if !decided.is_empty() {
            let what: Vec<String> = decided
                .iter()
                .take(NAMED)
                .map(|(name, kept)| format!("{name} ({})", kept.in_words()))
                .collect();
            warn!(
                count = decided.len(),
                workers = what.join(", "),
                "decisions dropped: no source has these workers"
            );
        }
        if !learned.is_empty() {
            let names: Vec<&str> = learned.keys().take(NAMED).map(String::as_str).collect();
            info!(
                count = learned.len(),
                workers = names.join(", "),
                "learned costs dropped: no source has these workers"
            );
        }
    }

    /// Describes the decisions that would be lost with this process, at most 20.
    #[must_use]
    pub fn decided(&self) -> Vec<String> {
        let (now, timers) = self.routing.policy.now();
        let mut words = Vec::new();
        if now.settings != self.routing.policy.configured() || !timers.is_empty() {
            words.push(format!("policy revision {} by {}", now.revision, now.by));
        }
        let added = workers::added(&self.routing);
        words.extend(
            added
                .iter()
                .map(|added| format!("added {}", added["name"].as_str().unwrap_or_default())),
        );
        words.extend(
            workers::removed(&self.routing)
                .into_iter()
                .map(|name| format!("removed {name}")),
        );
        let kept = workers::kept(self);
        words.extend(
            kept.iter()
                .map(|(name, kept)| format!("{name} {}", kept.in_words())),
        );
        if self.routing.shadow.load().is_some() {
            words.push("shadow policy".to_owned());
        }
        if let Some((_, level)) = logs::level_override() {
            words.push(format!("log level {level}"));
        }
        words.truncate(NAMED);
        words
    }
}

#[cfg(test)]
mod tests;

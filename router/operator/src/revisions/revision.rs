//! A revision of the policy, and the change that makes one.

use std::collections::BTreeSet;
use std::sync::Arc;

use policy::route::Settings;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Timers;
use super::keys::{self, KeyValues};

/// The part of a revision that a routing decision reads.
#[derive(Clone, Debug, PartialEq)]
pub struct InForce {
    pub revision: u64,
    pub settings: Settings,
}

/// A policy that is or was in force.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Revision {
    /// Number of the revision, from 1. A restart with a snapshot, a hand-over and replicas that share a bucket continue
    /// it.
    pub revision: u64,
    /// Policy and all of its weights.
    #[schemars(with = "config::PolicyDocument")]
    pub settings: Settings,
    /// Time at which the revision came into force, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Caller that applied the revision: a token's name, or `router`.
    pub by: String,
    /// Reason given by the caller; `null` without one.
    pub reason: Option<String>,
    /// Kind of change that created the revision.
    pub source: RevisionSource,
    /// Replica that applied the revision; absent unless replicas share their policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Whether the change was made for a limited time; absent if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(default)]
    pub temporary: bool,
    /// Keys whose values are temporary in this revision, as JSON pointers into `settings`, with the values that return
    /// (`null` for a key that is absent then); absent if there are none.
    #[serde(skip_serializing_if = "KeyValues::is_empty")]
    #[schemars(default)]
    pub temporary_keys: KeyValues,
}

impl Revision {
    /// Returns the settings without temporary values.
    #[must_use]
    pub fn lasting(&self) -> Settings {
        keys::with(&self.settings, &self.temporary_keys).unwrap_or_else(|_| self.settings.clone())
    }
}

/// Kind of change that created a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RevisionSource {
    /// The configuration at the router's start.
    Start,
    /// The admin API.
    Put,
    /// A rollback to an earlier revision.
    Rollback,
    /// The end of a temporary change.
    Revert,
    /// A changed `[routing]` section in the configuration.
    Reload,
}

impl RevisionSource {
    /// Returns the name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Put => "put",
            Self::Rollback => "rollback",
            Self::Revert => "revert",
            Self::Reload => "reload",
        }
    }
}

/// A change to be applied.
#[derive(Clone, Debug)]
pub struct Change {
    pub settings: Settings,
    pub by: String,
    /// Reason given by the caller; `null` without one.
    pub reason: Option<String>,
    /// Kind of change that created the revision.
    pub source: RevisionSource,
    /// Time after which the changed values return; `None` for a lasting change.
    pub revert_after: Option<Millis>,
    /// Keys that the change sets even where their values stay as they are.
    pub sets: BTreeSet<String>,
}

impl Change {
    /// Returns the change for keys of `[routing]` that have changed.
    pub(super) fn configured(before: &Settings, values: &KeyValues) -> Self {
        Self {
            // The values come from checked settings.
            settings: keys::with(before, values).unwrap_or_else(|_| before.clone()),
            sets: values.keys().cloned().collect(),
            by: "router".to_owned(),
            reason: Some(format!(
                "[routing] of the configuration has changed: {}",
                keys::in_words(values.keys())
            )),
            source: RevisionSource::Reload,
            revert_after: None,
        }
    }
}

/// A change that was applied, with the state at that time; others may have followed.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChange {
    pub before: Arc<Revision>,
    pub after: Arc<Revision>,
    /// Temporary values in force after the change.
    pub timers: Timers,
}

/// Error that another revision than the expected one is in force, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {0} is now in force")]
pub struct Stale(pub u64);

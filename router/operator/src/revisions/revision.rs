//! A revision of the policy, and the change that makes one.

use std::collections::BTreeSet;
use std::sync::Arc;

use policy::route::Settings;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Timers;
use super::keys::{self, Values};

/// The part of a revision that a routing decision reads.
#[derive(Clone, Debug, PartialEq)]
pub struct InForce {
    /// Number of the revision.
    pub revision: u64,
    /// Policy and weights.
    pub settings: Settings,
}

/// A policy that is or was in force.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Revision {
    /// Number; the first is 1. A restart with a snapshot, a hand-over and replicas that share a bucket continue it.
    pub revision: u64,
    /// Policy and all of its weights.
    #[schemars(with = "config::PolicyDocument")]
    pub settings: Settings,
    /// Time at which it came into force, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Caller that applied it: a token's name, or `router`.
    pub by: String,
    /// Reason given by the caller.
    pub reason: Option<String>,
    /// Kind of the change.
    pub source: Source,
    /// Replica that applied it, where several share their policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Whether it was made for a limited time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(default)]
    pub temporary: bool,
    /// Keys whose values are temporary in this revision, as JSON pointers into `settings`, with the values that return;
    /// `null` for a key that is absent then.
    #[serde(skip_serializing_if = "Values::is_empty")]
    #[schemars(default)]
    pub temporary_keys: Values,
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
pub enum Source {
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

impl Source {
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
    /// New settings.
    pub settings: Settings,
    /// Caller.
    pub by: String,
    /// Reason given by the caller.
    pub reason: Option<String>,
    /// Kind of the change.
    pub source: Source,
    /// Time after which it reverts, for a temporary change.
    pub revert_after: Option<Millis>,
    /// Keys that it sets even where their values stay as they are.
    pub sets: BTreeSet<String>,
}

impl Change {
    /// Returns the change for keys of `[routing]` that have changed.
    pub(super) fn configured(before: &Settings, values: &Values) -> Self {
        Self {
            // The values come from checked settings.
            settings: keys::with(before, values).unwrap_or_else(|_| before.clone()),
            sets: values.keys().cloned().collect(),
            by: "router".to_owned(),
            reason: Some(format!(
                "[routing] of the configuration has changed: {}",
                keys::in_words(values.keys())
            )),
            source: Source::Reload,
            revert_after: None,
        }
    }
}

/// A change that was applied, with the state at that time; others may have followed.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChange {
    /// Revision in force before.
    pub before: Arc<Revision>,
    /// Revision in force after.
    pub after: Arc<Revision>,
    /// Temporary values after it.
    pub timers: Timers,
}

/// The revision to be changed is not the one in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {0} is now in force")]
pub struct Stale(pub u64);

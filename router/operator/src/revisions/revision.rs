//! A revision of the policy, and the change that makes one.

use std::sync::Arc;

use policy::route::Settings;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Number since the start of the router, or of the bucket that replicas share; the first is 1.
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
}

impl Change {
    /// Returns the change for a changed `[routing]` section.
    pub(super) fn configured(settings: Settings) -> Self {
        Self {
            settings,
            by: "router".to_owned(),
            reason: Some("[routing] of the configuration has changed".to_owned()),
            source: Source::Reload,
            revert_after: None,
        }
    }

    /// Returns the change that ends a temporary one.
    pub(super) fn back_to(earlier: &Revision) -> Self {
        Self {
            settings: earlier.settings.clone(),
            by: "router".to_owned(),
            reason: Some(format!(
                "the temporary change expired; back to revision {}",
                earlier.revision
            )),
            source: Source::Revert,
            revert_after: None,
        }
    }
}

/// A scheduled revert.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// Time at which it is due, by the router's clock.
    pub due: Millis,
    /// Revision to return to.
    pub to: Arc<Revision>,
}

/// A change that was applied, with the state at that time; others may have followed.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChange {
    /// Revision in force before.
    pub before: Arc<Revision>,
    /// Revision in force after.
    pub after: Arc<Revision>,
    /// Scheduled revert, if any.
    pub pending: Option<Pending>,
}

/// The revision to be changed is not the one in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {0} is now in force")]
pub struct Stale(pub u64);

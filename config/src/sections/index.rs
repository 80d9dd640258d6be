//! The index of prefixes: `[index]`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsSeconds, at_least_one};

/// Index of the prefixes that each worker holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(
    rename = "Index",
    deny_unknown_fields,
    bound = "Self: Default, Snapshots: JsonSchema"
)]
#[serde(default)]
pub struct IndexConfig<Snapshots = Option<Snapshot>> {
    /// Memory limit in bytes. Beyond it the least recently used prefixes are evicted.
    #[schemars(with = "u64", range(min = 4_194_304))]
    pub max_bytes: NonZeroUsize,
    /// Snapshots, if enabled.
    #[serde(flatten)]
    pub snapshot: Snapshots,
}

impl Default for IndexConfig<Snapshot> {
    fn default() -> Self {
        Self {
            max_bytes: at_least_one(256 << 20),
            snapshot: Snapshot::default(),
        }
    }
}

/// Settings of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Snapshot {
    /// File that keeps the cached prefixes, what was learned, and changes of the admin API over a restart of the
    /// router. Empty: none.
    #[serde(rename = "snapshot_path")]
    pub path: PathBuf,
    /// Seconds between two snapshots. Further ones are written after a change through the admin API and when the router
    /// shuts down.
    #[serde(rename = "snapshot_interval_s", with = "AsSeconds")]
    #[schemars(range(min = 0.1, max = 604_800))]
    pub interval: Duration,
    /// Age in seconds beyond which the cached prefixes of a snapshot are not restored, since workers' caches have
    /// changed.
    #[serde(rename = "snapshot_max_age_s", with = "AsSeconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_age: Duration,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            interval: Duration::from_secs(60),
            max_age: Duration::from_secs(600),
        }
    }
}

impl IndexConfig<Snapshot> {
    pub(crate) fn checked(self) -> IndexConfig {
        IndexConfig {
            max_bytes: self.max_bytes,
            snapshot: Some(self.snapshot).filter(|snapshot| !snapshot.path.as_os_str().is_empty()),
        }
    }
}

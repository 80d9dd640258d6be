use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;

/// Index of the prefixes that each worker holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Index")]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IndexSection {
    /// Memory limit in bytes. Beyond it the least recently used prefixes are evicted.
    #[schemars(range(min = 4_194_304))]
    pub max_bytes: u64,
    /// File that keeps the cached prefixes, what was learned, and changes of the admin API over a restart of the
    /// router. Empty: none.
    pub snapshot_path: String,
    /// Seconds between two snapshots. Further ones are written after a change through the admin API and when the router
    /// shuts down.
    #[schemars(range(min = 0.1, max = 604_800))]
    pub snapshot_interval_s: f64,
    /// Age in seconds beyond which the cached prefixes of a snapshot are not restored, since workers' caches have
    /// changed.
    #[schemars(range(min = 0, max = 604_800))]
    pub snapshot_max_age_s: f64,
}

impl Default for IndexSection {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            snapshot_path: String::new(),
            snapshot_interval_s: 60.0,
            snapshot_max_age_s: 600.0,
        }
    }
}

/// Settings of the index of prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Memory limit in bytes.
    pub max_bytes: NonZeroUsize,
    /// Snapshots, if enabled.
    pub snapshot: Option<Snapshot>,
}

/// Settings of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Path of the file.
    pub path: PathBuf,
    /// Time between two snapshots; positive.
    pub interval: Duration,
    /// Age beyond which cached prefixes are not restored.
    pub max_age: Duration,
}

pub(super) fn index(written: IndexSection, checker: &mut Checker<'_>) -> IndexConfig {
    let interval = checker.seconds("index.snapshot_interval_s", written.snapshot_interval_s);
    let max_age = checker.seconds("index.snapshot_max_age_s", written.snapshot_max_age_s);
    IndexConfig {
        max_bytes: checker.bytes("index.max_bytes", written.max_bytes),
        snapshot: (!written.snapshot_path.is_empty()).then(|| Snapshot {
            path: written.snapshot_path.into(),
            interval,
            max_age,
        }),
    }
}

//! The index of prefixes: `[index]`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;

/// The index of prefixes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Index")]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IndexSection {
    /// Memory that it may take, in bytes. Beyond it the least recently used prefixes are forgotten.
    #[schemars(range(min = 4_194_304))]
    pub max_bytes: u64,
    /// File in which what was learned outlives a restart of the router. Empty: nothing does.
    pub snapshot_path: String,
    /// Seconds between two snapshots; one more is written when the router is told to stop.
    #[schemars(range(min = 0.1, max = 604_800))]
    pub snapshot_interval_s: f64,
    /// Seconds after which a snapshot is too old to be read: workers' caches have moved on.
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

/// The index of prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Memory that it may take.
    pub max_bytes: NonZeroUsize,
    /// Where it is kept over a restart, if it is.
    pub snapshot: Option<Snapshot>,
}

/// Where and when what was learned is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The file.
    pub path: PathBuf,
    /// Time between two; positive.
    pub interval: Duration,
    /// Age beyond which one is not read.
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

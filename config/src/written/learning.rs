//! Learning, the prefix index, and hints: `[learning]`, `[index]`, `[hints]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the router learns while it serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Learning {
    /// Whether each worker's α, β and γ are learned from its responses. Off: they stay as configured.
    pub costs: bool,
    /// Seconds without a response after which a worker may have become twice as fast: its estimate stays, and the error
    /// of that grows, so that a slow worker is tried again.
    #[schemars(range(min = 1, max = 604_800))]
    pub fade_s: f64,
    /// Whether next prompts, responses and returns of conversations are predicted by traffic class. Off:
    /// `objective.next_prompt_tokens` is used.
    pub habits: bool,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            costs: true,
            fade_s: 60.0,
            habits: true,
        }
    }
}

/// Hints to workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hints {
    /// Whether any hint is sent at all.
    pub enabled: bool,
    /// Seconds after which a worker discards a hint.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 604_800))]
    pub ttl_s: f64,
    /// Whether a request carries the hint about its own conversation.
    pub in_request: bool,
    /// Whether hints are sent outside of requests: trims and ends of conversations, protection of shared prefixes.
    pub out_of_band: bool,
    /// Number of conversations with a common prefix from which that prefix is protected on the workers that hold it. 0:
    /// never.
    #[schemars(range(max = 1_000_000))]
    pub protect_from: u32,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            enabled: true,
            ttl_s: 600.0,
            in_request: true,
            out_of_band: true,
            protect_from: 8,
        }
    }
}

/// Index of prefixes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Index {
    /// Memory limit in bytes. Beyond it the least recently used prefixes are evicted.
    #[schemars(range(min = 4_194_304))]
    pub max_bytes: u64,
    /// File that keeps what was learned over a restart of the router. Empty: none.
    pub snapshot_path: String,
    /// Seconds between two snapshots; another one is written when the router shuts down.
    #[schemars(range(min = 0.1, max = 604_800))]
    pub snapshot_interval_s: f64,
    /// Seconds after which a snapshot is too old to be read, since workers' caches have changed.
    #[schemars(range(min = 0, max = 604_800))]
    pub snapshot_max_age_s: f64,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            snapshot_path: String::new(),
            snapshot_interval_s: 60.0,
            snapshot_max_age_s: 600.0,
        }
    }
}

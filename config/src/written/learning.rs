//! What is learned, kept and told to workers: `[learning]`, `[index]`, `[hints]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is learned while the router serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Learning {
    /// Whether each worker's α, β and γ follow what its answers take. Off: as configured, for ever.
    pub costs: bool,
    /// Seconds without an answer after which a worker may have become twice as fast: what was learned of it stays, and its
    /// error grows, so that one that was slow is tried again.
    #[schemars(range(min = 1, max = 604_800))]
    pub fade_s: f64,
    /// Whether next prompts, answers and returns of conversations are expected as each class of traffic shows them. Off:
    /// `objective.next_prompt_tokens`.
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

/// What workers are told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hints {
    /// Whether any hint is sent at all.
    pub enabled: bool,
    /// Seconds after which a worker forgets a hint.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 604_800))]
    pub ttl_s: f64,
    /// Whether a request carries the hint about its own conversation.
    pub in_request: bool,
    /// Whether hints are sent beside the requests: trims and ends of conversations, protection of shared prefixes.
    pub out_of_band: bool,
    /// Conversations that begin alike from which on the beginning is protected on the workers that hold it. 0: never.
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

/// The index of prefixes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Index {
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

//! Health probes: `[health]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Health probes of the workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Milliseconds between two probes of a worker.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub interval_ms: f64,
    /// Milliseconds after which an unanswered probe has failed. At most the interval.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub timeout_ms: f64,
    /// Failed probes in a row that take a worker out of rotation.
    #[schemars(range(min = 1))]
    pub unhealthy_after: u32,
    /// Successful probes in a row that bring it back.
    #[schemars(range(min = 1))]
    pub healthy_after: u32,
    /// Path of the probe, below the worker's url. Any 2xx response is a success.
    pub path: String,
    /// Milliseconds between two readings of a worker's own queue (`/metrics`, SGLang's `/v1/loads`), which correct the
    /// predicted wait. 0: never.
    #[schemars(range(min = 0, max = 3_600_000))]
    pub queue_interval_ms: f64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            interval_ms: 2_000.0,
            timeout_ms: 1_000.0,
            unhealthy_after: 3,
            healthy_after: 2,
            path: "/health".to_owned(),
            queue_interval_ms: 1_000.0,
        }
    }
}

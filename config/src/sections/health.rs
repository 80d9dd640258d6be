//! Health probes: `[health]`.

use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsMillis, AsMillisOrNever, AsSeconds};
use super::checker::Checker;

/// Health probes of the workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Milliseconds between two probes of a worker.
    #[serde(rename = "interval_ms", with = "AsMillis")]
    #[schemars(range(min = 10, max = 3_600_000))]
    pub interval: Duration,
    /// Milliseconds after which an unanswered probe has failed. At most the interval.
    #[serde(rename = "timeout_ms", with = "AsMillis")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub timeout: Duration,
    /// Number of consecutive failed probes after which a worker gets no more requests.
    #[schemars(with = "u32", range(min = 1))]
    pub unhealthy_after: NonZeroU32,
    /// Number of consecutive successful probes after which a worker that failed gets requests again.
    #[schemars(with = "u32", range(min = 1))]
    pub healthy_after: NonZeroU32,
    /// Path of the probe, below the worker's url. Any 2xx response counts as success.
    pub path: String,
    /// Milliseconds between two readings of a worker's own queue (`/metrics`, SGLang's `/v1/loads`), which correct the
    /// predicted wait. While the router has had no request for 5 minutes, a worker without requests is read every 15
    /// intervals. 0: never.
    #[serde(rename = "queue_interval_ms", with = "AsMillisOrNever")]
    #[schemars(range(min = 0, max = 3_600_000))]
    pub queue_interval: Option<Duration>,
    /// Seconds between two queries of a worker's settings: hint dialect, cache policy, capacity. They are also queried
    /// when the worker has restarted. Its list of models is queried with each probe, and at once when a request
    /// contradicts it.
    #[serde(rename = "facts_interval_s", with = "AsSeconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub facts_interval: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            unhealthy_after: NonZeroU32::MIN.saturating_add(2),
            healthy_after: NonZeroU32::MIN.saturating_add(1),
            path: "/health".to_owned(),
            queue_interval: Some(Duration::from_secs(1)),
            facts_interval: Duration::from_secs(30),
        }
    }
}

impl Health {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Self {
        if self.timeout > self.interval {
            let what = format!(
                "{} ms is longer than the {} ms between probes, which would overlap",
                self.timeout.as_secs_f64() * 1e3,
                self.interval.as_secs_f64() * 1e3
            );
            checker.report(
                "health.timeout_ms",
                what,
                Some("raise health.interval_ms or lower this".to_owned()),
            );
        }
        let is_path = self.path.parse::<http::uri::PathAndQuery>().is_ok() && self.path.starts_with('/');
        if !is_path {
            let what = format!("expected a path that begins with `/`, found {:?}", self.path);
            checker.report("health.path", what, None);
        }
        self
    }
}

//! Handling of failing workers: `[failure]`.

use std::time::Duration;

use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsMillisOrNever, AsPolicySeconds, AsSecondsOrNever};
use super::checker::Checker;

/// Handling of failing workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Failure {
    /// Seconds that a request may take from its head to the end of the response; then 504, or a stream ends with an
    /// error event. 0: no limit. A client may ask for less (`x-request-timeout-ms`, `grpc-timeout`).
    #[serde(rename = "total_timeout_s", with = "AsSecondsOrNever")]
    #[schemars(range(min = 0, max = 604_800))]
    pub total_timeout: Option<Duration>,
    /// Share of recent requests that may be retried on another worker.
    #[schemars(range(min = 0, max = 1))]
    pub retry_share: f64,
    /// Retries per second that are allowed beside that share, so that a router with little traffic can retry.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub retry_floor_per_s: f64,
    /// Number of recent failed requests at which a worker's breaker opens: 5xx, lost connections, timeouts, streams
    /// that break off. The count decays over ten seconds, and a request counts once.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub breaker_failures: u32,
    /// Share of the worker's recent requests that must have failed as well, unless none succeeded since the first of
    /// these failures.
    #[schemars(range(min = 0.01, max = 1))]
    pub breaker_share: f64,
    /// Length of a breaker's first pause in seconds, after which one request tries the worker. Doubled each time that
    /// it fails.
    #[serde(rename = "breaker_pause_s", with = "AsPolicySeconds")]
    #[schemars(range(min = 0.01, max = 3_600))]
    pub breaker_pause: Millis,
    /// Longest pause of a breaker in seconds.
    #[serde(rename = "breaker_longest_pause_s", with = "AsPolicySeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub breaker_longest_pause: Millis,
    /// Share of the otherwise eligible workers that breakers may withhold at a time, and never all; further open
    /// breakers are ignored.
    #[schemars(range(min = 0, max = 1))]
    pub max_ejected_share: f64,
    /// Seconds over which a recovered worker's share of requests grows. 0: no slow start.
    #[serde(rename = "slow_start_s", with = "AsPolicySeconds")]
    #[schemars(range(min = 0, max = 3_600))]
    pub slow_start: Millis,
    /// Milliseconds without a first byte after which a turn is also sent to a second worker; the first response is
    /// used, and the other request is cancelled. The work is done twice. 0: never.
    #[serde(rename = "hedge_after_ms", with = "AsMillisOrNever")]
    #[schemars(range(min = 0, max = 3_600_000))]
    pub hedge_after: Option<Duration>,
}

impl Default for Failure {
    fn default() -> Self {
        Self {
            total_timeout: None,
            retry_share: 0.2,
            retry_floor_per_s: 10.0,
            breaker_failures: 5,
            breaker_share: 0.5,
            breaker_pause: Millis(1_000.0),
            breaker_longest_pause: Millis(30_000.0),
            max_ejected_share: 0.5,
            slow_start: Millis(10_000.0),
            hedge_after: None,
        }
    }
}

impl Failure {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Self {
        if self.breaker_longest_pause < self.breaker_pause {
            let what = format!(
                "{} s is shorter than the first pause, {} s",
                self.breaker_longest_pause.0 / 1e3,
                self.breaker_pause.0 / 1e3
            );
            checker.report(
                "failure.breaker_longest_pause_s",
                what,
                Some("lower failure.breaker_pause_s or raise this".to_owned()),
            );
        }
        self
    }
}

//! What is done about workers that fail: `[failure]`.

use std::time::Duration;

use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{millis_or_never, seconds_of_policy, seconds_or_never};
use super::checker::Checker;

/// What is done about workers that fail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Failure {
    /// Seconds that a request may take from its head to the end of its answer; then 504, or a stream is cut with an error
    /// event. 0: as long as it goes on. A client may ask for less (`x-request-timeout-ms`, `grpc-timeout`).
    #[serde(rename = "total_timeout_s", with = "seconds_or_never")]
    #[schemars(with = "f64", range(min = 0, max = 604_800))]
    pub total_timeout: Option<Duration>,
    /// Share of recent requests that may be tried again on another worker.
    #[schemars(range(min = 0, max = 1))]
    pub retry_share: f64,
    /// Retries a second that are allowed beside that share, so that a quiet router retries as well.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub retry_floor_per_s: f64,
    /// Failed requests of the last seconds from which on a worker's breaker opens: 5xx, connections lost, no answer in
    /// time, streams that break off. A request counts once.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub breaker_failures: u32,
    /// Share of the worker's requests that has to have failed as well.
    #[schemars(range(min = 0.01, max = 1))]
    pub breaker_share: f64,
    /// Seconds that the breaker stays open the first time; then one request tries the worker. Twice as long each time that
    /// it fails.
    #[serde(rename = "breaker_pause_s", with = "seconds_of_policy")]
    #[schemars(with = "f64", range(min = 0.01, max = 3_600))]
    pub breaker_pause: Millis,
    /// Seconds that the breaker stays open at most.
    #[serde(rename = "breaker_longest_pause_s", with = "seconds_of_policy")]
    #[schemars(with = "f64", range(min = 0.01, max = 86_400))]
    pub breaker_longest_pause: Millis,
    /// Share of the workers that could take a request and may be kept from it by their breakers at a time; the others are
    /// used all the same. Never the last one.
    #[schemars(range(min = 0, max = 1))]
    pub max_ejected_share: f64,
    /// Seconds in which a worker that comes back is given more and more to do. 0: all at once.
    #[serde(rename = "slow_start_s", with = "seconds_of_policy")]
    #[schemars(with = "f64", range(min = 0, max = 3_600))]
    pub slow_start: Millis,
    /// Milliseconds without a first byte after which a turn is sent to a second worker too; the first to answer is heard, the
    /// other one is cancelled. Work is done twice. 0: never.
    #[serde(rename = "hedge_after_ms", with = "millis_or_never")]
    #[schemars(with = "f64", range(min = 0, max = 3_600_000))]
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
    /// Checks what its keys say together.
    pub(super) fn checked(self, checker: &mut Checker<'_>) -> Self {
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

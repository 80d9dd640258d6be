//! Handling of failing workers.

use std::time::Duration;

use policy::units::Millis;

use super::checker::Checker;
use crate::written;

/// Settings for failing workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Time limit of a request, from its head to the end of the response.
    pub total_timeout: Option<Duration>,
    /// Share of recent requests that may be retried, between 0 and 1.
    pub retry_share: f64,
    /// Retries per second beside that share.
    pub retry_floor_per_s: f64,
    /// Recent failures from which on a breaker may open; at least 1.
    pub breaker_failures: u32,
    /// Share of requests that must have failed, above 0 and at most 1.
    pub breaker_share: f64,
    /// First pause of a breaker; positive.
    pub breaker_pause: Millis,
    /// Longest pause; not less than the first.
    pub breaker_longest_pause: Millis,
    /// Share of the workers that breakers may withhold, between 0 and 1.
    pub max_ejected_share: f64,
    /// Duration of a slow start; zero for none.
    pub slow_start: Millis,
    /// Time without a first byte after which a hedge is sent.
    pub hedge_after: Option<Duration>,
}

pub(super) fn failure(written: &written::Failure, checker: &mut Checker<'_>) -> Failure {
    if written.breaker_longest_pause_s < written.breaker_pause_s {
        let what = format!(
            "{} s is shorter than the first pause, {} s",
            written.breaker_longest_pause_s, written.breaker_pause_s
        );
        checker.report(
            "failure.breaker_longest_pause_s",
            what,
            Some("lower failure.breaker_pause_s or raise this".to_owned()),
        );
    }
    let total = checker.seconds("failure.total_timeout_s", written.total_timeout_s);
    let hedge = checker.seconds("failure.hedge_after_ms", written.hedge_after_ms / 1e3);
    Failure {
        total_timeout: Some(total).filter(|total| !total.is_zero()),
        retry_share: written.retry_share,
        retry_floor_per_s: written.retry_floor_per_s,
        breaker_failures: written.breaker_failures,
        breaker_share: written.breaker_share,
        breaker_pause: Millis(written.breaker_pause_s * 1e3),
        breaker_longest_pause: Millis(written.breaker_longest_pause_s * 1e3),
        max_ejected_share: written.max_ejected_share,
        slow_start: Millis(written.slow_start_s * 1e3),
        hedge_after: Some(hedge).filter(|hedge| !hedge.is_zero()),
    }
}

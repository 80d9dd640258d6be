//! What is done about workers that fail.

use std::time::Duration;

use policy::units::Millis;

use super::checker::Checker;
use crate::written;

/// What is done about workers that fail.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// For a request, from its head to the end of its answer.
    pub total_timeout: Option<Duration>,
    /// Share of recent requests that may be tried again, between 0 and 1.
    pub retry_share: f64,
    /// Retries a second beside that share.
    pub retry_floor_per_s: f64,
    /// Failures of late from which on a breaker may open; at least 1.
    pub breaker_failures: u32,
    /// Share of the requests that has to have failed, above 0 and at most 1.
    pub breaker_share: f64,
    /// How long a breaker stays open the first time; positive.
    pub breaker_pause: Millis,
    /// How long at most; no less than the first time.
    pub breaker_longest_pause: Millis,
    /// Share of the workers that breakers may keep from work, between 0 and 1.
    pub max_ejected_share: f64,
    /// Time in which a worker that comes back is given more and more; zero is all at once.
    pub slow_start: Millis,
    /// Time without a first byte after which a second worker is asked too.
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

//! Health probes of the workers.

use std::num::NonZeroU32;
use std::time::Duration;

use super::checker::Checker;
use crate::written;

/// Settings of health probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Time between two probes; positive.
    pub interval: Duration,
    /// Time after which a probe has failed; positive, at most the interval.
    pub timeout: Duration,
    /// Failures in a row that take a worker out.
    pub unhealthy_after: NonZeroU32,
    /// Successes in a row that bring it back.
    pub healthy_after: NonZeroU32,
    /// Path and query of the probe; begins with `/`.
    pub path: String,
    /// Time between two readings of a worker's own queue.
    pub queue_interval: Option<Duration>,
}

pub(super) fn health(written: &written::Health, checker: &mut Checker<'_>) -> Health {
    if written.timeout_ms > written.interval_ms {
        let what = format!(
            "{} ms is longer than the {} ms between probes, which would overlap",
            written.timeout_ms, written.interval_ms
        );
        checker.report(
            "health.timeout_ms",
            what,
            Some("raise health.interval_ms or lower this".to_owned()),
        );
    }
    let path_is_good =
        written.path.parse::<http::uri::PathAndQuery>().is_ok() && written.path.starts_with('/');
    if !path_is_good {
        let what = format!("expected a path that begins with `/`, found {:?}", written.path);
        checker.report("health.path", what, None);
    }
    Health {
        interval: checker.seconds("health.interval_ms", written.interval_ms / 1000.0),
        timeout: checker.seconds("health.timeout_ms", written.timeout_ms / 1000.0),
        unhealthy_after: checker.count("health.unhealthy_after", written.unhealthy_after),
        healthy_after: checker.count("health.healthy_after", written.healthy_after),
        path: written.path.clone(),
        queue_interval: (written.queue_interval_ms > 0.0)
            .then(|| checker.seconds("health.queue_interval_ms", written.queue_interval_ms / 1000.0)),
    }
}

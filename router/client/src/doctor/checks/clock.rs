//! The clocks of router and worker agree: the age of events and the priorities of several routers depend on it.

use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::CheckVerdict;
use super::unreached;

const MOST_MS: f64 = 2_000.0;

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let Some(own) = worker.direct.clock else {
        return match worker.direct.unreachable {
            Some(_) => unreached(worker),
            None => CheckVerdict::unknown(
                "its responses have no Date header",
                "check the clock on its host (timedatectl)",
            ),
        };
    };
    let Some(router) = facts.clock else {
        return CheckVerdict::unknown("the router's clock could not be read", "run doctor again");
    };
    let apart = own.ms - router.ms;
    // Only what exceeds the error of reading counts.
    if apart.abs() - own.error_ms - router.error_ms + 1_000.0 < MOST_MS {
        return CheckVerdict::ok(format!(
            "it differs from the router's by less than {:.0} s",
            MOST_MS / 1e3
        ));
    }
    let direction = if apart > 0.0 { "ahead of" } else { "behind" };
    CheckVerdict::warning(
        format!("it is {:.1} s {direction} the router's", apart.abs() / 1e3),
        "synchronise the clocks of both hosts (chrony, systemd-timesyncd)",
    )
}

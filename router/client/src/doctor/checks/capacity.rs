//! The size of the worker's cache is known.

use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::CheckVerdict;
use super::untold;

/// Relative difference up to which a configured capacity agrees with the engine's own.
const ALIKE: f64 = 0.1;
/// The largest capacity that the router accepts from a worker.
const MOST: u64 = 8_000_000;

pub(in super::super) fn check(_: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let tokens = worker.capacity_tokens;
    match worker.capacity_source.as_deref() {
        Some("configured") => match worker.direct.capacity_tokens.map(|own| own.min(MOST)) {
            Some(own) if own.abs_diff(tokens) as f64 > ALIKE * own as f64 => CheckVerdict::problem(
                format!("{tokens} tokens are configured, and the engine says {own}"),
                "remove capacity_tokens so that the worker is asked, or correct it",
            ),
            _ => CheckVerdict::ok(format!("{tokens} tokens, configured")),
        },
        Some("reported") => CheckVerdict::ok(format!("{tokens} tokens, reported by the worker")),
        Some("learned") => CheckVerdict::ok(format!("{tokens} tokens, learned from responses")),
        Some("assumed") if worker.is_up() => CheckVerdict::warning(
            format!("{tokens} tokens are assumed: the worker does not report its cache's size"),
            "set workers[].capacity_tokens; responses correct the assumption only once the cache is full",
        ),
        Some("assumed") => super::unreached(worker),
        _ => untold(),
    }
}

//! The worker gets its requests from this router and its replicas only.

use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::{CheckVerdict, counted};

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let own = worker.in_flight;
    let requests = counted(worker.foreign_requests.unwrap_or(0) as usize, "request");
    match worker.foreign_requests {
        None if !worker.is_up() => super::unreached(worker),
        None => CheckVerdict::unknown(
            "there are no queue figures of it",
            "SGLang: --enable-metrics. Any engine: health.queue_interval_ms above 0",
        ),
        Some(0) => CheckVerdict::ok("all of its requests came through this router or its replicas"),
        Some(_) if facts.replicas.configured => CheckVerdict::warning(
            format!("{requests} at the worker came neither through this router ({own}) nor its replicas"),
            "send all clients through the router, or give other clients separate workers",
        ),
        Some(_) => CheckVerdict::problem(
            format!("{requests} at the worker did not come through this router ({own} did)"),
            "if another tailroute uses the worker, set fleet.nats on both (docs/scaling.md); otherwise send all \
             clients through the router",
        ),
    }
}

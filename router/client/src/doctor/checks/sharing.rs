//! The worker gets its requests from this router and its replicas only.

use super::super::facts::{Facts, Worker};
use super::super::verdict::Verdict;

pub(in super::super) fn check(facts: &Facts, worker: &Worker) -> Verdict {
    let own = worker.in_flight;
    match worker.elsewhere {
        None if !worker.is_up() => super::unreached(worker),
        None => Verdict::unknown(
            "it publishes no queue figures",
            "SGLang: --enable-metrics. Otherwise requests that bypass the router go unseen",
        ),
        Some(0) => Verdict::ok("all of its requests came through this router or its replicas"),
        Some(foreign) if facts.replicas.configured => Verdict::warning(
            format!(
                "{foreign} requests at the worker came neither through this router ({own}) nor its replicas"
            ),
            "send all clients through the router, or give other clients workers of their own",
        ),
        Some(foreign) => Verdict::problem(
            format!("{foreign} requests at the worker did not come through this router ({own} did)"),
            "if another tailroute uses the worker, set fleet.nats on both (docs/scaling.md); otherwise send all \
             clients through the router",
        ),
    }
}

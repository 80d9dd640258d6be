//! There are workers, and their sources answer.

use super::super::facts::Facts;
use super::super::verdict::CheckVerdict;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let failing = facts
        .discovery
        .iter()
        .find_map(|source| Some((source, source.failure.as_ref()?)));
    if let Some((source, failure)) = failing {
        let found = format!(
            "discovery by {} ({}) fails: {}",
            source.source, source.of, failure.what
        );
        let action = "correct the cause: permission, selector, name server or file (docs/discovery.md)";
        return match facts.workers.is_empty() {
            true => CheckVerdict::problem(found, action),
            false => CheckVerdict::warning(found, action),
        };
    }
    if facts.workers.is_empty() {
        let named: usize = facts.discovery.iter().map(|source| source.named).sum();
        return CheckVerdict::problem(
            format!("the router has no workers; its sources name {named}"),
            "add [[workers]], correct the selector of [discovery], or tailroute ctl workers add URL",
        );
    }
    let ready = facts
        .workers
        .iter()
        .filter(|worker| worker.state == "ready")
        .count();
    match ready {
        0 => CheckVerdict::problem(
            "no worker is ready: clients get 503",
            "see the health of each worker",
        ),
        _ => CheckVerdict::ok(format!("{ready} of {} workers are ready", facts.workers.len())),
    }
}

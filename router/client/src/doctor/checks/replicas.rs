//! Configured replicas hear each other.

use super::super::facts::Facts;
use super::super::verdict::CheckVerdict;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let replicas = &facts.replicas;
    if !replicas.configured {
        return CheckVerdict::ok("none are configured");
    }
    if !replicas.connected {
        let error = replicas.error.as_deref().unwrap_or("no answer");
        return CheckVerdict::problem(
            format!("NATS is not connected, so replicas route without knowing each other: {error}"),
            "correct fleet.nats, or restore the NATS server (docs/scaling.md)",
        );
    }
    match replicas.peers.len() {
        0 => CheckVerdict::note(
            "NATS is connected, but no other replica is heard",
            "if there are others, check that fleet.nats and fleet.cluster are the same on all",
        ),
        others => CheckVerdict::ok(format!(
            "NATS is connected, and {others} other replicas are heard"
        )),
    }
}

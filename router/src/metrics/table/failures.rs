//! Metrics of failing workers.

use super::{Kind, Spec, WORKER, of};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_retries_total",
        kind: Kind::Counter,
        unit: "attempts",
        labels: &[WORKER],
        help: "Attempts that failed and were tried elsewhere: the worker cannot have begun, or it does no harm.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_retries_refused_total",
        kind: Kind::Counter,
        unit: "attempts",
        labels: &[],
        help: "Attempts that might have been tried elsewhere, but for which the retry budget had nothing left.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_breaker_opened_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[WORKER],
        help: "Times that a worker's breaker opened because its requests failed.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_breaker_passed_over_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[],
        help: "Open breakers that were passed over in a choice because too few other workers were left.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_breaker",
        kind: Kind::Gauge,
        unit: "state",
        labels: &[WORKER],
        help: "What the worker's breaker lets through: 0 everything (closed), 1 one request (half open), 2 nothing (open).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_hedges_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[of("what", &["sent", "won", "refused"])],
        help: "Turns sent to a second worker beside a late one: sent, won (it answered first), refused (no budget).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_in_flight_drift_total",
        kind: Kind::Counter,
        unit: "looks",
        labels: &[WORKER],
        help: "Looks at a worker's own queue that showed fewer requests than are counted here, from the third in a row.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_claims_clamped_total",
        kind: Kind::Counter,
        unit: "answers",
        labels: &[WORKER, of("what", &["prompt", "completion", "cached", "times"])],
        help: "Answers whose worker counted more tokens, or more time, than there can have been; what was beyond was not believed.",
        gen_ai: None,
    },
];

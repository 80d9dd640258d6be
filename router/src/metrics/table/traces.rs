//! Metrics of traces.

use super::{Kind, Spec, of};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_traces_total",
        kind: Kind::Counter,
        unit: "traces",
        labels: &[of(
            "outcome",
            &["error", "objective", "slow", "asked", "share", "discarded"],
        )],
        help: "Traces of requests that ended, by why they were kept, or discarded.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_traces_lost_total",
        kind: Kind::Counter,
        unit: "traces",
        labels: &[of("why", &["queue", "export"])],
        help: "Traces that were kept and not sent: the queue was full, or the collector did not take them.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_traces_sent_total",
        kind: Kind::Counter,
        unit: "traces",
        labels: &[],
        help: "Traces that the collector has taken.",
        gen_ai: None,
    },
];

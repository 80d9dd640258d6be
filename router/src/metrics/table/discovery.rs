//! Metrics of discovery.

use super::{Kind, Label, Spec, of};

const SOURCE: Label = of("source", &["kubernetes", "dns", "file"]);

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_discovery_up",
        kind: Kind::Gauge,
        unit: "yes or no",
        labels: &[SOURCE],
        help: "1 if the source was heard when it was asked last, 0 if it fails or was not heard yet; absent if it is not configured.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_discovery_heard_timestamp_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[SOURCE],
        help: "When the source said last what there is, or that nothing has changed, in seconds since 1970.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_discovery_workers",
        kind: Kind::Gauge,
        unit: "workers",
        labels: &[SOURCE, of("state", &["ready", "not_ready", "refused"])],
        help: "Workers that the source names, by whether it says that they may be given work; and what it names that was not taken.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_discovery_failures_total",
        kind: Kind::Counter,
        unit: "failures",
        labels: &[SOURCE],
        help: "Times that the source could not be heard or understood.",
        gen_ai: None,
    },
];

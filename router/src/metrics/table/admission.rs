//! Metrics of admission and configuration.

use super::{KEY, Kind, SECONDS, Spec, of};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_admission_requests_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[
            KEY,
            of(
                "outcome",
                &[
                    "admitted",
                    "unauthorized",
                    "requests_limited",
                    "tokens_limited",
                    "queue_full",
                    "queue_timeout",
                    "shed",
                ],
            ),
        ],
        help: "Turns let in, and requests turned away, by key.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_admission_wait_seconds",
        kind: Kind::Histogram(&SECONDS),
        unit: "seconds",
        labels: &[KEY],
        help: "From a turn's last byte in to being let in.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_admission_waiting",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Requests that wait in the router.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_admission_inside",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Requests that were let in and have not ended, where their number is bounded.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_config_reloads_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[of("outcome", &["applied", "refused"])],
        help: "Times that the configuration was read again: applied, or refused because something in it was wrong.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tls_failures_total",
        kind: Kind::Counter,
        unit: "connections",
        labels: &[],
        help: "Connections to the data port that did not come up as TLS should.",
        gen_ai: None,
    },
];

//! Metrics of the endpoint picker.

use super::{Kind, Spec, of};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_picker_streams",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Requests that gateways have open at the endpoint picker's port: asked for, or being answered.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_picker_picks_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[of(
            "outcome",
            &["picked", "refused", "shed", "unavailable", "gone", "protocol"],
        )],
        help: "What gateways were told: an endpoint (picked), that the client is wrong (refused), 429 (shed), any 5xx (unavailable), nothing since they hung up first (gone), or that they do not speak the protocol as needed (protocol).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_picker_served_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[of("by", &["picked", "fallback", "unknown"])],
        help: "Who served, by the gateway's word: the endpoint that was picked (or it did not say), another worker (fallback), or an endpoint that is no worker's (unknown).",
        gen_ai: None,
    },
];

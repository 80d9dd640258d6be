//! Metrics of the exchange between replicas.

use super::{Kind, Label, Spec, of};

const DIRECTION: Label = of("direction", &["sent", "received"]);

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_bus_connected",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        help: "Whether the NATS server is there by which replicas hear of each other; 0 also where none is configured.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_leader",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        help: "Whether this replica is the one that does what only one should; of a fleet, one is.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_replicas",
        kind: Kind::Gauge,
        unit: "replicas",
        labels: &[],
        help: "Other replicas that were heard of within the last three seconds.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_in_flight",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Turns that other replicas have under way, and that count in the predicted waits here.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_messages_total",
        kind: Kind::Counter,
        unit: "messages",
        labels: &[DIRECTION],
        help: "Messages between replicas.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_bytes_total",
        kind: Kind::Counter,
        unit: "bytes",
        labels: &[DIRECTION],
        help: "Bytes of messages between replicas, without NATS' own.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_events_total",
        kind: Kind::Counter,
        unit: "events",
        labels: &[DIRECTION],
        help: "Turns sent, begun and over that messages tell of: three a turn.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_lost_total",
        kind: Kind::Counter,
        unit: "",
        labels: &[of(
            "what",
            &[
                "queue",
                "disconnected",
                "message",
                "inbox",
                "malformed",
                "peers",
                "worker",
                "turns",
            ],
        )],
        help: "What did not get through: events that found the queue full, messages while NATS was gone, others' that did not \
               come, or were not understood, or of too many replicas, or of a worker that is not known here; turns for which there is no room.",
        gen_ai: None,
    },
];

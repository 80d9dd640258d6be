//! Metrics of the exchange between replicas.

use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, of};
use super::{Metrics, clamp};

const DIRECTION: Label = of("direction", &["sent", "received"]);

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_bus_connected",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        help: "1 if this replica is connected to NATS; 0 if not, or if no NATS server is configured.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_leader",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        help: "1 if this replica is the leader of its fleet.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_replicas",
        kind: Kind::Gauge,
        unit: "replicas",
        labels: &[],
        help: "Other replicas that sent a message within the last three seconds.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_in_flight",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Turns in flight at other replicas, which count in the predicted waits here.",
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
        help: "Bytes of messages between replicas, without the overhead of NATS.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_events_total",
        kind: Kind::Counter,
        unit: "events",
        labels: &[DIRECTION],
        help: "Events in messages between replicas: a turn is sent, begun and over, three events each.",
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
        help: "Losses between replicas: events dropped because the queue was full, messages while NATS was \
            disconnected, missing messages, malformed messages, messages of too many replicas or of an unknown \
            worker, and turns that exceed the table.",
        gen_ai: None,
    },
];

/// Counters of the bus.
#[derive(Clone, Debug)]
pub struct BusCounters {
    messages: Labelled<Counter>,
    bytes: Labelled<Counter>,
    events: Labelled<Counter>,
    lost: Labelled<Counter>,
}

/// Gauges of the bus at one moment.
#[derive(Clone, Copy, Debug)]
pub struct BusGauges {
    /// Whether NATS is connected.
    pub connected: bool,
    /// Whether this replica is the leader.
    pub leads: bool,
    /// Other replicas that sent a message recently.
    pub peers: usize,
    /// Turns in flight at other replicas.
    pub in_flight: usize,
}

/// Counters and gauges of the bus.
#[derive(Debug)]
pub(super) struct Replicas {
    counters: BusCounters,
    connected: IntGauge,
    leads: IntGauge,
    peers: IntGauge,
    in_flight: IntGauge,
}

impl Replicas {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let counters = BusCounters {
            messages: metrics.counter("tailroute_bus_messages_total")?,
            bytes: metrics.counter("tailroute_bus_bytes_total")?,
            events: metrics.counter("tailroute_bus_events_total")?,
            lost: metrics.counter("tailroute_bus_lost_total")?,
        };
        for direction in ["sent", "received"] {
            for counter in [&counters.messages, &counters.bytes, &counters.events] {
                counter.with_label_values(&[direction]);
            }
        }
        for what in [
            "queue",
            "disconnected",
            "message",
            "inbox",
            "malformed",
            "peers",
            "worker",
            "turns",
        ] {
            counters.lost.with_label_values(&[what]);
        }
        Ok(Self {
            counters,
            connected: metrics.count("tailroute_bus_connected")?,
            leads: metrics.count("tailroute_bus_leader")?,
            peers: metrics.count("tailroute_bus_replicas")?,
            in_flight: metrics.count("tailroute_bus_in_flight")?,
        })
    }

    pub(super) fn set(&self, gauges: Option<&BusGauges>) {
        let Some(gauges) = gauges else { return };
        self.connected.set(gauges.connected.into());
        self.leads.set(gauges.leads.into());
        self.peers.set(clamp(gauges.peers as u64));
        self.in_flight.set(clamp(gauges.in_flight as u64));
    }
}

impl BusCounters {
    /// Counts a message that was sent or received.
    pub fn message(&self, direction: &str, bytes: usize) {
        self.messages.with_label_values(&[direction]).inc();
        self.bytes.with_label_values(&[direction]).inc_by(bytes as u64);
    }

    /// Counts events of this or another replica.
    pub fn events(&self, direction: &str, count: u64) {
        self.events.with_label_values(&[direction]).inc_by(count);
    }

    /// Counts what was not delivered.
    pub fn lost(&self, what: &str, count: u64) {
        if count > 0 {
            self.lost.with_label_values(&[what]).inc_by(count);
        }
    }
}

impl Metrics {
    /// Returns the counters of the bus.
    #[must_use]
    pub fn bus(&self) -> BusCounters {
        self.replicas.counters.clone()
    }
}

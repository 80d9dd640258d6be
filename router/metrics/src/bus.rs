//! Metrics of the exchange between replicas.

use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, of};
use super::{Metrics, clamp};

const DIRECTION: Label = of("direction", &["sent", "received"]);
const LOST_MESSAGES: &[&str] = &["disconnected", "missing", "inbox", "malformed", "peers"];
const LOST_EVENTS: &[&str] = &["queue", "worker", "turns"];

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
        name: "tailroute_bus_lost_messages_total",
        kind: Kind::Counter,
        unit: "messages",
        labels: &[of("why", LOST_MESSAGES)],
        help: "Lost messages between replicas: not sent while NATS was disconnected (disconnected), missing between two \
            that arrived (missing), too many to process (inbox), malformed (malformed), of more replicas than the \
            table holds (peers).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_bus_lost_events_total",
        kind: Kind::Counter,
        unit: "events",
        labels: &[of("why", LOST_EVENTS)],
        help: "Lost events of turns: not sent because the queue was full (queue), about a worker that this replica does \
            not know (worker), of a turn beyond the table (turns).",
        gen_ai: None,
    },
];

/// Counters of messages and events between replicas.
#[derive(Clone, Debug)]
pub struct BusCounters {
    messages: Labelled<Counter>,
    bytes: Labelled<Counter>,
    events: Labelled<Counter>,
    lost_messages: Labelled<Counter>,
    lost_events: Labelled<Counter>,
}

/// Gauges of the bus at one moment.
#[derive(Clone, Copy, Debug)]
pub struct BusGauges {
    /// Whether NATS is connected.
    pub connected: bool,
    /// Whether this replica is the leader.
    pub leads: bool,
    /// Number of other replicas that sent a message recently.
    pub peers: usize,
    /// Number of turns in flight at other replicas.
    pub in_flight: usize,
}

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
            messages: metrics.labelled("tailroute_bus_messages_total")?,
            bytes: metrics.labelled("tailroute_bus_bytes_total")?,
            events: metrics.labelled("tailroute_bus_events_total")?,
            lost_messages: metrics.labelled("tailroute_bus_lost_messages_total")?,
            lost_events: metrics.labelled("tailroute_bus_lost_events_total")?,
        };
        for direction in ["sent", "received"] {
            for counter in [&counters.messages, &counters.bytes, &counters.events] {
                counter.with_label_values(&[direction]);
            }
        }
        for (counter, reasons) in [
            (&counters.lost_messages, LOST_MESSAGES),
            (&counters.lost_events, LOST_EVENTS),
        ] {
            for why in reasons {
                counter.with_label_values(&[why]);
            }
        }
        Ok(Self {
            counters,
            connected: metrics.single("tailroute_bus_connected")?,
            leads: metrics.single("tailroute_bus_leader")?,
            peers: metrics.single("tailroute_bus_replicas")?,
            in_flight: metrics.single("tailroute_bus_in_flight")?,
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
        self.messages.inc(&[direction]);
        self.bytes.add(&[direction], bytes as u64);
    }

    /// Counts events of turns that were sent or received.
    pub fn events(&self, direction: &str, count: u64) {
        self.events.add(&[direction], count);
    }

    /// Counts messages that were not delivered.
    pub fn lost_messages(&self, why: &str, count: u64) {
        self.lost_messages.add(&[why], count);
    }

    /// Counts an event that was not delivered or not applied.
    pub fn lost_event(&self, why: &str) {
        self.lost_events.inc(&[why]);
    }
}

impl Metrics {
    #[must_use]
    pub fn bus(&self) -> BusCounters {
        self.replicas.counters.clone()
    }
}

use super::Metrics;
use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Spec, of};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_picker_streams",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Requests that gateways have open at the endpoint picker's port.",
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
        help: "Replies to gateways: an endpoint (picked), a client error (refused), 429 (shed), any 5xx (unavailable), none because the gateway disconnected (gone), or an unsupported use of the protocol (protocol).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_picker_served_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[of("by", &["picked", "fallback", "unknown"])],
        help: "Requests by the endpoint that served them, as reported by the gateway: the picked one (or not \
            reported), another worker (fallback), or an endpoint that is not a worker (unknown).",
        gen_ai: None,
    },
];

#[derive(Debug)]
pub(super) struct Picker {
    streams: IntGauge,
    picks: Labelled<Counter>,
    served: Labelled<Counter>,
}

impl Picker {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let picker = Self {
            streams: metrics.single("tailroute_picker_streams")?,
            picks: metrics.labelled("tailroute_picker_picks_total")?,
            served: metrics.labelled("tailroute_picker_served_total")?,
        };
        for outcome in ["picked", "refused", "shed", "unavailable", "gone", "protocol"] {
            picker.picks.with_label_values(&[outcome]);
        }
        for by in ["picked", "fallback", "unknown"] {
            picker.served.with_label_values(&[by]);
        }
        Ok(picker)
    }
}

/// An open request of a gateway, counted until it is dropped.
#[derive(Debug)]
pub struct Open(IntGauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Counts a request that a gateway opened.
    pub fn picker_opened(&self) -> Open {
        self.picker.streams.inc();
        Open(self.picker.streams.clone())
    }

    /// Counts an answer to a gateway.
    pub fn picked(&self, outcome: &str) {
        self.picker.picks.inc(&[outcome]);
    }

    /// Counts which endpoint served a request.
    pub fn served(&self, by: &str) {
        self.picker.served.inc(&[by]);
    }
}

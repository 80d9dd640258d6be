use telemetry::traces::TraceObserver;

use super::Metrics;
use super::labelled::{Counter, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Spec, of};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_traces_total",
        kind: Kind::Counter,
        unit: "traces",
        labels: &[of(
            "outcome",
            &["error", "objective", "slow", "asked", "share", "discarded"],
        )],
        help: "Traces of finished requests by the reason for keeping them, or discarded.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_traces_lost_total",
        kind: Kind::Counter,
        unit: "traces",
        labels: &[of("why", &["queue", "export"])],
        help: "Kept traces that were not sent: the queue was full, or the collector did not accept them.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_traces_sent_total",
        kind: Kind::Counter,
        unit: "traces",
        labels: &[],
        help: "Traces that the collector accepted.",
        gen_ai: None,
    },
];

/// Counters of traces by outcome.
#[derive(Clone, Debug)]
pub struct TraceCounters {
    ended: Labelled<Counter>,
    /// The series of `ended` for discarded traces, which are nearly all.
    discarded: Counter,
    lost: Labelled<Counter>,
    sent: Counter,
}

impl TraceCounters {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let ended = metrics.labelled("tailroute_traces_total")?;
        for outcome in ["error", "objective", "slow", "asked", "share", "discarded"] {
            ended.with_label_values(&[outcome]);
        }
        let lost = metrics.labelled("tailroute_traces_lost_total")?;
        for why in ["queue", "export"] {
            lost.with_label_values(&[why]);
        }
        let sent = metrics.single("tailroute_traces_sent_total")?;
        Ok(Self {
            discarded: ended.with_label_values(&["discarded"]),
            ended,
            lost,
            sent,
        })
    }
}

impl TraceObserver for TraceCounters {
    fn kept(&self, why: &str) {
        self.ended.inc(&[why]);
    }

    fn discarded(&self) {
        self.discarded.inc();
    }

    fn lost(&self, why: &str, traces: u64) {
        self.lost.add(&[why], traces);
    }

    fn sent(&self, traces: u64) {
        self.sent.inc_by(traces);
    }
}

impl Metrics {
    pub fn traces(&self) -> TraceCounters {
        self.traces.clone()
    }
}

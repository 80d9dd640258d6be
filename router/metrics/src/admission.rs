//! Metrics of admission and configuration.

use super::labelled::{Counter, Histogram, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{KEY, Kind, SECONDS, Spec, of};
use super::{AdmissionGauges, Metrics, clamp};

/// Codes of the errors with which the router refuses requests for lack of room.
const REFUSALS: &[&str] = &[
    "overloaded",
    "queue_full",
    "queue_timeout",
    "objective_out_of_reach",
];

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
        help: "Turns admitted and requests rejected, by key.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_requests_refused_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[of("reason", REFUSALS)],
        help: "Requests refused for lack of room, by the code of the error: `limits.max_in_flight` (overloaded), \
            `admission.max_queue`, `admission.queue_timeout_s`, `admission.shed`.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_admission_wait_seconds",
        kind: Kind::Histogram(&SECONDS),
        unit: "seconds",
        labels: &[KEY],
        help: "Time from a turn's last byte in to its admission.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_admission_waiting",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Requests waiting in the router.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_admission_inside",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Admitted requests that have not ended, if their number is limited.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_config_reloads_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[of("outcome", &["applied", "refused"])],
        help: "Configuration reloads: applied, or refused because of an error.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tls_failures_total",
        kind: Kind::Counter,
        unit: "connections",
        labels: &[],
        help: "Failed TLS handshakes on the data port.",
        gen_ai: None,
    },
];

/// Metrics of admission. The label `key` is a configured name, `anonymous` without keys, or empty for a request without
/// a valid key.
#[derive(Debug)]
pub(super) struct AdmissionMetrics {
    requests: Labelled<Counter>,
    wait_seconds: Labelled<Histogram>,
    reloads: Labelled<Counter>,
    no_tls: Counter,
    waiting: IntGauge,
    inside: IntGauge,
    refused: Labelled<Counter>,
}

impl AdmissionMetrics {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let reloads = metrics.labelled("tailroute_config_reloads_total")?;
        for outcome in ["applied", "refused"] {
            reloads.with_label_values(&[outcome]);
        }
        let refused = metrics.labelled("tailroute_requests_refused_total")?;
        for reason in REFUSALS {
            refused.with_label_values(&[reason]);
        }
        Ok(Self {
            refused,
            reloads,
            requests: metrics.labelled("tailroute_admission_requests_total")?,
            wait_seconds: metrics.labelled("tailroute_admission_wait_seconds")?,
            no_tls: metrics.single("tailroute_tls_failures_total")?,
            waiting: metrics.single("tailroute_admission_waiting")?,
            inside: metrics.single("tailroute_admission_inside")?,
        })
    }
}

impl Metrics {
    /// Counts an admitted turn or a refused request.
    pub fn admission(&self, key: &str, outcome: &str) {
        self.admission.requests.inc(&[key, outcome]);
    }

    /// Counts a request that is refused for lack of room, by the error's code.
    pub fn refused(&self, reason: &str) {
        self.admission.refused.inc(&[reason]);
    }

    /// Returns the number of requests refused for lack of room since the start.
    #[must_use]
    pub fn all_refused(&self) -> u64 {
        let count = |reason| self.admission.refused.get(&[reason]);
        REFUSALS.iter().copied().map(count).sum()
    }

    /// Counts an admitted turn and its wait.
    pub fn admitted(&self, key: &str, waited_s: f64) {
        self.admission(key, "admitted");
        self.admission.wait_seconds.observe(&[key], waited_s);
    }

    /// Counts a reload of the configuration, applied or refused.
    pub fn reloaded(&self, applied: bool) {
        let outcome = if applied { "applied" } else { "refused" };
        self.admission.reloads.inc(&[outcome]);
    }

    /// Counts a failed TLS handshake on the data port.
    pub fn no_tls(&self) {
        self.admission.no_tls.inc();
    }

    pub(super) fn set_admission(&self, gauges: AdmissionGauges) {
        self.admission.waiting.set(clamp(gauges.waiting as u64));
        self.admission.inside.set(clamp(gauges.admitted as u64));
    }
}

//! Metrics of failing workers.

use super::Metrics;
use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Spec, WORKER, of};

use fleet::breaker::BreakerState;

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_retries_total",
        kind: Kind::Counter,
        unit: "attempts",
        labels: &[WORKER],
        help: "Failed attempts that were retried on another worker: processing cannot have begun, or a retry is \
            harmless.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_retries_refused_total",
        kind: Kind::Counter,
        unit: "attempts",
        labels: &[],
        help: "Failed attempts that were not retried because the retry budget was exhausted.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_breaker_opened_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[WORKER],
        help: "Times that the worker's breaker opened because its requests failed.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_breaker_passed_over_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[],
        help: "Open breakers that were ignored in a choice because too few other workers were left.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_breaker",
        kind: Kind::Gauge,
        unit: "state",
        labels: &[WORKER],
        help: "State of the worker's breaker: 0 closed, 1 half open (one request passes), 2 open.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_hedges_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[of("what", &["sent", "won", "refused"])],
        help: "Turns hedged on a second worker because the first was late: sent, won (the second answered first), \
            refused (no budget).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_in_flight_drift_total",
        kind: Kind::Counter,
        unit: "looks",
        labels: &[WORKER],
        help: "Polls of the worker's queue that showed fewer requests than the router counts, from the third in a row.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_claims_clamped_total",
        kind: Kind::Counter,
        unit: "answers",
        labels: &[WORKER, of("what", &["prompt", "completion", "cached", "times"])],
        help: "Responses with implausibly high token or time counts, which were clamped.",
        gen_ai: None,
    },
];

#[derive(Debug)]
pub(super) struct FailureMetrics {
    retries: Labelled<Counter>,
    refused: Counter,
    opened: Labelled<Counter>,
    passed_over: Counter,
    standing: Labelled<IntGauge>,
    hedges: Labelled<Counter>,
    drift: Labelled<Counter>,
    clamped: Labelled<Counter>,
}

impl FailureMetrics {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let failures = Self {
            retries: metrics.labelled("tailroute_retries_total")?,
            refused: metrics.single("tailroute_retries_refused_total")?,
            opened: metrics.labelled("tailroute_breaker_opened_total")?,
            passed_over: metrics.single("tailroute_breaker_passed_over_total")?,
            standing: metrics.labelled("tailroute_worker_breaker")?,
            hedges: metrics.labelled("tailroute_hedges_total")?,
            drift: metrics.labelled("tailroute_in_flight_drift_total")?,
            clamped: metrics.labelled("tailroute_claims_clamped_total")?,
        };
        for what in ["sent", "won", "refused"] {
            failures.hedges.with_label_values(&[what]);
        }
        Ok(failures)
    }
}

impl Metrics {
    /// Counts a failed attempt on this worker that is retried on another one.
    pub fn retry(&self, worker: &str) {
        self.failures.retries.inc(&[worker]);
    }

    /// Counts a retry that the budget refused.
    pub fn retry_refused(&self) {
        self.failures.refused.inc();
    }

    /// Counts a breaker that opened.
    pub fn breaker_opened(&self, worker: &str) {
        self.failures.opened.inc(&[worker]);
    }

    /// Counts open breakers that were ignored in a choice.
    pub fn breakers_passed_over(&self, count: usize) {
        if count > 0 {
            self.failures.passed_over.inc_by(count as u64);
        }
    }

    pub(super) fn breaker(&self, worker: &str, standing: BreakerState) {
        let value = match standing {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        self.failures.standing.set(&[worker], value);
        // Exposed as zero before the first.
        self.failures.opened.with_label_values(&[worker]);
        self.failures.drift.with_label_values(&[worker]);
        for what in ["prompt", "completion", "cached", "times"] {
            self.failures.clamped.with_label_values(&[worker, what]);
        }
    }

    /// Counts a hedged turn: `sent` to a second worker, `won` by it, or `refused` by the budget.
    pub fn hedge(&self, what: &str) {
        self.failures.hedges.inc(&[what]);
    }

    /// Counts a response with an implausible count, which was clamped.
    pub fn clamped(&self, worker: &str, what: &str) {
        self.failures.clamped.inc(&[worker, what]);
    }

    /// Counts a poll that showed a lasting difference between a worker's count of requests and the router's higher one.
    pub fn in_flight_drift(&self, worker: &str) {
        self.failures.drift.inc(&[worker]);
    }
}

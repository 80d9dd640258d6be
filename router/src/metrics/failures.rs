//! What is done about workers that fail.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::Metrics;
use super::registrar::Registrar;
use crate::fleet::breaker::Standing;

/// Retries that were refused, breakers, hedges, and counts that do not agree.
#[derive(Debug)]
pub(super) struct Failures {
    refused: IntCounterVec,
    opened: IntCounterVec,
    passed_over: IntCounterVec,
    standing: IntGaugeVec,
    hedges: IntCounterVec,
    drift: IntCounterVec,
}

impl Failures {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, prometheus::Error> {
        let failures = Self {
            refused: metrics.counter(
                "tailroute_retries_refused_total",
                "Attempts that might have been tried elsewhere, but for which the retry budget had nothing left.",
                &[],
            )?,
            opened: metrics.counter(
                "tailroute_breaker_opened_total",
                "Times that a worker's breaker opened because its requests failed.",
                &["worker"],
            )?,
            passed_over: metrics.counter(
                "tailroute_breaker_passed_over_total",
                "Open breakers that were passed over in a choice because too few other workers were left.",
                &[],
            )?,
            standing: metrics.gauge(
                "tailroute_worker_breaker",
                "What the worker's breaker lets through: 0 everything (closed), 1 one request (half open), 2 nothing (open).",
                &["worker"],
            )?,
            hedges: metrics.counter(
                "tailroute_hedges_total",
                "Turns sent to a second worker beside a late one: sent, won (it answered first), refused (no budget).",
                &["what"],
            )?,
            drift: metrics.counter(
                "tailroute_in_flight_drift_total",
                "Looks at a worker's own queue that showed fewer requests than are counted here, from the third in a row.",
                &["worker"],
            )?,
        };
        failures.refused.with_label_values::<&str>(&[]);
        failures.passed_over.with_label_values::<&str>(&[]);
        for what in ["sent", "won", "refused"] {
            failures.hedges.with_label_values(&[what]);
        }
        Ok(failures)
    }
}

impl Metrics {
    /// A retry would have been possible, but the budget is used up.
    pub fn retry_refused(&self) {
        self.failures.refused.with_label_values::<&str>(&[]).inc();
    }

    /// A worker's breaker opened.
    pub fn breaker_opened(&self, worker: &str) {
        self.failures.opened.with_label_values(&[worker]).inc();
    }

    /// So many open breakers were passed over.
    pub fn breakers_passed_over(&self, count: usize) {
        if count > 0 {
            self.failures
                .passed_over
                .with_label_values::<&str>(&[])
                .inc_by(count as u64);
        }
    }

    /// What a worker's breaker lets through now.
    pub(super) fn breaker(&self, worker: &str, standing: Standing) {
        let value = match standing {
            Standing::Closed => 0,
            Standing::HalfOpen => 1,
            Standing::Open => 2,
        };
        self.failures.standing.with_label_values(&[worker]).set(value);
        // Shown as zero before the first.
        self.failures.opened.with_label_values(&[worker]);
        self.failures.drift.with_label_values(&[worker]);
    }

    /// A turn was, or would have been, sent to a second worker.
    pub fn hedge(&self, what: &str) {
        self.failures.hedges.with_label_values(&[what]).inc();
    }

    /// A worker knows of fewer requests than are counted here, and not for a moment only.
    pub fn in_flight_drift(&self, worker: &str) {
        self.failures.drift.with_label_values(&[worker]).inc();
    }
}

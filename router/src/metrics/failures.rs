//! Metrics of failing workers.

use super::Metrics;
use super::labelled::{Counter, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use fleet::breaker::Standing;

/// Refused retries, breakers, hedges, and differing counts.
#[derive(Debug)]
pub(super) struct Failures {
    refused: Counter,
    opened: Labelled<Counter>,
    passed_over: Counter,
    standing: Labelled<IntGauge>,
    hedges: Labelled<Counter>,
    drift: Labelled<Counter>,
    clamped: Labelled<Counter>,
}

impl Failures {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let failures = Self {
            refused: metrics.plain_counter("tailroute_retries_refused_total")?,
            opened: metrics.counter("tailroute_breaker_opened_total")?,
            passed_over: metrics.plain_counter("tailroute_breaker_passed_over_total")?,
            standing: metrics.gauge("tailroute_worker_breaker")?,
            hedges: metrics.counter("tailroute_hedges_total")?,
            drift: metrics.counter("tailroute_in_flight_drift_total")?,
            clamped: metrics.counter("tailroute_claims_clamped_total")?,
        };
        for what in ["sent", "won", "refused"] {
            failures.hedges.with_label_values(&[what]);
        }
        Ok(failures)
    }
}

impl Metrics {
    /// Counts a retry that the budget refused.
    pub fn retry_refused(&self) {
        self.failures.refused.inc();
    }

    /// Counts a breaker that opened.
    pub fn breaker_opened(&self, worker: &str) {
        self.failures.opened.with_label_values(&[worker]).inc();
    }

    /// Counts open breakers that were overridden.
    pub fn breakers_passed_over(&self, count: usize) {
        if count > 0 {
            self.failures.passed_over.inc_by(count as u64);
        }
    }

    /// Sets the state of a worker's breaker.
    pub(super) fn breaker(&self, worker: &str, standing: Standing) {
        let value = match standing {
            Standing::Closed => 0,
            Standing::HalfOpen => 1,
            Standing::Open => 2,
        };
        self.failures.standing.with_label_values(&[worker]).set(value);
        // Exposed as zero before the first.
        self.failures.opened.with_label_values(&[worker]);
        self.failures.drift.with_label_values(&[worker]);
        for what in ["prompt", "completion", "cached", "times"] {
            self.failures.clamped.with_label_values(&[worker, what]);
        }
    }

    /// Counts a turn that was, or would have been, sent to a second worker.
    pub fn hedge(&self, what: &str) {
        self.failures.hedges.with_label_values(&[what]).inc();
    }

    /// Counts an implausible claim of a worker.
    pub fn clamped(&self, worker: &str, what: &str) {
        self.failures.clamped.with_label_values(&[worker, what]).inc();
    }

    /// Counts a lasting difference between a worker's count of requests and the higher one here.
    pub fn in_flight_drift(&self, worker: &str) {
        self.failures.drift.with_label_values(&[worker]).inc();
    }
}

//! Metrics of requests and turns.

use policy::slo::Cause;
use policy::units::Millis;

use super::labelled::{Counter, Histogram, Labelled};
use super::registrar::{MetricError, Registrar};
use super::{Metrics, yes_no};
use telemetry::context::TraceId;

/// Requests, turns, decisions and hints.
#[derive(Debug)]
pub(super) struct Requests {
    requests: Labelled<Counter>,
    request_seconds: Labelled<Histogram>,
    ttft_seconds: Labelled<Histogram>,
    ttft_error_seconds: Labelled<Histogram>,
    slo_turns: Labelled<Counter>,
    violations: Labelled<Counter>,
    avoidable: Labelled<Counter>,
    decisions: Labelled<Counter>,
    worker_turns: Labelled<Counter>,
    retries: Labelled<Counter>,
    hints: Labelled<Counter>,
    captured: Labelled<Counter>,
    cost_samples: Labelled<Counter>,
}

impl Requests {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            requests: metrics.counter("tailroute_requests_total")?,
            request_seconds: metrics.histogram("tailroute_request_duration_seconds")?,
            ttft_seconds: metrics.histogram("tailroute_time_to_first_token_seconds")?,
            ttft_error_seconds: metrics.histogram("tailroute_time_to_first_token_error_seconds")?,
            slo_turns: metrics.counter("tailroute_slo_turns_total")?,
            violations: metrics.counter("tailroute_slo_violations_total")?,
            avoidable: metrics.counter("tailroute_avoidable_prefill_tokens_total")?,
            decisions: metrics.counter("tailroute_decisions_total")?,
            worker_turns: metrics.counter("tailroute_worker_turns_total")?,
            retries: metrics.counter("tailroute_retries_total")?,
            hints: metrics.counter("tailroute_hints_total")?,
            captured: metrics.counter("tailroute_capture_turns_total")?,
            cost_samples: metrics.counter("tailroute_worker_cost_answers_total")?,
        })
    }

    /// Exposes series with fixed labels as zero before their first event.
    pub(super) fn show_all(&self) {
        for why in ["elsewhere", "mistaken"] {
            self.avoidable.with_label_values(&[why]);
        }
        for met in ["true", "false"] {
            self.slo_turns.with_label_values(&["default", met]);
        }
        for cause in Cause::ALL {
            self.violations.with_label_values(&["default", cause.as_str()]);
        }
    }

    /// Exposes the worker's cost samples as zero before the first.
    pub(super) fn show(&self, worker: &str) {
        for told in ["engine", "clean", "predicted", "late", "none"] {
            self.cost_samples.with_label_values(&[worker, told]);
        }
    }
}

impl Metrics {
    /// Counts a completed request.
    pub fn request(&self, endpoint: &str, outcome: &str, seconds: f64) {
        self.request_of(endpoint, outcome, seconds, None);
    }

    /// Counts a completed request with its trace.
    pub fn request_of(&self, endpoint: &str, outcome: &str, seconds: f64, trace: Option<TraceId>) {
        self.requests
            .requests
            .with_label_values(&[endpoint, outcome])
            .inc();
        self.requests
            .request_seconds
            .with_label_values(&[endpoint])
            .observe_of(seconds, trace);
    }

    /// Records a first token: the time it took, its error against the prediction, and the objective.
    pub fn first_token(
        &self,
        worker: &str,
        class: &str,
        [actual, error, objective]: [Millis; 3],
        trace: Option<TraceId>,
    ) {
        self.requests
            .ttft_seconds
            .with_label_values(&[worker])
            .observe_of(actual.0 / 1e3, trace);
        self.requests
            .ttft_error_seconds
            .with_label_values(&[worker])
            .observe(error.0.abs() / 1e3);
        let met = yes_no(actual <= objective);
        self.requests.slo_turns.with_label_values(&[class, met]).inc();
    }

    /// Counts a completed turn that missed its objective.
    pub fn violation(&self, class: &str, cause: Cause) {
        self.requests
            .violations
            .with_label_values(&[class, cause.as_str()])
            .inc();
    }

    /// Counts computed prompt tokens that another worker held, and those that were predicted to be cached.
    pub fn avoidable(&self, [elsewhere, mistaken]: [u64; 2]) {
        for (why, tokens) in [("elsewhere", elsewhere), ("mistaken", mistaken)] {
            if tokens > 0 {
                self.requests.avoidable.with_label_values(&[why]).inc_by(tokens);
            }
        }
    }

    /// Returns the turns of a class that met their objective, and those that did not.
    #[must_use]
    pub fn slo_turns(&self, class: &str) -> (u64, u64) {
        let count = |met| self.requests.slo_turns.with_label_values(&[class, met]).get();
        (count("true"), count("false"))
    }

    /// Counts a response by the source of its prefill time.
    pub fn cost_sample(&self, worker: &str, told: &str) {
        self.requests
            .cost_samples
            .with_label_values(&[worker, told])
            .inc();
    }

    /// Counts a routing decision.
    pub fn decision(&self, policy: &str, reason: &str, worker: &str) {
        self.requests.decisions.with_label_values(&[policy, reason]).inc();
        self.requests.worker_turns.with_label_values(&[worker]).inc();
    }

    /// Counts a retry on another worker.
    pub fn retry(&self, worker: &str) {
        self.requests.retries.with_label_values(&[worker]).inc();
    }

    /// Counts a hint by whether it was delivered.
    pub fn hint(&self, worker: &str, kind: &str, delivered: bool) {
        self.requests
            .hints
            .with_label_values(&[worker, kind, yes_no(delivered)])
            .inc();
    }

    /// Returns the capture's counter.
    #[must_use]
    pub fn captured(&self) -> Labelled<Counter> {
        self.requests.captured.clone()
    }
}

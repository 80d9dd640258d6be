//! What the request's way counts as it goes.

use prometheus::{HistogramVec, IntCounterVec};

use super::registrar::Registrar;
use super::{Metrics, yes_no};

/// Requests, turns, choices and hints.
#[derive(Debug)]
pub(super) struct Requests {
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    ttft_seconds: HistogramVec,
    ttft_error_seconds: HistogramVec,
    slo_turns: IntCounterVec,
    decisions: IntCounterVec,
    retries: IntCounterVec,
    hints: IntCounterVec,
    captured: IntCounterVec,
    cost_samples: IntCounterVec,
}

impl Requests {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: metrics.counter(
                "tailroute_requests_total",
                "Requests by endpoint and outcome: ok, client_error, worker_error, router_error, aborted, broken, deadline (their \
                 own time was up), cut (the router had to go).",
                &["endpoint", "outcome"],
            )?,
            request_seconds: metrics.seconds(
                "tailroute_request_duration_seconds",
                "From a request's last byte in to its answer's last byte out.",
                &["endpoint"],
            )?,
            ttft_seconds: metrics.seconds(
                "tailroute_time_to_first_token_seconds",
                "From a turn's last byte in to its first token out.",
                &["worker"],
            )?,
            ttft_error_seconds: metrics.seconds(
                "tailroute_time_to_first_token_error_seconds",
                "Absolute difference between predicted and actual time to first token.",
                &["worker"],
            )?,
            slo_turns: metrics.counter(
                "tailroute_slo_turns_total",
                "Turns by the class of their objective and by whether their first token met it.",
                &["class", "met"],
            )?,
            decisions: metrics.counter(
                "tailroute_decisions_total",
                "Choices by policy, the rule that decided, and the worker.",
                &["policy", "reason", "worker"],
            )?,
            retries: metrics.counter(
                "tailroute_retries_total",
                "Attempts that failed and were tried elsewhere: the worker cannot have begun, or it does no harm.",
                &["worker"],
            )?,
            hints: metrics.counter(
                "tailroute_hints_total",
                "Hints by worker, kind, and whether they were delivered.",
                &["worker", "kind", "delivered"],
            )?,
            captured: metrics.counter(
                "tailroute_capture_turns_total",
                "Turns for the capture by what became of them: written, dropped (the queue was full), late (later ones \
                 had been written), failed (the disk).",
                &["outcome"],
            )?,
            cost_samples: metrics.counter(
                "tailroute_worker_cost_answers_total",
                "Answers by whether they told what their prefill took: engine (its own clock), clean (it had the worker \
                 to itself), predicted (one of both, but how much was cached is a prediction), late (clean, and taught at the first token; the answer \
                 itself then counts as none), none. And intervals learned from because no answer told: counters.",
                &["worker", "told"],
            )?,
        })
    }

    /// Shows the worker's answers as zero before the first.
    pub(super) fn show(&self, worker: &str) {
        for told in ["engine", "clean", "predicted", "late", "none"] {
            self.cost_samples.with_label_values(&[worker, told]);
        }
    }
}

impl Metrics {
    /// A request ended.
    pub fn request(&self, endpoint: &str, outcome: &str, seconds: f64) {
        self.requests
            .requests
            .with_label_values(&[endpoint, outcome])
            .inc();
        self.requests
            .request_seconds
            .with_label_values(&[endpoint])
            .observe(seconds);
    }

    /// A first token left.
    pub fn first_token(&self, worker: &str, class: &str, actual_s: f64, predicted_s: f64, objective_s: f64) {
        self.requests
            .ttft_seconds
            .with_label_values(&[worker])
            .observe(actual_s);
        self.requests
            .ttft_error_seconds
            .with_label_values(&[worker])
            .observe((actual_s - predicted_s).abs());
        let met = yes_no(actual_s <= objective_s);
        self.requests.slo_turns.with_label_values(&[class, met]).inc();
    }

    /// Turns of a class that met their objective, and that did not.
    #[must_use]
    pub fn slo_turns(&self, class: &str) -> (u64, u64) {
        let count = |met| self.requests.slo_turns.with_label_values(&[class, met]).get();
        (count("true"), count("false"))
    }

    /// An answer told what its prefill took, or did not.
    pub fn cost_sample(&self, worker: &str, told: &str) {
        self.requests
            .cost_samples
            .with_label_values(&[worker, told])
            .inc();
    }

    /// A worker was chosen.
    pub fn decision(&self, policy: &str, reason: &str, worker: &str) {
        self.requests
            .decisions
            .with_label_values(&[policy, reason, worker])
            .inc();
    }

    /// An attempt is tried elsewhere.
    pub fn retry(&self, worker: &str) {
        self.requests.retries.with_label_values(&[worker]).inc();
    }

    /// A hint was delivered, or not.
    pub fn hint(&self, worker: &str, kind: &str, delivered: bool) {
        self.requests
            .hints
            .with_label_values(&[worker, kind, yes_no(delivered)])
            .inc();
    }

    /// The counter of the capture, which counts where it writes.
    #[must_use]
    pub fn captured(&self) -> IntCounterVec {
        self.requests.captured.clone()
    }
}

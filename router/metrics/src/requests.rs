use policy::route::{PolicyName, Reason};
use policy::slo::Cause;
use policy::units::Millis;

use super::labelled::{Counter, Gauge, Histogram, IntGauge, Labelled, RealCounter, Workers, raise};
use super::page::Gauges;
use super::registrar::{MetricError, Registrar};
use super::spec::{CLASS, Kind, Label, SECONDS, Spec, TRACED_SECONDS, WORKER, of};
use super::{Metrics, clamp, yes_no};
use protocol::routes::Route;
use telemetry::context::TraceId;

pub(super) const ENDPOINT: Label = of("endpoint", &Route::NAMES);

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_requests_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[
            ENDPOINT,
            of(
                "outcome",
                &[
                    "ok",
                    "client_error",
                    "declined",
                    "worker_error",
                    "error_in_body",
                    "router_error",
                    "aborted",
                    "broken",
                    "deadline",
                    "cut",
                ],
            ),
        ],
        help: "Requests by endpoint and outcome; `declined`: every worker that was asked had no room, `error_in_body`: an \
            error in a response of 200, `deadline`: the request's own deadline passed, `cut`: the router shut down.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_request_duration_seconds",
        kind: Kind::Histogram(&TRACED_SECONDS),
        unit: "seconds",
        labels: &[ENDPOINT],
        help: "Time from a request's last byte in to its response's last byte out.",
        gen_ai: Some("gen_ai.server.request.duration"),
    },
    Spec {
        name: "tailroute_time_to_first_token_seconds",
        kind: Kind::Histogram(&TRACED_SECONDS),
        unit: "seconds",
        labels: &[WORKER],
        help: "Time from a turn's last byte in to its first token out.",
        gen_ai: Some("gen_ai.server.time_to_first_token"),
    },
    Spec {
        name: "tailroute_time_to_first_token_error_seconds",
        kind: Kind::Histogram(&SECONDS),
        unit: "seconds",
        labels: &[WORKER],
        help: "Absolute difference between predicted and actual time to first token, excluding the time that the \
            router held the turn.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_time_to_first_token_signed_error_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER, of("percentile", &["10", "50", "90"])],
        help: "Actual minus predicted time to first token over the worker's last 256 first tokens; negative if it \
            was faster than predicted.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_slo_turns_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[CLASS, of("met", &["true", "false"])],
        help: "Turns by the class of their objective and whether their first token came within it. A response that does \
            not stream counts only if its request names its objective.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tail_excess_seconds_total",
        kind: Kind::Counter,
        unit: "seconds",
        labels: &[CLASS, WORKER],
        help: "Tail excess latency: time to first token beyond the objective, over all turns of \
            `tailroute_slo_turns_total`. Turns within their objective add nothing.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_slo_violations_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[
            CLASS,
            of(
                "cause",
                &[
                    "queue",
                    "miss",
                    "slow_worker",
                    "engine",
                    "network",
                    "prompt",
                    "whole",
                ],
            ),
        ],
        help: "Finished turns whose first token missed their objective, by the class of the objective and by cause \
            (docs/explain.md).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_avoidable_prefill_tokens_total",
        kind: Kind::Counter,
        unit: "tokens",
        labels: &[of("why", &["elsewhere", "mistaken"])],
        help: "Computed prompt tokens that an ideal choice would have found cached: another worker held them \
            (elsewhere), or they were predicted on the chosen worker and were missing (mistaken).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_decisions_total",
        kind: Kind::Counter,
        unit: "choices",
        labels: &[of("policy", PolicyName::NAMES), of("reason", Reason::NAMES)],
        help: "Choices by policy and the rule that decided.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_capture_turns_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[of("outcome", &["written", "dropped", "late", "failed"])],
        help: "Captured turns by outcome: written, dropped (the queue was full, or memory too small), late (later \
            turns were already written), failed (disk error).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tasks",
        kind: Kind::Gauge,
        unit: "tasks",
        labels: &[],
        help: "Tasks alive in the runtime: a few for each connection and each worker.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_lessons_dropped_total",
        kind: Kind::Counter,
        unit: "events",
        labels: &[],
        help: "Events of turns that the learner did not get, because its queue was full.",
        gen_ai: None,
    },
];

#[derive(Debug)]
pub(super) struct Requests {
    requests: Labelled<Counter>,
    request_seconds: Labelled<Histogram>,
    ttft_seconds: Labelled<Histogram>,
    ttft_error_seconds: Labelled<Histogram>,
    slo_turns: Labelled<Counter>,
    tail_excess: Labelled<RealCounter>,
    violations: Labelled<Counter>,
    avoidable: Labelled<Counter>,
    decisions: Labelled<Counter>,
    captured: Labelled<Counter>,
    ttft_error: Labelled<Gauge>,
    tasks: IntGauge,
    lessons_dropped: Counter,
}

impl Requests {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            requests: metrics.labelled("tailroute_requests_total")?,
            request_seconds: metrics.labelled("tailroute_request_duration_seconds")?,
            ttft_seconds: metrics.labelled("tailroute_time_to_first_token_seconds")?,
            ttft_error_seconds: metrics.labelled("tailroute_time_to_first_token_error_seconds")?,
            slo_turns: metrics.labelled("tailroute_slo_turns_total")?,
            tail_excess: metrics.labelled("tailroute_tail_excess_seconds_total")?,
            violations: metrics.labelled("tailroute_slo_violations_total")?,
            avoidable: metrics.labelled("tailroute_avoidable_prefill_tokens_total")?,
            decisions: metrics.labelled("tailroute_decisions_total")?,
            captured: metrics.labelled("tailroute_capture_turns_total")?,
            ttft_error: metrics.labelled("tailroute_time_to_first_token_signed_error_seconds")?,
            tasks: metrics.single("tailroute_tasks")?,
            lessons_dropped: metrics.single("tailroute_lessons_dropped_total")?,
        })
    }

    /// Sets the gauges, and exposes counters that are still zero.
    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
        for why in ["elsewhere", "mistaken"] {
            self.avoidable.with_label_values(&[why]);
        }
        for met in ["true", "false"] {
            self.slo_turns.with_label_values(&["default", met]);
        }
        for cause in Cause::ALL {
            self.violations.with_label_values(&["default", cause.as_str()]);
        }
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            self.tail_excess.with_label_values(&["default", &worker.name]);
            for (percentile, error) in worker.ttft_errors.into_iter().flatten() {
                self.ttft_error.set(&[&worker.name, percentile], error.0 / 1e3);
            }
        }
        self.tasks.set(clamp(gauges.tasks));
        raise(&self.lessons_dropped, gauges.lessons_dropped);
    }
}

impl Metrics {
    /// Counts a completed request.
    pub fn request(&self, endpoint: &str, outcome: &str, seconds: f64) {
        self.request_of(endpoint, outcome, seconds, None);
    }

    /// Counts a completed request, with its trace as an exemplar.
    pub fn request_of(&self, endpoint: &str, outcome: &str, seconds: f64, trace: Option<TraceId>) {
        self.requests.requests.inc(&[endpoint, outcome]);
        self.requests
            .request_seconds
            .observe_of(&[endpoint], seconds, trace);
    }

    /// Records a first token: the time it took, and its error against the prediction.
    pub fn first_token(&self, worker: &str, [actual, error]: [Millis; 2], trace: Option<TraceId>) {
        self.requests
            .ttft_seconds
            .observe_of(&[worker], actual.0 / 1e3, trace);
        self.requests
            .ttft_error_seconds
            .observe(&[worker], error.0.abs() / 1e3);
    }

    /// Counts a turn that its objective judges, and the time by which its first token exceeded it: zero within it.
    pub fn judged(&self, class: &str, worker: &str, excess: Millis) {
        let met = yes_no(excess <= Millis::ZERO);
        self.requests.slo_turns.inc(&[class, met]);
        // Zero is added too: `rate` sees an excess only in a series that began before it.
        self.requests.tail_excess.add(&[class, worker], excess.0 / 1e3);
    }

    /// Counts a completed turn that missed its objective.
    pub fn violation(&self, class: &str, cause: Cause) {
        self.requests.violations.inc(&[class, cause.as_str()]);
    }

    /// Counts computed prompt tokens that another worker held, and those that were predicted to be cached.
    pub fn avoidable(&self, [elsewhere, mistaken]: [u64; 2]) {
        for (why, tokens) in [("elsewhere", elsewhere), ("mistaken", mistaken)] {
            if tokens > 0 {
                self.requests.avoidable.add(&[why], tokens);
            }
        }
    }

    /// Returns the turns of a class within their objective, and those that were late.
    #[must_use]
    pub fn slo_turns(&self, class: &str) -> (u64, u64) {
        let count = |met| self.requests.slo_turns.get(&[class, met]);
        (count("true"), count("false"))
    }

    /// Counts a routing decision, and a turn of the chosen worker.
    pub fn decision(&self, policy: &str, reason: &str, worker: &str) {
        self.requests.decisions.inc(&[policy, reason]);
        self.turn_of(worker);
    }

    /// Returns the counter of captured turns, by outcome.
    #[must_use]
    pub fn captured(&self) -> Labelled<Counter> {
        self.requests.captured.clone()
    }
}

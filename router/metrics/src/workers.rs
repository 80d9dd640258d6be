use super::labelled::{Counter, Gauge, IntGauge, Labelled, Workers};
use super::page::{Gauges, WorkerGauges};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Spec, WORKER, gauge, of};
use super::{Metrics, clamp, yes_no};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_workers",
        kind: Kind::Gauge,
        unit: "workers",
        labels: &[of("state", &["ready", "not_ready"])],
        help: "Workers by readiness, including those without separate series.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_ready",
        kind: Kind::Gauge,
        unit: "yes or no",
        labels: &[WORKER],
        help: "1 if the worker is ready for requests.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_turns_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[WORKER],
        help: "Turns for which the worker was chosen.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_failures_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &[WORKER],
        help: "Requests that failed by the worker's fault, counted once each, for the first worker that failed it: lost \
            connections, timeouts, 5xx, responses that broke off and errors in a response of 200. Refusals for lack of \
            room do not count.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_in_flight",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[WORKER],
        help: "Requests sent and not finished.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_wait_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER],
        help: "Predicted wait before a request sent now starts its prefill.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_utilisation_ratio",
        kind: Kind::Gauge,
        unit: "share",
        labels: &[WORKER],
        help: "Prefill work routed to the worker, as a share of its time.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_resident_tokens",
        kind: Kind::Gauge,
        unit: "tokens",
        labels: &[WORKER],
        help: "Estimated tokens in the worker's cache.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_queue",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[WORKER, of("what", &["waiting", "running", "elsewhere", "lost"])],
        help: "Queue figures of the worker: requests waiting and running; of these, sent by others (elsewhere); \
            counted by the router but not by the worker (lost).",
        gen_ai: None,
    },
    gauge(
        "tailroute_worker_cost_alpha_seconds_per_token",
        "seconds per token",
        &[WORKER],
        "Estimated time that a prefill takes for each uncached token (α).",
    ),
    gauge(
        "tailroute_worker_cost_beta_seconds",
        "seconds",
        &[WORKER],
        "Estimated time that a prefill takes whatever its length (β).",
    ),
    gauge(
        "tailroute_worker_cost_gamma_seconds_per_token_squared",
        "seconds per token²",
        &[WORKER],
        "Estimated time that a prefill takes for each pair of an uncached token and one before it (γ).",
    ),
    gauge(
        "tailroute_worker_cost_floor_seconds",
        "seconds",
        &[WORKER],
        "Estimated time that a prefill takes at least.",
    ),
    gauge(
        "tailroute_worker_cost_overhead_seconds",
        "seconds",
        &[WORKER],
        "Estimated time that a first token takes beyond queue and prefill.",
    ),
    Spec {
        name: "tailroute_worker_cost_error_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER],
        help: "Error of predicting a typical prefill with that cost: the mean over responses, increasing while there are none.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_slow_ratio",
        kind: Kind::Gauge,
        unit: "times",
        labels: &[WORKER],
        help: "How many times as long a slow worker takes for a typical prefill as at its baseline; 1 after it has \
            recovered. Absent for a worker that was never slow.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_cost_answers_total",
        kind: Kind::Counter,
        unit: "answers",
        labels: &[
            WORKER,
            of(
                "told",
                &["engine", "clean", "predicted", "late", "none", "counters"],
            ),
        ],
        help: "Responses by how they measured their prefill: engine (reported by the engine), clean (alone on the \
            worker), predicted (either, but with predicted cached tokens), late (clean, learned at the first token; \
            the response itself then counts as none), none. Also counters: intervals learned from because no \
            response measured a prefill.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_hints_total",
        kind: Kind::Counter,
        unit: "hints",
        labels: &[
            WORKER,
            of("kind", &["trim", "ended", "moved", "protect", "objective"]),
            of("delivered", &["true", "false"]),
        ],
        help: "Hints by worker, kind, and whether they were delivered.",
        gen_ai: None,
    },
];

#[derive(Debug)]
pub(super) struct FleetMetrics {
    workers: Labelled<IntGauge>,
    ready: Labelled<IntGauge>,
    turns: Labelled<Counter>,
    failures: Labelled<Counter>,
    in_flight: Labelled<IntGauge>,
    wait_seconds: Labelled<Gauge>,
    utilisation: Labelled<Gauge>,
    resident_tokens: Labelled<IntGauge>,
    queue: Labelled<Gauge>,
    alpha: Labelled<Gauge>,
    beta: Labelled<Gauge>,
    gamma: Labelled<Gauge>,
    floor: Labelled<Gauge>,
    overhead: Labelled<Gauge>,
    cost_error: Labelled<Gauge>,
    slow: Labelled<Gauge>,
    cost_samples: Labelled<Counter>,
    hints: Labelled<Counter>,
}

impl FleetMetrics {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            workers: metrics.labelled("tailroute_workers")?,
            ready: metrics.labelled("tailroute_worker_ready")?,
            turns: metrics.labelled("tailroute_worker_turns_total")?,
            failures: metrics.labelled("tailroute_worker_failures_total")?,
            in_flight: metrics.labelled("tailroute_worker_in_flight")?,
            wait_seconds: metrics.labelled("tailroute_worker_wait_seconds")?,
            utilisation: metrics.labelled("tailroute_worker_utilisation_ratio")?,
            resident_tokens: metrics.labelled("tailroute_worker_resident_tokens")?,
            queue: metrics.labelled("tailroute_worker_queue")?,
            alpha: metrics.labelled("tailroute_worker_cost_alpha_seconds_per_token")?,
            beta: metrics.labelled("tailroute_worker_cost_beta_seconds")?,
            gamma: metrics.labelled("tailroute_worker_cost_gamma_seconds_per_token_squared")?,
            floor: metrics.labelled("tailroute_worker_cost_floor_seconds")?,
            overhead: metrics.labelled("tailroute_worker_cost_overhead_seconds")?,
            cost_error: metrics.labelled("tailroute_worker_cost_error_seconds")?,
            slow: metrics.labelled("tailroute_worker_slow_ratio")?,
            cost_samples: metrics.labelled("tailroute_worker_cost_answers_total")?,
            hints: metrics.labelled("tailroute_hints_total")?,
        })
    }

    /// Sets the numbers of ready and other workers, and the gauges of each worker that has own series.
    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
        let ready = gauges.workers.iter().filter(|worker| worker.ready).count();
        for (state, count) in [("ready", ready), ("not_ready", gauges.workers.len() - ready)] {
            self.workers.set(&[state], clamp(count as u64));
        }
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            self.set_worker(worker);
            // Series of responses are exposed as zero before the first response; `counters` is not.
            for told in ["engine", "clean", "predicted", "late", "none"] {
                self.cost_samples.with_label_values(&[&worker.name, told]);
            }
        }
    }

    fn set_worker(&self, worker: &WorkerGauges) {
        let name = &[worker.name.as_str()];
        self.ready.set(name, worker.ready.into());
        self.in_flight.set(name, worker.in_flight.into());
        self.utilisation.set(name, worker.utilisation);
        self.resident_tokens.set(name, clamp(worker.resident.0));
        let cost = worker.cost;
        for (gauge, ms) in [
            (&self.alpha, cost.alpha_ms_per_token),
            (&self.beta, cost.beta_ms),
            (&self.gamma, cost.gamma_ms_per_token2),
            (&self.floor, cost.floor_ms),
            (&self.overhead, worker.overhead.0),
            (&self.cost_error, worker.cost_error.0),
            (&self.wait_seconds, worker.wait.0),
        ] {
            gauge.set(name, ms / 1e3);
        }
        if let Some((figure, found)) = &worker.queue {
            for (what, requests) in [
                ("waiting", figure.waiting),
                ("running", figure.running),
                ("elsewhere", found.elsewhere),
                ("lost", found.lost),
            ] {
                self.queue.set(&[name[0], what], f64::from(requests));
            }
        }
    }
}

impl Metrics {
    pub(super) fn turn_of(&self, worker: &str) {
        self.fleet.turns.inc(&[worker]);
    }

    /// Counts a request that failed by the worker's fault.
    pub fn worker_failed(&self, worker: &str) {
        self.fleet.failures.inc(&[worker]);
    }

    /// Sets the time of a slow worker's typical prefill as a multiple of that at its baseline; 1 once it has recovered.
    pub fn worker_slow(&self, worker: &str, times: f64) {
        self.fleet.slow.set(&[worker], times);
    }

    /// Counts a measured prefill by its source, or a response without one as `none`.
    pub fn cost_sample(&self, worker: &str, told: &str) {
        self.fleet.cost_samples.inc(&[worker, told]);
    }

    /// Counts a hint by whether it was delivered.
    pub fn hint(&self, worker: &str, kind: &str, delivered: bool) {
        self.fleet.hints.inc(&[worker, kind, yes_no(delivered)]);
    }
}

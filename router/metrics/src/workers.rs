//! Metrics of workers.

use super::labelled::{Counter, Gauge, IntGauge, Labelled, Workers};
use super::page::{Gauges, WorkerGauges};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Spec, WORKER, of};
use super::{Metrics, clamp, yes_no};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_workers",
        kind: Kind::Gauge,
        unit: "workers",
        labels: &[of("state", &["ready", "not_ready"])],
        help: "Workers by readiness, including those without series of their own.",
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
    Spec {
        name: "tailroute_worker_cost",
        kind: Kind::Gauge,
        unit: "as the label says",
        labels: &[
            WORKER,
            of(
                "coefficient",
                &[
                    "alpha_ms_per_token",
                    "beta_ms",
                    "gamma_ms_per_token2",
                    "floor_ms",
                    "overhead_ms",
                ],
            ),
        ],
        help: "Estimated cost of a prefill, and the time that a first token takes beyond queue and prefill (overhead).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_cost_error_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER],
        help: "Error of predicting a typical prefill with that cost: the mean over responses, increasing while there are none.",
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
            of("kind", &["trim", "ended", "protect", "objective"]),
            of("delivered", &["true", "false"]),
        ],
        help: "Hints by worker, kind, and whether they were delivered.",
        gen_ai: None,
    },
];

/// The state of each worker, and what is counted of it.
#[derive(Debug)]
pub(super) struct Fleet {
    workers: Labelled<IntGauge>,
    ready: Labelled<IntGauge>,
    turns: Labelled<Counter>,
    in_flight: Labelled<IntGauge>,
    wait_seconds: Labelled<Gauge>,
    utilisation: Labelled<Gauge>,
    resident_tokens: Labelled<IntGauge>,
    queue: Labelled<Gauge>,
    cost: Labelled<Gauge>,
    cost_error: Labelled<Gauge>,
    cost_samples: Labelled<Counter>,
    hints: Labelled<Counter>,
}

impl Fleet {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            workers: metrics.gauge("tailroute_workers")?,
            ready: metrics.gauge("tailroute_worker_ready")?,
            turns: metrics.counter("tailroute_worker_turns_total")?,
            in_flight: metrics.gauge("tailroute_worker_in_flight")?,
            wait_seconds: metrics.real("tailroute_worker_wait_seconds")?,
            utilisation: metrics.real("tailroute_worker_utilisation_ratio")?,
            resident_tokens: metrics.gauge("tailroute_worker_resident_tokens")?,
            queue: metrics.real("tailroute_worker_queue")?,
            cost: metrics.real("tailroute_worker_cost")?,
            cost_error: metrics.real("tailroute_worker_cost_error_seconds")?,
            cost_samples: metrics.counter("tailroute_worker_cost_answers_total")?,
            hints: metrics.counter("tailroute_hints_total")?,
        })
    }

    /// Sets the gauges of all workers, and of those that have series of their own.
    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
        let ready = gauges.workers.iter().filter(|worker| worker.ready).count();
        for (state, count) in [("ready", ready), ("not_ready", gauges.workers.len() - ready)] {
            self.workers.with_label_values(&[state]).set(clamp(count as u64));
        }
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            self.set_worker(worker);
            // Exposed as zero before the first.
            for told in ["engine", "clean", "predicted", "late", "none"] {
                self.cost_samples.with_label_values(&[&worker.name, told]);
            }
        }
    }

    fn set_worker(&self, worker: &WorkerGauges) {
        let name = &[worker.name.as_str()];
        self.ready.with_label_values(name).set(worker.ready.into());
        self.in_flight
            .with_label_values(name)
            .set(worker.in_flight.into());
        self.wait_seconds.with_label_values(name).set(worker.wait.0 / 1e3);
        self.utilisation.with_label_values(name).set(worker.utilisation);
        self.resident_tokens
            .with_label_values(name)
            .set(clamp(worker.resident.0));
        let set = |gauge: &Labelled<Gauge>, what, value| {
            gauge.with_label_values(&[name[0], what]).set(value);
        };
        let cost = worker.cost;
        set(&self.cost, "alpha_ms_per_token", cost.alpha_ms_per_token);
        set(&self.cost, "beta_ms", cost.beta_ms);
        set(&self.cost, "gamma_ms_per_token2", cost.gamma_ms_per_token2);
        set(&self.cost, "floor_ms", cost.floor_ms);
        set(&self.cost, "overhead_ms", worker.overhead.0);
        self.cost_error
            .with_label_values(name)
            .set(worker.cost_error.0 / 1e3);
        if let Some((figure, found)) = &worker.queue {
            set(&self.queue, "waiting", f64::from(figure.waiting));
            set(&self.queue, "running", f64::from(figure.running));
            set(&self.queue, "elsewhere", f64::from(found.elsewhere));
            set(&self.queue, "lost", f64::from(found.lost));
        }
    }
}

impl Metrics {
    /// A worker was chosen for a turn.
    pub(super) fn turn_of(&self, worker: &str) {
        self.fleet.turns.with_label_values(&[worker]).inc();
    }

    /// Counts a response by the source of its prefill time.
    pub fn cost_sample(&self, worker: &str, told: &str) {
        self.fleet.cost_samples.with_label_values(&[worker, told]).inc();
    }

    /// Counts a hint by whether it was delivered.
    pub fn hint(&self, worker: &str, kind: &str, delivered: bool) {
        self.fleet
            .hints
            .with_label_values(&[worker, kind, yes_no(delivered)])
            .inc();
    }
}

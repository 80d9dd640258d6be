//! What is true at the moment when the page is asked for: gauges that are set then, and only then.

use policy::cost::PrefillCost;
use policy::estimate::{QueueFigure, Reconciled};
use policy::evidence::Bindings;
use policy::index::IndexStats;
use policy::residency::Refused;
use policy::slo::{ControllerState, TailRule};
use policy::units::{Millis, Tokens};
use prometheus::{Gauge, GaugeVec, IntGauge, IntGaugeVec};

use super::registrar::Registrar;
use super::{clamp, yes_no};
use crate::feedback::ClassState;
use crate::fleet::breaker::Standing;

/// What is true at one moment, for the page.
#[derive(Debug)]
pub struct Gauges {
    /// Each worker.
    pub workers: Vec<WorkerGauges>,
    /// The index.
    pub index: IndexStats,
    /// What it would not take, and lookups that were cut short.
    pub losses: (Refused, u64),
    /// How much of the free tail is given away.
    pub rule: TailRule,
    /// Why.
    pub controller: ControllerState,
    /// What conversations do, by class.
    pub habits: Vec<ClassState>,
    /// Tasks that live in the runtime.
    pub tasks: u64,
    /// Lessons lost to a full queue.
    pub lessons_dropped: u64,
    /// The policy's revision.
    pub policy_revision: u64,
    /// Entries of the audit log that could not be written.
    pub audit_failures: u64,
    /// Requests that wait here, and those behind the gate.
    pub admission: (usize, usize),
}

/// A worker at one moment.
#[derive(Debug)]
#[allow(missing_docs, reason = "each name says what it is, as the metric's help does")]
pub struct WorkerGauges {
    pub name: String,
    pub ready: bool,
    pub breaker: Standing,
    pub in_flight: u32,
    pub wait: Millis,
    pub utilisation: f64,
    pub resident: Tokens,
    pub kv_live: bool,
    pub kv_blocks: u64,
    pub kv_bindings: Bindings,
    pub cost: PrefillCost,
    pub cost_error: Millis,
    pub gate: f64,
    pub xi_tokens: f64,
    pub tail_tokens: f64,
    pub queue: Option<(QueueFigure, Reconciled)>,
}

/// The gauges of the moment.
#[derive(Debug)]
pub(super) struct Page {
    kv_bindings: IntGaugeVec,
    kv_live: IntGaugeVec,
    kv_blocks: IntGaugeVec,
    worker_ready: IntGaugeVec,
    worker_in_flight: IntGaugeVec,
    worker_wait_seconds: GaugeVec,
    worker_utilisation: GaugeVec,
    worker_resident_tokens: IntGaugeVec,
    index: IntGaugeVec,
    index_losses: IntGaugeVec,
    worker_cost: GaugeVec,
    worker_cost_error: GaugeVec,
    engine_queue: GaugeVec,
    worker_gate: GaugeVec,
    worker_tail: GaugeVec,
    tail_scale: Gauge,
    tail_arm: GaugeVec,
    habit: GaugeVec,
    habit_error: GaugeVec,
    lessons_dropped: IntGauge,
    tasks: IntGauge,
}

impl Page {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, prometheus::Error> {
        Ok(Self {
            kv_bindings: metrics.gauge(
                "tailroute_kv_bindings",
                "Turns bound to blocks since the start: by their conversation's name (named), by their shape (shaped), \
                 not at all (ambiguous), and dropped again (contradicted).",
                &["worker", "how"],
            )?,
            kv_live: metrics.gauge(
                "tailroute_kv_stream_live",
                "1 if the worker's cache events are followed; else its mirror is believed.",
                &["worker"],
            )?,
            kv_blocks: metrics.gauge(
                "tailroute_kv_blocks",
                "Blocks that the worker holds, as its events tell.",
                &["worker"],
            )?,
            worker_ready: metrics.gauge(
                "tailroute_worker_ready",
                "1 if the worker may be given work.",
                &["worker"],
            )?,
            worker_in_flight: metrics.gauge(
                "tailroute_worker_in_flight",
                "Requests sent and not finished.",
                &["worker"],
            )?,
            worker_wait_seconds: metrics.real(
                "tailroute_worker_wait_seconds",
                "Predicted time before a request sent now would start its prefill.",
                &["worker"],
            )?,
            worker_utilisation: metrics.real(
                "tailroute_worker_utilisation_ratio",
                "Prefill work routed to the worker, as a share of its time.",
                &["worker"],
            )?,
            worker_resident_tokens: metrics.gauge(
                "tailroute_worker_resident_tokens",
                "Tokens believed to be in the worker's cache.",
                &["worker"],
            )?,
            index: metrics.gauge(
                "tailroute_index",
                "Size of the global index: keys, entries, bytes.",
                &["what"],
            )?,
            index_losses: metrics.gauge(
                "tailroute_index_losses",
                "What lookups could not say, ever: stores refused by reason, lookups cut short, keys evicted.",
                &["what"],
            )?,
            worker_cost: metrics.real(
                "tailroute_worker_cost",
                "What a prefill is believed to cost: alpha_ms_per_token, beta_ms, gamma_ms_per_token2.",
                &["worker", "coefficient"],
            )?,
            worker_cost_error: metrics.real(
                "tailroute_worker_cost_error_seconds",
                "Mean absolute error of predicting a prefill with that cost.",
                &["worker"],
            )?,
            engine_queue: metrics.real(
                "tailroute_worker_queue",
                "The worker's own figures: requests waiting, running; of these not from here (elsewhere); counted here \
                 and not there (lost).",
                &["worker", "what"],
            )?,
            worker_gate: metrics.real(
                "tailroute_worker_tail_gate_ratio",
                "Share of the free tail that the load gate lets through.",
                &["worker"],
            )?,
            worker_tail: metrics.real(
                "tailroute_worker_tail_tokens",
                "Of a conversation without history: uncached tokens that fit in the objective (xi), tokens that may be \
                 dropped first (tail).",
                &["worker", "what"],
            )?,
            tail_scale: metrics.single(
                "tailroute_tail_scale_ratio",
                "Share of the free tail that is given away, before the load gate.",
            )?,
            tail_arm: metrics.real(
                "tailroute_tail_arm",
                "What giving away that share would have done, in the mean over the window: excess over the objective, \
                 time to first token, prefill work, share of violations, whether its work is affordable and it keeps what \
                 is in time already, and the excess that it saves in standard errors.",
                &["scale", "what"],
            )?,
            habit: metrics.real(
                "tailroute_habit",
                "What turns of a class are expected to be followed by.",
                &["stage", "tools", "what"],
            )?,
            habit_error: metrics.real(
                "tailroute_habit_error",
                "Mean error of that expectation, in its own unit.",
                &["stage", "tools", "what"],
            )?,
            tasks: metrics.count(
                "tailroute_tasks",
                "Tasks that live in the runtime: a few for each connection and each worker.",
            )?,
            lessons_dropped: metrics.count(
                "tailroute_lessons_dropped",
                "Finished turns that nothing was learned from because too many were waiting.",
            )?,
        })
    }

    /// Sets them all.
    pub(super) fn set(&self, gauges: &Gauges) {
        for worker in &gauges.workers {
            self.worker(worker);
        }
        self.feedback(gauges);
        self.tasks.set(clamp(gauges.tasks));
        let stats = gauges.index;
        for (what, value) in [
            ("keys", stats.keys),
            ("entries", stats.entries),
            ("bytes", stats.bytes),
        ] {
            self.index.with_label_values(&[what]).set(clamp(value));
        }
        let (refused, incomplete) = gauges.losses;
        for (what, value) in [
            ("unknown_parent", refused.unknown_parents),
            ("conflict", refused.conflicts),
            ("too_long", refused.too_long),
            ("incomplete_lookup", incomplete),
            ("evicted_key", stats.evicted_keys),
        ] {
            self.index_losses.with_label_values(&[what]).set(clamp(value));
        }
    }

    fn worker(&self, worker: &WorkerGauges) {
        let name = &[worker.name.as_str()];
        self.worker_ready.with_label_values(name).set(worker.ready.into());
        self.worker_in_flight
            .with_label_values(name)
            .set(worker.in_flight.into());
        self.worker_wait_seconds
            .with_label_values(name)
            .set(worker.wait.0 / 1e3);
        self.worker_utilisation
            .with_label_values(name)
            .set(worker.utilisation);
        self.kv_live.with_label_values(name).set(worker.kv_live.into());
        self.kv_blocks
            .with_label_values(name)
            .set(clamp(worker.kv_blocks));
        let bound = &worker.kv_bindings;
        for (how, count) in [
            ("named", bound.named),
            ("shaped", bound.shaped),
            ("ambiguous", bound.ambiguous),
            ("contradicted", bound.contradicted),
        ] {
            self.kv_bindings
                .with_label_values(&[name[0], how])
                .set(clamp(count));
        }
        self.worker_resident_tokens
            .with_label_values(name)
            .set(clamp(worker.resident.0));
        let set = |gauge: &GaugeVec, what, value| {
            gauge.with_label_values(&[name[0], what]).set(value);
        };
        let cost = worker.cost;
        set(&self.worker_cost, "alpha_ms_per_token", cost.alpha_ms_per_token);
        set(&self.worker_cost, "beta_ms", cost.beta_ms);
        set(&self.worker_cost, "gamma_ms_per_token2", cost.gamma_ms_per_token2);
        self.worker_cost_error
            .with_label_values(name)
            .set(worker.cost_error.0 / 1e3);
        set(&self.worker_tail, "xi", worker.xi_tokens);
        set(&self.worker_tail, "tail", worker.tail_tokens);
        self.worker_gate.with_label_values(name).set(worker.gate);
        if let Some((figure, found)) = &worker.queue {
            set(&self.engine_queue, "waiting", f64::from(figure.waiting));
            set(&self.engine_queue, "running", f64::from(figure.running));
            set(&self.engine_queue, "elsewhere", f64::from(found.elsewhere));
            set(&self.engine_queue, "lost", f64::from(found.lost));
        }
    }

    fn feedback(&self, gauges: &Gauges) {
        self.tail_scale.set(gauges.rule.scale);
        for arm in &gauges.controller.arms {
            let scale = format!("{:.2}", arm.scale);
            for (what, value) in [
                ("excess_seconds", arm.tel_ms / 1e3),
                ("ttft_seconds", arm.mean_ms / 1e3),
                ("work_seconds", arm.work_ms / 1e3),
                ("violations", arm.violations),
                ("affordable", f64::from(u8::from(arm.affordable))),
                ("keeps", f64::from(u8::from(arm.keeps))),
                ("evidence", arm.evidence),
            ] {
                self.tail_arm.with_label_values(&[&scale, what]).set(value);
            }
        }
        for class in &gauges.habits {
            let (stage, tools) = class.class.map_or(("all", "any"), |class| {
                (class.stage.as_str(), yes_no(class.tools))
            });
            let set = |what, (value, error): (f64, f64)| {
                self.habit.with_label_values(&[stage, tools, what]).set(value);
                self.habit_error
                    .with_label_values(&[stage, tools, what])
                    .set(error);
            };
            let tokens = |(tokens, error): (u64, f64)| (tokens as f64, error);
            set("next_prompt_tokens", tokens(class.next_prompt_tokens));
            set("response_tokens", tokens(class.response_tokens));
            set("gap_seconds", (class.gap_ms.0 / 1e3, class.gap_ms.1 / 1e3));
            set("return_share", class.return_share);
            // A rate is off by as much, in proportion, as the gap that it is the inverse of.
            let relative = class.gap_ms.1 / class.gap_ms.0.max(1.0);
            set(
                "return_hazard_per_second",
                (class.hazard_per_s, class.hazard_per_s * relative),
            );
            set("over", (1.0 - class.return_share.0, class.over_error));
        }
        self.lessons_dropped.set(clamp(gauges.lessons_dropped));
    }
}

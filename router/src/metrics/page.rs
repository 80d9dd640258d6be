//! What is true at the moment when the page is asked for: gauges that are set then, and only then.

use discovery::SourceState;
use policy::cost::PrefillCost;
use policy::estimate::{QueueFigure, Reconciled};
use policy::evidence::Bindings;
use policy::index::IndexStats;
use policy::residency::Refused;
use policy::units::{Millis, Tokens};

use super::labelled::{Gauge, IntGauge, Labelled, Workers};
use super::registrar::{MetricError, Registrar};
use super::{BusGauges, clamp, yes_no};
use crate::feedback::{ClassState, TailState};
use crate::fleet::breaker::Standing;
use crate::logs::writer::Dropped;

/// What is true at one moment, for the page.
#[derive(Debug)]
pub struct Gauges {
    /// Each worker.
    pub workers: Vec<WorkerGauges>,
    /// The index.
    pub index: IndexStats,
    /// What it would not take, and lookups that were cut short.
    pub losses: (Refused, u64),
    /// Share of turns that has to meet its objective.
    pub slo_share: f64,
    /// What ends of silent conversations are worth.
    pub tail: TailState,
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
    /// What finds workers.
    pub discovery: Vec<SourceState>,
    /// Requests that wait here, and those behind the gate.
    pub admission: (usize, usize),
    /// Other replicas, if there are to be any.
    pub bus: Option<BusGauges>,
    /// Lines of the log that were lost.
    pub log_dropped: Dropped,
}

/// A worker at one moment.
#[derive(Debug)]
#[allow(missing_docs, reason = "each name says what it is, as the metric's help does")]
pub struct WorkerGauges {
    pub name: String,
    pub ready: bool,
    pub breaker: Standing,
    pub ttft_errors: Option<[(&'static str, Millis); 3]>,
    pub in_flight: u32,
    pub wait: Millis,
    pub utilisation: f64,
    pub resident: Tokens,
    pub kv_live: bool,
    pub kv_blocks: u64,
    pub kv_bindings: Bindings,
    pub cost: PrefillCost,
    pub overhead: Millis,
    pub cost_error: Millis,
    pub xi_tokens: f64,
    pub silent: u64,
    pub queue: Option<(QueueFigure, Reconciled)>,
}

/// The gauges of the moment.
#[derive(Debug)]
pub(super) struct Page {
    workers: Labelled<IntGauge>,
    kv_bindings: Labelled<IntGauge>,
    kv_live: Labelled<IntGauge>,
    kv_blocks: Labelled<IntGauge>,
    worker_ready: Labelled<IntGauge>,
    worker_in_flight: Labelled<IntGauge>,
    worker_wait_seconds: Labelled<Gauge>,
    ttft_error: Labelled<Gauge>,
    worker_utilisation: Labelled<Gauge>,
    worker_resident_tokens: Labelled<IntGauge>,
    index: Labelled<IntGauge>,
    index_losses: Labelled<IntGauge>,
    worker_cost: Labelled<Gauge>,
    worker_cost_error: Labelled<Gauge>,
    engine_queue: Labelled<Gauge>,
    worker_xi: Labelled<Gauge>,
    worker_silent: Labelled<IntGauge>,
    slo_share: Gauge,
    tail: Labelled<Gauge>,
    habit: Labelled<Gauge>,
    habit_error: Labelled<Gauge>,
    lessons_dropped: IntGauge,
    tasks: IntGauge,
}

impl Page {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            workers: metrics.gauge("tailroute_workers")?,
            kv_bindings: metrics.gauge("tailroute_kv_bindings")?,
            kv_live: metrics.gauge("tailroute_kv_stream_live")?,
            kv_blocks: metrics.gauge("tailroute_kv_blocks")?,
            worker_ready: metrics.gauge("tailroute_worker_ready")?,
            worker_in_flight: metrics.gauge("tailroute_worker_in_flight")?,
            worker_wait_seconds: metrics.real("tailroute_worker_wait_seconds")?,
            ttft_error: metrics.real("tailroute_time_to_first_token_error_quantile_seconds")?,
            worker_utilisation: metrics.real("tailroute_worker_utilisation_ratio")?,
            worker_resident_tokens: metrics.gauge("tailroute_worker_resident_tokens")?,
            index: metrics.gauge("tailroute_index")?,
            index_losses: metrics.gauge("tailroute_index_losses")?,
            worker_cost: metrics.real("tailroute_worker_cost")?,
            worker_cost_error: metrics.real("tailroute_worker_cost_error_seconds")?,
            engine_queue: metrics.real("tailroute_worker_queue")?,
            worker_xi: metrics.real("tailroute_worker_xi_tokens")?,
            worker_silent: metrics.gauge("tailroute_worker_silent_conversations")?,
            slo_share: metrics.single("tailroute_slo_share_ratio")?,
            tail: metrics.real("tailroute_tail")?,
            habit: metrics.real("tailroute_habit")?,
            habit_error: metrics.real("tailroute_habit_error")?,
            tasks: metrics.count("tailroute_tasks")?,
            lessons_dropped: metrics.count("tailroute_lessons_dropped")?,
        })
    }

    /// Sets them all.
    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
        let ready = gauges.workers.iter().filter(|worker| worker.ready).count();
        for (state, count) in [("ready", ready), ("not_ready", gauges.workers.len() - ready)] {
            self.workers.with_label_values(&[state]).set(clamp(count as u64));
        }
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
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
        for (quantile, error) in worker.ttft_errors.into_iter().flatten() {
            self.ttft_error
                .with_label_values(&[name[0], quantile])
                .set(error.0 / 1e3);
        }
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
        let set = |gauge: &Labelled<Gauge>, what, value| {
            gauge.with_label_values(&[name[0], what]).set(value);
        };
        let cost = worker.cost;
        set(&self.worker_cost, "alpha_ms_per_token", cost.alpha_ms_per_token);
        set(&self.worker_cost, "beta_ms", cost.beta_ms);
        set(&self.worker_cost, "gamma_ms_per_token2", cost.gamma_ms_per_token2);
        set(&self.worker_cost, "floor_ms", cost.floor_ms);
        set(&self.worker_cost, "overhead_ms", worker.overhead.0);
        self.worker_cost_error
            .with_label_values(name)
            .set(worker.cost_error.0 / 1e3);
        self.worker_xi.with_label_values(name).set(worker.xi_tokens);
        self.worker_silent
            .with_label_values(name)
            .set(clamp(worker.silent));
        if let Some((figure, found)) = &worker.queue {
            set(&self.engine_queue, "waiting", f64::from(figure.waiting));
            set(&self.engine_queue, "running", f64::from(figure.running));
            set(&self.engine_queue, "elsewhere", f64::from(found.elsewhere));
            set(&self.engine_queue, "lost", f64::from(found.lost));
        }
    }

    fn feedback(&self, gauges: &Gauges) {
        self.slo_share.set(gauges.slo_share);
        let tail = &gauges.tail;
        for (what, value) in [
            ("target_seconds", tail.target_ms.unwrap_or(0.0) / 1e3),
            ("turns_behind", tail.turns_behind),
            ("late_behind", tail.late_behind),
            ("horizon_seconds", tail.horizon_s),
            ("late_ratio", tail.late_ratio.unwrap_or(1.0)),
            ("pause_turns", tail.pause_turns as f64),
        ] {
            self.tail.with_label_values(&[what]).set(value);
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

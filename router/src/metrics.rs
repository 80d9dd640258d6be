//! Every metric of the router, in one place. Units are in the names; labels are bounded by configuration.

use std::time::{SystemTime, UNIX_EPOCH};

use policy::cost::PrefillCost;
use policy::estimate::{QueueFigure, Reconciled};
use policy::evidence::{Bindings, Event};
use policy::index::IndexStats;
use policy::slo::{ControllerState, TailRule};
use policy::units::{Millis, Tokens};
use prometheus::{
    Encoder, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::feedback::ClassState;

/// Bucket bounds of times to first token, in seconds: from a cached short prompt to a minute in a queue.
const TTFT_BUCKETS_S: [f64; 16] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];

/// The metrics, registered.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    ttft_seconds: HistogramVec,
    ttft_error_seconds: HistogramVec,
    slo_turns: IntCounterVec,
    prompt_tokens: IntCounterVec,
    decisions: IntCounterVec,
    retries: IntCounterVec,
    hints: IntCounterVec,
    corrected: IntCounterVec,
    agreement: IntCounterVec,
    cached_error: HistogramVec,
    captured: IntCounterVec,
    kv_events: IntCounterVec,
    kv_streams: IntCounterVec,
    kv_behind: IntGaugeVec,
    kv_lag: GaugeVec,
    kv_bindings: IntGaugeVec,
    kv_live: IntGaugeVec,
    kv_blocks: IntGaugeVec,
    worker_ready: IntGaugeVec,
    worker_in_flight: IntGaugeVec,
    worker_wait_seconds: GaugeVec,
    worker_utilisation: GaugeVec,
    worker_resident_tokens: IntGaugeVec,
    index: IntGaugeVec,
    worker_cost: GaugeVec,
    worker_cost_error: GaugeVec,
    cost_samples: IntCounterVec,
    engine_queue: GaugeVec,
    worker_gate: GaugeVec,
    worker_tail: GaugeVec,
    tail_scale: Gauge,
    tail_arm: GaugeVec,
    habit: GaugeVec,
    habit_error: GaugeVec,
    lessons_dropped: IntGauge,
}

impl Metrics {
    /// All metrics at zero.
    ///
    /// # Errors
    /// If two of them had the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let real = |name: &str, help: &str, labels: &[&str]| {
            let metric = GaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            let options = HistogramOpts::new(name, help).buckets(TTFT_BUCKETS_S.to_vec());
            let metric = HistogramVec::new(options, labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        Ok(Self {
            requests: counter(
                "tailroute_requests_total",
                "Requests by endpoint and outcome: ok, client_error, worker_error, router_error, aborted, broken.",
                &["endpoint", "outcome"],
            )?,
            request_seconds: histogram(
                "tailroute_request_duration_seconds",
                "From a request's last byte in to its answer's last byte out.",
                &["endpoint"],
            )?,
            ttft_seconds: histogram(
                "tailroute_time_to_first_token_seconds",
                "From a turn's last byte in to its first token out.",
                &["worker"],
            )?,
            ttft_error_seconds: histogram(
                "tailroute_time_to_first_token_error_seconds",
                "Absolute difference between predicted and actual time to first token.",
                &["worker"],
            )?,
            slo_turns: counter(
                "tailroute_slo_turns_total",
                "Turns by the class of their objective and by whether their first token met it.",
                &["class", "met"],
            )?,
            prompt_tokens: counter(
                "tailroute_prompt_tokens_total",
                "Prompt tokens by worker: all, predicted to be cached, reported to be cached.",
                &["worker", "kind"],
            )?,
            decisions: counter(
                "tailroute_decisions_total",
                "Choices by policy, the rule that decided, and the worker.",
                &["policy", "reason", "worker"],
            )?,
            retries: counter(
                "tailroute_retries_total",
                "Attempts that failed before the worker could have begun, and were tried elsewhere.",
                &["worker"],
            )?,
            hints: counter(
                "tailroute_hints_total",
                "Hints by worker, kind, and whether they were delivered.",
                &["worker", "kind", "delivered"],
            )?,
            corrected: counter(
                "tailroute_mirror_corrections_total",
                "Answers that showed that something is not in a worker's cache, so that what was used before it is taken to be gone.",
                &["worker"],
            )?,
            agreement: counter(
                "tailroute_cached_tokens_agreement_total",
                "Answers by how the cached tokens that were predicted agree with those reported (exact; block: within \
                 one; tenth: within 10 %; off) and by what predicted them (events, mirror).",
                &["worker", "evidence", "agreement"],
            )?,
            cached_error: {
                let options = HistogramOpts::new(
                    "tailroute_cached_tokens_error",
                    "Absolute difference between predicted and reported cached tokens.",
                );
                let buckets = vec![0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0];
                let metric = HistogramVec::new(options.buckets(buckets), &["worker", "evidence"])?;
                registry.register(Box::new(metric.clone()))?;
                metric
            },
            captured: counter(
                "tailroute_capture_turns_total",
                "Turns for the capture by what became of them: written, dropped (the queue was full), late (later ones \
                 had been written), failed (the disk).",
                &["outcome"],
            )?,
            kv_events: counter(
                "tailroute_kv_events_total",
                "Cache events applied, by kind: stored, copied, removed, cleared.",
                &["worker", "kind"],
            )?,
            kv_streams: counter(
                "tailroute_kv_stream_total",
                "What happened to workers' streams of cache events: batches missing (gap) and brought again (replayed), \
                 batches that came twice (duplicate), a new process (restart), all forgotten (forget), a batch that \
                 cannot be read (unreadable), nobody who answers for lost ones (unanswered), a connection lost (lost).",
                &["worker", "what"],
            )?,
            kv_behind: gauge(
                "tailroute_kv_stream_behind_batches",
                "Batches that are known to be missing while they are asked for again.",
                &["worker"],
            )?,
            kv_lag: real(
                "tailroute_kv_stream_lag_seconds",
                "From when the last batch applied was made, by the worker's clock, to when it was applied, by ours.",
                &["worker"],
            )?,
            kv_bindings: gauge(
                "tailroute_kv_bindings",
                "Turns bound to blocks since the start: by their conversation's name (named), by their shape (shaped), \
                 not at all (ambiguous), and dropped again (contradicted).",
                &["worker", "how"],
            )?,
            kv_live: gauge(
                "tailroute_kv_stream_live",
                "1 if the worker's cache events are followed; else its mirror is believed.",
                &["worker"],
            )?,
            kv_blocks: gauge(
                "tailroute_kv_blocks",
                "Blocks that the worker holds, as its events tell.",
                &["worker"],
            )?,
            worker_ready: gauge(
                "tailroute_worker_ready",
                "1 if the worker may be given work.",
                &["worker"],
            )?,
            worker_in_flight: gauge(
                "tailroute_worker_in_flight",
                "Requests sent and not finished.",
                &["worker"],
            )?,
            worker_wait_seconds: real(
                "tailroute_worker_wait_seconds",
                "Predicted time before a request sent now would start its prefill.",
                &["worker"],
            )?,
            worker_utilisation: real(
                "tailroute_worker_utilisation_ratio",
                "Prefill work routed to the worker, as a share of its time.",
                &["worker"],
            )?,
            worker_resident_tokens: gauge(
                "tailroute_worker_resident_tokens",
                "Tokens believed to be in the worker's cache.",
                &["worker"],
            )?,
            index: gauge(
                "tailroute_index",
                "Size of the global index: keys, entries, bytes.",
                &["what"],
            )?,
            worker_cost: real(
                "tailroute_worker_cost",
                "What a prefill is believed to cost: alpha_ms_per_token, beta_ms, gamma_ms_per_token2.",
                &["worker", "coefficient"],
            )?,
            worker_cost_error: real(
                "tailroute_worker_cost_error_seconds",
                "Mean absolute error of predicting a prefill with that cost.",
                &["worker"],
            )?,
            cost_samples: counter(
                "tailroute_worker_cost_answers_total",
                "Answers by whether they told what their prefill took: engine (its own clock), clean (it had the worker \
                 to itself), predicted (one of both, but how much was cached is a prediction), none.",
                &["worker", "told"],
            )?,
            engine_queue: real(
                "tailroute_worker_queue",
                "The worker's own figures: requests waiting, running; of these not from here (elsewhere); counted here \
                 and not there (lost).",
                &["worker", "what"],
            )?,
            worker_gate: real(
                "tailroute_worker_tail_gate_ratio",
                "Share of the free tail that the load gate lets through.",
                &["worker"],
            )?,
            worker_tail: real(
                "tailroute_worker_tail_tokens",
                "Of a conversation without history: uncached tokens that fit in the objective (xi), tokens that may be \
                 dropped first (tail).",
                &["worker", "what"],
            )?,
            tail_scale: {
                let metric = Gauge::new(
                    "tailroute_tail_scale_ratio",
                    "Share of the free tail that is given away, before the load gate.",
                )?;
                registry.register(Box::new(metric.clone()))?;
                metric
            },
            tail_arm: real(
                "tailroute_tail_arm",
                "What giving away that share would have done, in the mean over the window: excess over the objective, \
                 time to first token, prefill work, share of violations, and whether its work is affordable.",
                &["scale", "what"],
            )?,
            habit: real(
                "tailroute_habit",
                "What turns of a class are expected to be followed by.",
                &["stage", "tools", "what"],
            )?,
            habit_error: real(
                "tailroute_habit_error",
                "Mean error of that expectation, in its own unit.",
                &["stage", "tools", "what"],
            )?,
            lessons_dropped: {
                let metric = IntGauge::new(
                    "tailroute_lessons_dropped",
                    "Finished turns that nothing was learned from because too many were waiting.",
                )?;
                registry.register(Box::new(metric.clone()))?;
                metric
            },
            registry,
        })
    }

    /// A request ended.
    pub fn request(&self, endpoint: &str, outcome: &str, seconds: f64) {
        self.requests.with_label_values(&[endpoint, outcome]).inc();
        self.request_seconds
            .with_label_values(&[endpoint])
            .observe(seconds);
    }

    /// A first token left.
    pub fn first_token(&self, worker: &str, class: &str, actual_s: f64, predicted_s: f64, objective_s: f64) {
        self.ttft_seconds.with_label_values(&[worker]).observe(actual_s);
        self.ttft_error_seconds
            .with_label_values(&[worker])
            .observe((actual_s - predicted_s).abs());
        let met = yes_no(actual_s <= objective_s);
        self.slo_turns.with_label_values(&[class, met]).inc();
    }

    /// Turns of a class that met their objective, and that did not.
    #[must_use]
    pub fn slo_turns(&self, class: &str) -> (u64, u64) {
        let count = |met| self.slo_turns.with_label_values(&[class, met]).get();
        (count("true"), count("false"))
    }

    /// An answer told what its prefill took, or did not.
    pub fn cost_sample(&self, worker: &str, told: &str) {
        self.cost_samples.with_label_values(&[worker, told]).inc();
    }

    /// A prompt's tokens were counted by a worker.
    pub fn tokens(&self, worker: &str, prompt: u64, predicted_cached: u64, reported_cached: Option<u64>) {
        let add = |kind, tokens| {
            self.prompt_tokens
                .with_label_values(&[worker, kind])
                .inc_by(tokens)
        };
        add("all", prompt);
        add("predicted_cached", predicted_cached);
        if let Some(cached) = reported_cached {
            add("reported_cached", cached);
        }
    }

    /// A worker reported how many of a prompt's tokens were cached, of which so many were predicted.
    pub fn agreement(&self, worker: &str, evidence: &str, predicted: u64, reported: u64, block: u64) {
        let error = predicted.abs_diff(reported);
        let agreement = match error {
            0 => "exact",
            _ if error <= block => "block",
            _ if error * 10 <= reported => "tenth",
            _ => "off",
        };
        self.agreement
            .with_label_values(&[worker, evidence, agreement])
            .inc();
        self.cached_error
            .with_label_values(&[worker, evidence])
            .observe(error as f64);
    }

    /// The counter of the capture, which counts where it writes.
    #[must_use]
    pub fn captured(&self) -> IntCounterVec {
        self.captured.clone()
    }

    /// Cache events of a worker were applied.
    pub fn kv_events(&self, worker: &str, events: &[Event]) {
        let mut counts = [("stored", 0), ("copied", 0), ("removed", 0), ("cleared", 0)];
        for event in events {
            let kind = match event {
                Event::Stored(_) => 0,
                Event::Copied { .. } => 1,
                Event::Removed { .. } => 2,
                Event::Cleared => 3,
            };
            counts[kind].1 += 1;
        }
        for (kind, count) in counts.into_iter().filter(|&(_, count)| count > 0) {
            self.kv_events.with_label_values(&[worker, kind]).inc_by(count);
        }
    }

    /// So many batches of a worker's cache events are known to be missing.
    pub fn kv_behind(&self, worker: &str, batches: u64) {
        self.kv_behind.with_label_values(&[worker]).set(clamp(batches));
    }

    /// A batch that was made at this time, in seconds since 1970, was applied now.
    pub fn kv_lag(&self, worker: &str, made_s: f64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let lag = now.map_or(0.0, |now| now.as_secs_f64()) - made_s;
        // Clocks of two hosts differ by more than most lags.
        self.kv_lag.with_label_values(&[worker]).set(lag.max(0.0));
    }

    /// Something happened to a worker's stream of cache events.
    pub fn kv_stream(&self, worker: &str, what: &str) {
        self.kv_streams.with_label_values(&[worker, what]).inc();
    }

    /// A worker was chosen.
    pub fn decision(&self, policy: &str, reason: &str, worker: &str) {
        self.decisions.with_label_values(&[policy, reason, worker]).inc();
    }

    /// An attempt is tried elsewhere.
    pub fn retry(&self, worker: &str) {
        self.retries.with_label_values(&[worker]).inc();
    }

    /// A hint was delivered, or not.
    pub fn hint(&self, worker: &str, kind: &str, delivered: bool) {
        self.hints
            .with_label_values(&[worker, kind, yes_no(delivered)])
            .inc();
    }

    /// An answer showed that part of what was believed to be in a worker's cache is not there.
    pub fn mirror_corrected(&self, worker: &str) {
        self.corrected.with_label_values(&[worker]).inc();
    }

    /// Prometheus's text format, with these gauges of the moment.
    ///
    /// # Errors
    /// If the encoder fails.
    pub fn render(&self, gauges: &Gauges) -> Result<Vec<u8>, prometheus::Error> {
        for worker in &gauges.workers {
            self.render_worker(worker);
        }
        self.render_loop(gauges);
        let stats = gauges.index;
        for (what, value) in [
            ("keys", stats.keys),
            ("entries", stats.entries),
            ("bytes", stats.bytes),
        ] {
            self.index.with_label_values(&[what]).set(clamp(value));
        }
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(out)
    }

    fn render_worker(&self, worker: &WorkerGauges) {
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
        for told in ["engine", "clean", "predicted", "none"] {
            self.cost_samples.with_label_values(&[name[0], told]);
        }
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

    fn render_loop(&self, gauges: &Gauges) {
        self.tail_scale.set(gauges.rule.scale);
        for arm in &gauges.controller.arms {
            let scale = format!("{:.2}", arm.scale);
            for (what, value) in [
                ("excess_seconds", arm.tel_ms / 1e3),
                ("ttft_seconds", arm.mean_ms / 1e3),
                ("work_seconds", arm.work_ms / 1e3),
                ("violations", arm.violations),
                ("affordable", f64::from(u8::from(arm.affordable))),
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

/// What is true at one moment, for the page.
#[derive(Debug)]
pub struct Gauges {
    /// Each worker.
    pub workers: Vec<WorkerGauges>,
    /// The index.
    pub index: IndexStats,
    /// How much of the free tail is given away.
    pub rule: TailRule,
    /// Why.
    pub controller: ControllerState,
    /// What conversations do, by class.
    pub habits: Vec<ClassState>,
    /// Lessons lost to a full queue.
    pub lessons_dropped: u64,
}

/// A worker at one moment.
#[derive(Debug)]
#[allow(missing_docs, reason = "each name says what it is, as the metric's help does")]
pub struct WorkerGauges {
    pub name: String,
    pub ready: bool,
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

fn yes_no(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

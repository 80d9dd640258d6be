//! Metrics of predicted cache contents, and of workers' cache events.

use std::time::{SystemTime, UNIX_EPOCH};

use policy::evidence::Event;

use super::labelled::{Counter, Gauge, Histogram, IntGauge, Labelled, Workers};
use super::page::{Gauges, WorkerGauges};
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, TOKENS, WORKER, of};
use super::{Metrics, clamp};

const EVIDENCE: Label = of("evidence", &["events", "mirror"]);

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_prompt_tokens_total",
        kind: Kind::Counter,
        unit: "tokens",
        labels: &[
            WORKER,
            of("kind", &["all", "predicted_cached", "reported_cached"]),
        ],
        help: "Prompt tokens by worker: all, predicted to be cached, reported to be cached.",
        gen_ai: Some("gen_ai.client.token.usage"),
    },
    Spec {
        name: "tailroute_mirror_corrections_total",
        kind: Kind::Counter,
        unit: "answers",
        labels: &[WORKER],
        help: "Responses showing that the worker's cache holds less than its mirror, so that older entries are \
            dropped from the mirror.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_cached_tokens_agreement_total",
        kind: Kind::Counter,
        unit: "answers",
        labels: &[
            WORKER,
            EVIDENCE,
            of("agreement", &["exact", "block", "tenth", "off"]),
        ],
        help: "Responses by agreement of predicted and reported cached tokens (exact; block: within one; tenth: \
            within 10 %; off) and by the source of the prediction.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_cached_tokens_error",
        kind: Kind::Histogram(&TOKENS),
        unit: "tokens",
        labels: &[WORKER, EVIDENCE],
        help: "Absolute difference between predicted and reported cached tokens.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_events_total",
        kind: Kind::Counter,
        unit: "events",
        labels: &[WORKER, of("kind", &["stored", "copied", "removed", "cleared"])],
        help: "Cache events applied, by kind.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_stream_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[
            WORKER,
            of(
                "what",
                &[
                    "gap",
                    "replayed",
                    "duplicate",
                    "restart",
                    "forget",
                    "unreadable",
                    "unanswered",
                    "oversized",
                    "unfinished",
                    "malformed",
                    "refused",
                    "lost",
                    "ranks",
                ],
            ),
        ],
        help: "Events on workers' cache event streams: missing batches (gap), replayed batches (replayed), \
            duplicate batches (duplicate), a new process (restart), dropped cache state (forget), an unparsable \
            batch (unreadable), no replay of lost batches (unanswered), a publisher that exceeds a limit on size \
            (oversized) or time (unfinished) or breaks the protocol (malformed), a publisher on another host than \
            its worker (refused), a lost connection (lost), ranks that are not configured (ranks).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_stream_behind_batches",
        kind: Kind::Gauge,
        unit: "batches",
        labels: &[WORKER],
        help: "Missing batches whose replay is pending.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_stream_lag_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER],
        help: "Time from the creation of the last applied batch, by the worker's clock, to its application, by the \
            router's clock.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_stream_live",
        kind: Kind::Gauge,
        unit: "yes or no",
        labels: &[WORKER],
        help: "1 if the worker's cache events are followed; 0 if its mirror is used.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_blocks",
        kind: Kind::Gauge,
        unit: "blocks",
        labels: &[WORKER],
        help: "Blocks that the worker holds, according to its events.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_bindings",
        kind: Kind::Gauge,
        unit: "turns",
        labels: &[
            WORKER,
            of("how", &["named", "shaped", "ambiguous", "contradicted"]),
        ],
        help: "Turns bound to blocks since the start: by conversation name (named), by shape (shaped), not bound \
            (ambiguous), bound and later dropped (contradicted).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_index",
        kind: Kind::Gauge,
        unit: "as the label says",
        labels: &[of("what", &["keys", "entries", "bytes"])],
        help: "Size of the global index.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_index_losses",
        kind: Kind::Gauge,
        unit: "times",
        labels: &[of(
            "what",
            &[
                "unknown_parent",
                "conflict",
                "too_long",
                "incomplete_lookup",
                "evicted_key",
            ],
        )],
        help: "Losses of the index since the start: refused stores by reason, incomplete lookups, evicted keys.",
        gen_ai: None,
    },
];

/// Predicted and reported cached tokens, and cache events.
#[derive(Debug)]
pub(super) struct Caches {
    prompt_tokens: Labelled<Counter>,
    corrected: Labelled<Counter>,
    agreement: Labelled<Counter>,
    cached_error: Labelled<Histogram>,
    kv_events: Labelled<Counter>,
    kv_streams: Labelled<Counter>,
    kv_behind: Labelled<IntGauge>,
    kv_lag: Labelled<Gauge>,
    kv_live: Labelled<IntGauge>,
    kv_blocks: Labelled<IntGauge>,
    kv_bindings: Labelled<IntGauge>,
    index: Labelled<IntGauge>,
    index_losses: Labelled<IntGauge>,
}

impl Caches {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            prompt_tokens: metrics.counter("tailroute_prompt_tokens_total")?,
            corrected: metrics.counter("tailroute_mirror_corrections_total")?,
            agreement: metrics.counter("tailroute_cached_tokens_agreement_total")?,
            cached_error: metrics.histogram("tailroute_cached_tokens_error")?,
            kv_events: metrics.counter("tailroute_kv_events_total")?,
            kv_streams: metrics.counter("tailroute_kv_stream_total")?,
            kv_behind: metrics.gauge("tailroute_kv_stream_behind_batches")?,
            kv_lag: metrics.real("tailroute_kv_stream_lag_seconds")?,
            kv_live: metrics.gauge("tailroute_kv_stream_live")?,
            kv_blocks: metrics.gauge("tailroute_kv_blocks")?,
            kv_bindings: metrics.gauge("tailroute_kv_bindings")?,
            index: metrics.gauge("tailroute_index")?,
            index_losses: metrics.gauge("tailroute_index_losses")?,
        })
    }

    /// Sets the gauges.
    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            self.set_worker(worker);
        }
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

    fn set_worker(&self, worker: &WorkerGauges) {
        let name = &[worker.name.as_str()];
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
    }
}

impl Metrics {
    /// Counts the prompt tokens that a worker reported.
    pub fn tokens(&self, worker: &str, prompt: u64, predicted_cached: u64, reported_cached: Option<u64>) {
        let add = |kind, tokens| {
            self.caches
                .prompt_tokens
                .with_label_values(&[worker, kind])
                .inc_by(tokens)
        };
        add("all", prompt);
        add("predicted_cached", predicted_cached);
        if let Some(cached) = reported_cached {
            add("reported_cached", cached);
        }
    }

    /// Compares the cached tokens that a worker reported with the prediction.
    pub fn agreement(&self, worker: &str, evidence: &str, predicted: u64, reported: u64, block: u64) {
        let error = predicted.abs_diff(reported);
        let agreement = match error {
            0 => "exact",
            _ if error <= block => "block",
            _ if error * 10 <= reported => "tenth",
            _ => "off",
        };
        self.caches
            .agreement
            .with_label_values(&[worker, evidence, agreement])
            .inc();
        self.caches
            .cached_error
            .with_label_values(&[worker, evidence])
            .observe(error as f64);
    }

    /// Counts a response that showed part of the believed cache contents to be missing.
    pub fn mirror_corrected(&self, worker: &str) {
        self.caches.corrected.with_label_values(&[worker]).inc();
    }

    /// Counts applied cache events of a worker.
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
            self.caches
                .kv_events
                .with_label_values(&[worker, kind])
                .inc_by(count);
        }
    }

    /// Sets the number of missing batches of a worker's cache events.
    pub fn kv_behind(&self, worker: &str, batches: u64) {
        self.caches
            .kv_behind
            .with_label_values(&[worker])
            .set(clamp(batches));
    }

    /// Sets the lag of a batch that was created at this time, in seconds since 1970, and applied now.
    pub fn kv_lag(&self, worker: &str, made_s: f64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let lag = now.map_or(0.0, |now| now.as_secs_f64()) - made_s;
        // Clocks of two hosts may differ by more than the lag.
        self.caches.kv_lag.with_label_values(&[worker]).set(lag.max(0.0));
    }

    /// Counts an event of a worker's event stream itself.
    pub fn kv_stream(&self, worker: &str, what: &str) {
        self.caches.kv_streams.with_label_values(&[worker, what]).inc();
    }
}

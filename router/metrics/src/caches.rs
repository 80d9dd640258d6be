//! Metrics of predicted cache contents, and of workers' cache events.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use policy::evidence::Event;

use super::labelled::{Counter, Gauge, Histogram, IntGauge, Labelled, Workers};
use super::page::Gauges;
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, TOKENS, WORKER, of};
use super::{Metrics, clamp};

const EVIDENCE: Label = of("evidence", &["events", "mirror"]);
/// Stages in the account of prompt tokens, from all of them to those that the worker reported as cached.
pub const HIT_STAGES: [&str; 4] = ["prompt", "available", "captured", "delivered"];

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
        name: "tailroute_prompt_cache_tokens_total",
        kind: Kind::Counter,
        unit: "tokens",
        labels: &[of("stage", &HIT_STAGES)],
        help: "Prompt tokens of the turns whose worker reports cached tokens: all (prompt), those that the best ready \
            worker was believed to hold (available), the chosen one (captured), and those that it reported (delivered).",
        gen_ai: None,
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
        name: "tailroute_mirror_clears_total",
        kind: Kind::Counter,
        unit: "times",
        labels: &[WORKER],
        help: "Times that responses showed the worker's cache to have been cleared without notice, so that its \
            mirror is cleared too.",
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
        name: "tailroute_kv_bindings_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[
            WORKER,
            of("how", &["named", "shaped", "ambiguous", "contradicted"]),
        ],
        help: "Turns bound to blocks: by conversation name (named), by shape (shaped), not bound \
            (ambiguous), bound and later dropped (contradicted).",
        gen_ai: None,
    },
];

#[derive(Debug)]
pub(super) struct Caches {
    prompt_tokens: Labelled<Counter>,
    /// By [`HIT_STAGES`].
    hits: [Counter; 4],
    corrected: Labelled<Counter>,
    clears: Labelled<Counter>,
    agreement: Labelled<Counter>,
    cached_error: Labelled<Histogram>,
    kv_events: Labelled<Counter>,
    kv_streams: Labelled<Counter>,
    kv_behind: Labelled<IntGauge>,
    kv_lag: Labelled<Gauge>,
    kv_live: Labelled<IntGauge>,
    kv_blocks: Labelled<IntGauge>,
    kv_bindings: Labelled<Counter>,
    /// Bindings of each worker that are already counted, in the order of `how`.
    counted: Mutex<HashMap<String, [u64; 4]>>,
}

impl Caches {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let hits = metrics.labelled("tailroute_prompt_cache_tokens_total")?;
        Ok(Self {
            prompt_tokens: metrics.labelled("tailroute_prompt_tokens_total")?,
            hits: HIT_STAGES.map(|stage| hits.with_label_values(&[stage])),
            corrected: metrics.labelled("tailroute_mirror_corrections_total")?,
            clears: metrics.labelled("tailroute_mirror_clears_total")?,
            agreement: metrics.labelled("tailroute_cached_tokens_agreement_total")?,
            cached_error: metrics.labelled("tailroute_cached_tokens_error")?,
            kv_events: metrics.labelled("tailroute_kv_events_total")?,
            kv_streams: metrics.labelled("tailroute_kv_stream_total")?,
            kv_behind: metrics.labelled("tailroute_kv_stream_behind_batches")?,
            kv_lag: metrics.labelled("tailroute_kv_stream_lag_seconds")?,
            kv_live: metrics.labelled("tailroute_kv_stream_live")?,
            kv_blocks: metrics.labelled("tailroute_kv_blocks")?,
            kv_bindings: metrics.labelled("tailroute_kv_bindings_total")?,
            counted: Mutex::default(),
        })
    }

    /// Sets the gauges, and adds the bindings since the last call.
    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            let name = &[worker.name.as_str()];
            self.kv_live.set(name, worker.kv_live.into());
            self.kv_blocks.set(name, clamp(worker.kv_blocks));
        }
        let mut counted = self.counted.lock();
        for worker in &gauges.workers {
            let now = &worker.kv_bindings;
            let totals = [
                ("named", now.named),
                ("shaped", now.shaped),
                ("ambiguous", now.ambiguous),
                ("contradicted", now.contradicted),
            ];
            let counted = counted.entry(worker.name.clone()).or_default();
            for ((how, total), counted) in totals.into_iter().zip(counted) {
                // Less where another reader of the page came first with a newer total.
                let more = total.saturating_sub(*counted);
                self.kv_bindings.add(&[&worker.name, how], more);
                *counted += more;
            }
        }
    }

    pub(super) fn left(&self, worker: &str) {
        self.counted.lock().remove(worker);
    }
}

impl Metrics {
    /// Counts the prompt tokens of a response: all, those predicted to be cached and those reported as cached.
    pub fn tokens(&self, worker: &str, prompt: u64, predicted_cached: u64, reported_cached: Option<u64>) {
        let add = |kind, tokens| self.caches.prompt_tokens.add(&[worker, kind], tokens);
        add("all", prompt);
        add("predicted_cached", predicted_cached);
        if let Some(cached) = reported_cached {
            add("reported_cached", cached);
        }
    }

    /// Counts a turn's prompt tokens by [`HIT_STAGES`].
    pub fn hits(&self, tokens: [u64; 4]) {
        for (counter, tokens) in self.caches.hits.iter().zip(tokens) {
            counter.inc_by(tokens);
        }
    }

    /// Returns the prompt tokens counted since the start, by [`HIT_STAGES`].
    #[must_use]
    pub fn counted_hits(&self) -> [u64; 4] {
        self.caches.hits.each_ref().map(Counter::get)
    }

    /// Counts how well the cached tokens that a worker reported agree with the prediction.
    pub fn agreement(&self, worker: &str, evidence: &str, predicted: u64, reported: u64, block: u64) {
        let error = predicted.abs_diff(reported);
        let agreement = match error {
            0 => "exact",
            _ if error <= block => "block",
            _ if error * 10 <= reported => "tenth",
            _ => "off",
        };
        self.caches.agreement.inc(&[worker, evidence, agreement]);
        self.caches
            .cached_error
            .observe(&[worker, evidence], error as f64);
    }

    /// Counts a response that showed part of the believed cache contents to be missing, or all of them (`is_cleared`).
    pub fn mirror_corrected(&self, worker: &str, is_cleared: bool) {
        self.caches.corrected.inc(&[worker]);
        if is_cleared {
            self.caches.clears.inc(&[worker]);
        }
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
            self.caches.kv_events.add(&[worker, kind], count);
        }
    }

    /// Sets the number of missing batches of a worker's cache events.
    pub fn kv_behind(&self, worker: &str, batches: u64) {
        self.caches.kv_behind.set(&[worker], clamp(batches));
    }

    /// Sets the lag of a batch that was created at this time, in seconds since 1970, and applied now.
    pub fn kv_lag(&self, worker: &str, made_s: f64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let lag = now.map_or(0.0, |now| now.as_secs_f64()) - made_s;
        // Clocks of two hosts may differ by more than the lag.
        self.caches.kv_lag.set(&[worker], lag.max(0.0));
    }

    /// Counts an event of a worker's event stream itself.
    pub fn kv_stream(&self, worker: &str, what: &str) {
        self.caches.kv_streams.inc(&[worker, what]);
    }
}

//! Metrics of predicted cache contents, and of workers' cache events.

use super::{Kind, Label, Spec, TOKENS, WORKER, of};

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
        help: "Answers that showed that something is not in a worker's cache, so that what was used before it is taken to be \
               gone.",
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
        help: "Answers by how the cached tokens that were predicted agree with those reported (exact; block: within one; \
               tenth: within 10 %; off) and by what predicted them.",
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
        help: "What happened to workers' streams of cache events: batches missing (gap) and brought again (replayed), batches \
               that came twice (duplicate), a new process (restart), all forgotten (forget), a batch that cannot be read \
               (unreadable), nobody who answers for lost ones (unanswered), a publisher that exceeds a bound on size \
               (oversized) or time (unfinished) or breaks the protocol (malformed), one on another host than its worker \
               (refused), a connection lost (lost), ranks that were not written down (ranks).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_stream_behind_batches",
        kind: Kind::Gauge,
        unit: "batches",
        labels: &[WORKER],
        help: "Batches that are known to be missing while they are asked for again.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_stream_lag_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER],
        help: "From when the last batch applied was made, by the worker's clock, to when it was applied, by ours.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_stream_live",
        kind: Kind::Gauge,
        unit: "yes or no",
        labels: &[WORKER],
        help: "1 if the worker's cache events are followed; else its mirror is believed.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_kv_blocks",
        kind: Kind::Gauge,
        unit: "blocks",
        labels: &[WORKER],
        help: "Blocks that the worker holds, as its events tell.",
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
        help: "Turns bound to blocks since the start: by their conversation's name (named), by their shape (shaped), not at \
               all (ambiguous), and dropped again (contradicted).",
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
        help: "What lookups could not say, ever: stores refused by reason, lookups cut short, keys evicted.",
        gen_ai: None,
    },
];

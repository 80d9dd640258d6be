//! Metrics of requests and turns.

use super::{CLASS, Kind, Label, SECONDS, Spec, TRACED_SECONDS, WORKER, of};

/// Endpoint of a request.
pub(super) const ENDPOINT: Label = of(
    "endpoint",
    &[
        "chat",
        "completions",
        "responses",
        "messages",
        "generate",
        "count_tokens",
        "embeddings",
        "rerank",
        "score",
        "classify",
        "pooling",
        "tokenize",
        "detokenize",
        "speech",
        "images",
        "moderations",
        "audio",
        "files",
        "models",
        "realtime",
        "other",
        "none",
    ],
);

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
                    "worker_error",
                    "router_error",
                    "aborted",
                    "broken",
                    "deadline",
                    "cut",
                ],
            ),
        ],
        help: "Requests by endpoint and outcome; of outcomes, `deadline`: their own time was up, `cut`: the router had to go.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_request_duration_seconds",
        kind: Kind::Histogram(&TRACED_SECONDS),
        unit: "seconds",
        labels: &[ENDPOINT],
        help: "From a request's last byte in to its answer's last byte out.",
        gen_ai: Some("gen_ai.server.request.duration"),
    },
    Spec {
        name: "tailroute_time_to_first_token_seconds",
        kind: Kind::Histogram(&TRACED_SECONDS),
        unit: "seconds",
        labels: &[WORKER],
        help: "From a turn's last byte in to its first token out.",
        gen_ai: Some("gen_ai.server.time_to_first_token"),
    },
    Spec {
        name: "tailroute_time_to_first_token_error_seconds",
        kind: Kind::Histogram(&SECONDS),
        unit: "seconds",
        labels: &[WORKER],
        help: "Absolute difference between predicted and actual time to first token, without the time that the router held \
               the turn.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_time_to_first_token_error_quantile_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER, of("quantile", &["0.1", "0.5", "0.9"])],
        help: "Actual less predicted time to first token over the worker's last 256 first tokens: below zero, it was faster \
               than predicted.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_slo_turns_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[CLASS, of("met", &["true", "false"])],
        help: "Turns by the class of their objective and by whether their first token met it.",
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
                &["queue", "miss", "engine", "network", "prompt", "whole"],
            ),
        ],
        help: "Turns whose first token missed their objective, when they have ended, by the class of the objective and by why \
               (docs/explain.md).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_avoidable_prefill_tokens_total",
        kind: Kind::Counter,
        unit: "tokens",
        labels: &[of("why", &["elsewhere", "mistaken"])],
        help: "Prompt tokens that were computed and that an all-knowing choice would have found cached: a worker that was \
               passed over held them (elsewhere), or they were predicted to be on the chosen one and were not (mistaken).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_decisions_total",
        kind: Kind::Counter,
        unit: "choices",
        labels: &[
            of(
                "policy",
                &[
                    "tail",
                    "round_robin",
                    "least_loaded",
                    "cache_aware",
                    "cache_aware_smg",
                    "least_ttft",
                    "random",
                    "power_of_two",
                    "consistent_hash",
                    "prefix_hash",
                ],
            ),
            of(
                "reason",
                &[
                    "least_cost",
                    "rotation",
                    "fewest_in_flight",
                    "imbalance",
                    "prefix_match",
                    "smallest_tree",
                    "draw",
                    "key",
                    "overload",
                ],
            ),
        ],
        help: "Choices by policy and the rule of it that decided.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_capture_turns_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[of("outcome", &["written", "dropped", "late", "failed"])],
        help: "Turns for the capture by what became of them: written, dropped (the queue was full, or memory is too small for it), late (later ones had been \
               written), failed (the disk).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tasks",
        kind: Kind::Gauge,
        unit: "tasks",
        labels: &[],
        help: "Tasks that live in the runtime: a few for each connection and each worker.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_lessons_dropped",
        kind: Kind::Gauge,
        unit: "turns",
        labels: &[],
        help: "Finished turns that nothing was learned from because too many were waiting.",
        gen_ai: None,
    },
];

//! Metrics of workers.

use super::{Kind, Spec, WORKER, of};

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_workers",
        kind: Kind::Gauge,
        unit: "workers",
        labels: &[of("state", &["ready", "not_ready"])],
        help: "Workers by whether they may be given work: all of them, those without series of their own as well.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_ready",
        kind: Kind::Gauge,
        unit: "yes or no",
        labels: &[WORKER],
        help: "1 if the worker may be given work.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_turns_total",
        kind: Kind::Counter,
        unit: "turns",
        labels: &[WORKER],
        help: "Times that a worker was chosen for a turn.",
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
        help: "Predicted time before a request sent now would start its prefill.",
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
        help: "Tokens believed to be in the worker's cache.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_queue",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[WORKER, of("what", &["waiting", "running", "elsewhere", "lost"])],
        help: "The worker's own figures: requests waiting, running; of these not from here (elsewhere); counted here and not \
               there (lost).",
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
        help: "What a prefill is believed to cost, and what a first token takes beside queue and prefill (overhead).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_cost_error_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[WORKER],
        help: "Error of predicting a typical prefill with that cost: of its answers in the mean, and more after a time without any.",
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
        help: "Answers by whether they told what their prefill took: engine (its own clock), clean (it had the worker to \
               itself), predicted (one of both, but how much was cached is a prediction), late (clean, and taught at the \
               first token; the answer itself then counts as none), none. And intervals learned from because no answer told: \
               counters.",
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

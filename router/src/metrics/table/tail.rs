//! How much of the free tail is given away, and what conversations are expected to do.

use super::{Kind, Label, Spec, WORKER, of};

const STAGE: Label = of("stage", &["all", "first", "second", "middle", "late"]);
const TOOLS: Label = of("tools", &["any", "true", "false"]);
const HABIT: Label = of(
    "what",
    &[
        "next_prompt_tokens",
        "response_tokens",
        "gap_seconds",
        "return_share",
        "return_hazard_per_second",
        "over",
    ],
);

pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_slo_share_ratio",
        kind: Kind::Gauge,
        unit: "share",
        labels: &[],
        help: "Share of turns that has to meet its objective, as configured (`objective.share`). What alerts go by.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_tail_gate_ratio",
        kind: Kind::Gauge,
        unit: "share",
        labels: &[WORKER],
        help: "Share of the free tail that the load gate lets through.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_tail_tokens",
        kind: Kind::Gauge,
        unit: "tokens",
        labels: &[WORKER, of("what", &["xi", "tail"])],
        help: "Of a conversation without history: uncached tokens that fit in the objective (xi), tokens that may be dropped \
               first (tail).",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tail_scale_ratio",
        kind: Kind::Gauge,
        unit: "share",
        labels: &[],
        help: "Share of the free tail that is given away, before the load gate.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tail_arm",
        kind: Kind::Gauge,
        unit: "as the label says",
        labels: &[
            of(
                "scale",
                &[
                    "0.00", "0.15", "0.30", "0.50", "0.70", "0.85", "1.00", "1.25", "1.60",
                ],
            ),
            of(
                "what",
                &[
                    "excess_seconds",
                    "ttft_seconds",
                    "work_seconds",
                    "violations",
                    "affordable",
                    "keeps",
                    "evidence",
                ],
            ),
        ],
        help: "What giving away that share would have done, in the mean over the window: excess over the objective, time to \
               first token, prefill work, share of violations, whether its work is affordable and it keeps what is in time \
               already, and the excess that it saves in standard errors.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_habit",
        kind: Kind::Gauge,
        unit: "as the label says",
        labels: &[STAGE, TOOLS, HABIT],
        help: "What turns of a class are expected to be followed by.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_habit_error",
        kind: Kind::Gauge,
        unit: "as the label says",
        labels: &[STAGE, TOOLS, HABIT],
        help: "Mean error of that expectation, in its own unit.",
        gen_ai: None,
    },
];

//! Metrics of the value of conversations' ends, and of conversations' habits.

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
        name: "tailroute_worker_xi_tokens",
        kind: Kind::Gauge,
        unit: "tokens",
        labels: &[WORKER],
        help: "Uncached tokens that fit in the objective, of a conversation without history on an idle worker.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_silent_conversations",
        kind: Kind::Gauge,
        unit: "conversations",
        labels: &[WORKER],
        help: "Conversations on a worker that wait for their next turn, or are over.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_tail",
        kind: Kind::Gauge,
        unit: "as the label says",
        labels: &[of(
            "what",
            &[
                "target_seconds",
                "turns_behind",
                "late_behind",
                "horizon_seconds",
                "late_ratio",
                "pause_turns",
            ],
        )],
        help: "What the worth of a conversation's end goes by: the time to first token above which a turn counts as late (T), \
               turns and late turns that wait behind one, how far ahead a return counts, late turns over those that would have \
               been late without hints, and turns until ends are given up again after that was above 1.",
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

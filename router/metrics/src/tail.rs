//! Metrics of the value of conversations' ends, and of conversations' habits.

use super::labelled::{Gauge, IntGauge, Labelled, Workers};
use super::page::Gauges;
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, WORKER, of};
use super::{clamp, yes_no};

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
        help: "Share of turns that must meet the objective, as configured (`objective.share`); alerts use it.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_xi_tokens",
        kind: Kind::Gauge,
        unit: "tokens",
        labels: &[WORKER],
        help: "Uncached tokens that fit the objective, for a conversation without history on an idle worker.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_worker_silent_conversations",
        kind: Kind::Gauge,
        unit: "conversations",
        labels: &[WORKER],
        help: "Conversations on the worker that wait for their next turn or have ended.",
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
        help: "Inputs of the value of a conversation's end: the time to first token above which a turn is late (T), \
            turns and late turns that wait behind one, the horizon for returns, the ratio of late turns to those \
            expected without hints, and the remaining turns of the pause after that ratio exceeded 1.",
        gen_ai: None,
    },
    Spec {
        name: "tailroute_habit",
        kind: Kind::Gauge,
        unit: "as the label says",
        labels: &[STAGE, TOOLS, HABIT],
        help: "Expected continuation of turns of a class.",
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

/// Objectives, habits, and the worth of ends.
#[derive(Debug)]
pub(super) struct Tail {
    slo_share: Gauge,
    xi: Labelled<Gauge>,
    silent: Labelled<IntGauge>,
    tail: Labelled<Gauge>,
    habit: Labelled<Gauge>,
    habit_error: Labelled<Gauge>,
}

impl Tail {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            slo_share: metrics.single("tailroute_slo_share_ratio")?,
            xi: metrics.real("tailroute_worker_xi_tokens")?,
            silent: metrics.gauge("tailroute_worker_silent_conversations")?,
            tail: metrics.real("tailroute_tail")?,
            habit: metrics.real("tailroute_habit")?,
            habit_error: metrics.real("tailroute_habit_error")?,
        })
    }

    /// Sets them all.
    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
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
            // The relative error of a rate equals that of the gap of which it is the inverse.
            let relative = class.gap_ms.1 / class.gap_ms.0.max(1.0);
            set(
                "return_hazard_per_second",
                (class.hazard_per_s, class.hazard_per_s * relative),
            );
            set("over", (1.0 - class.return_share.0, class.over_error));
        }
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            let name = &[worker.name.as_str()];
            self.xi.with_label_values(name).set(worker.xi_tokens);
            self.silent.with_label_values(name).set(clamp(worker.silent));
        }
    }
}

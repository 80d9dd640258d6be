//! Metrics of the value of conversations' ends, and of conversations' habits.

use super::labelled::{Gauge, IntGauge, Labelled, Workers};
use super::page::Gauges;
use super::registrar::{MetricError, Registrar};
use super::spec::{Kind, Label, Spec, WORKER, gauge, of};
use super::{clamp, yes_no};
use learning::feedback::ClassState;

const STAGE: Label = of("stage", &["all", "first", "second", "middle", "late"]);
const TOOLS: Label = of("tools", &["any", "true", "false"]);
/// Labels of the class of turns that a habit describes.
const BY_CLASS: &[Label] = &[STAGE, TOOLS];
pub(super) const TABLE: &[Spec] = &[
    Spec {
        name: "tailroute_slo_share_ratio",
        kind: Kind::Gauge,
        unit: "share",
        labels: &[],
        help: "Share of turns that must meet the objective, as configured (`objective.share`); alerts use it.",
        gen_ai: None,
    },
    gauge(
        "tailroute_slo_objective_seconds",
        "seconds",
        &[],
        "Objective for the time to first token of turns without a class, as configured (`objective.ttft_ms`); an alert uses it.",
    ),
    Spec {
        name: "tailroute_overloaded",
        kind: Kind::Gauge,
        unit: "yes or no",
        labels: &[],
        help: "1 while the fleet is overloaded: the wait on most ready workers alone exceeds the objective, or requests \
            are refused for lack of room.",
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
    gauge(
        "tailroute_tail_target_seconds",
        "seconds",
        &[],
        "Time to first token above which a turn counts as late in the value of a conversation's end (T).",
    ),
    gauge(
        "tailroute_tail_turns_behind",
        "turns",
        &[],
        "Turns that wait behind one, on average.",
    ),
    gauge(
        "tailroute_tail_late_turns_behind",
        "turns",
        &[],
        "Late turns that wait behind one, on average.",
    ),
    gauge(
        "tailroute_tail_horizon_seconds",
        "seconds",
        &[],
        "Time within which the return of a conversation counts.",
    ),
    gauge(
        "tailroute_tail_late_ratio",
        "ratio",
        &[],
        "Late turns under hints, relative to those expected without hints.",
    ),
    gauge(
        "tailroute_tail_pause_turns",
        "turns",
        &[],
        "Remaining turns of a pause of hints.",
    ),
    gauge(
        "tailroute_habit_next_prompt_tokens",
        "tokens",
        BY_CLASS,
        "Expected new tokens of a conversation's next prompt.",
    ),
    gauge(
        "tailroute_habit_response_tokens",
        "tokens",
        BY_CLASS,
        "Expected tokens of a response.",
    ),
    gauge(
        "tailroute_habit_gap_seconds",
        "seconds",
        BY_CLASS,
        "Expected time between a response and the next turn.",
    ),
    gauge(
        "tailroute_habit_return_ratio",
        "share",
        BY_CLASS,
        "Share of turns that are followed by another.",
    ),
    gauge(
        "tailroute_habit_return_hazard_per_second",
        "per second",
        BY_CLASS,
        "Rate of return just after a response.",
    ),
    gauge(
        "tailroute_habit_next_prompt_error_tokens",
        "tokens",
        BY_CLASS,
        "Mean absolute error of the expected new tokens.",
    ),
    gauge(
        "tailroute_habit_response_error_tokens",
        "tokens",
        BY_CLASS,
        "Mean absolute error of the expected tokens of a response.",
    ),
    gauge(
        "tailroute_habit_gap_error_seconds",
        "seconds",
        BY_CLASS,
        "Mean absolute error of the expected time between a response and the next turn.",
    ),
    gauge(
        "tailroute_habit_return_error_ratio",
        "share",
        BY_CLASS,
        "Standard error of the share of turns that are followed by another.",
    ),
    gauge(
        "tailroute_habit_return_hazard_error_per_second",
        "per second",
        BY_CLASS,
        "Error of the rate of return.",
    ),
    gauge(
        "tailroute_habit_over_error_ratio",
        "share",
        BY_CLASS,
        "Mean error of the predicted probability that a conversation is over.",
    ),
];

#[derive(Debug)]
pub(super) struct TailMetrics {
    slo_share: Gauge,
    objective: Gauge,
    overloaded: Gauge,
    xi: Labelled<Gauge>,
    silent: Labelled<IntGauge>,
    target: Gauge,
    turns_behind: Gauge,
    late_behind: Gauge,
    horizon: Gauge,
    late_ratio: Gauge,
    pause: IntGauge,
    habits: Habits,
}

/// Gauges of habits by class: the value, and its error.
#[derive(Debug)]
struct Habits {
    next_prompt: [Labelled<Gauge>; 2],
    response: [Labelled<Gauge>; 2],
    gap: [Labelled<Gauge>; 2],
    returns: [Labelled<Gauge>; 2],
    hazard: [Labelled<Gauge>; 2],
    over_error: Labelled<Gauge>,
}

impl TailMetrics {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            slo_share: metrics.single("tailroute_slo_share_ratio")?,
            objective: metrics.single("tailroute_slo_objective_seconds")?,
            overloaded: metrics.single("tailroute_overloaded")?,
            xi: metrics.labelled("tailroute_worker_xi_tokens")?,
            silent: metrics.labelled("tailroute_worker_silent_conversations")?,
            target: metrics.single("tailroute_tail_target_seconds")?,
            turns_behind: metrics.single("tailroute_tail_turns_behind")?,
            late_behind: metrics.single("tailroute_tail_late_turns_behind")?,
            horizon: metrics.single("tailroute_tail_horizon_seconds")?,
            late_ratio: metrics.single("tailroute_tail_late_ratio")?,
            pause: metrics.single("tailroute_tail_pause_turns")?,
            habits: Habits::new(metrics)?,
        })
    }

    pub(super) fn set(&self, gauges: &Gauges, shown: &Workers) {
        self.slo_share.set(gauges.slo_share);
        self.objective.set(gauges.objective.0 / 1e3);
        self.overloaded.set(f64::from(u8::from(gauges.is_overloaded)));
        let tail = &gauges.tail;
        self.target.set(tail.target_ms.unwrap_or(0.0) / 1e3);
        self.turns_behind.set(tail.turns_behind);
        self.late_behind.set(tail.late_behind);
        self.horizon.set(tail.horizon_s);
        self.late_ratio.set(tail.late_ratio.unwrap_or(1.0));
        self.pause.set(clamp(tail.pause_turns));
        for class in &gauges.habits {
            self.habits.set(class);
        }
        for worker in gauges.workers.iter().filter(|worker| shown.admit(&worker.name)) {
            let name = &[worker.name.as_str()];
            self.xi.set(name, worker.xi_tokens);
            self.silent.set(name, clamp(worker.silent));
        }
    }
}

impl Habits {
    fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        let pair = |value, error| Ok([metrics.labelled(value)?, metrics.labelled(error)?]);
        Ok(Self {
            next_prompt: pair(
                "tailroute_habit_next_prompt_tokens",
                "tailroute_habit_next_prompt_error_tokens",
            )?,
            response: pair(
                "tailroute_habit_response_tokens",
                "tailroute_habit_response_error_tokens",
            )?,
            gap: pair("tailroute_habit_gap_seconds", "tailroute_habit_gap_error_seconds")?,
            returns: pair(
                "tailroute_habit_return_ratio",
                "tailroute_habit_return_error_ratio",
            )?,
            hazard: pair(
                "tailroute_habit_return_hazard_per_second",
                "tailroute_habit_return_hazard_error_per_second",
            )?,
            over_error: metrics.labelled("tailroute_habit_over_error_ratio")?,
        })
    }

    fn set(&self, class: &ClassState) {
        let (stage, tools) = class.class.map_or(("all", "any"), |class| {
            (class.stage.as_str(), yes_no(class.tools))
        });
        let set = |[value, error]: &[Labelled<Gauge>; 2], (found, off): (f64, f64)| {
            value.set(&[stage, tools], found);
            error.set(&[stage, tools], off);
        };
        let tokens = |(tokens, error): (u64, f64)| (tokens as f64, error);
        set(&self.next_prompt, tokens(class.next_prompt_tokens));
        set(&self.response, tokens(class.response_tokens));
        set(&self.gap, (class.gap_ms.0 / 1e3, class.gap_ms.1 / 1e3));
        set(&self.returns, class.return_share);
        // The relative error of a rate equals that of the gap of which it is the inverse.
        let relative = class.gap_ms.1 / class.gap_ms.0.max(1.0);
        set(&self.hazard, (class.hazard_per_s, class.hazard_per_s * relative));
        self.over_error.set(&[stage, tools], class.over_error);
    }
}

//! Learned values of ends and of conversations, as the metrics and the admin API show them.

use config::HintRule;
use policy::estimate::{Class, HabitTable, Habits, Stage};
use policy::tail::IN_TIME;
use policy::text::{counted, ms};
use policy::units::Millis;
use serde::Serialize;

use super::Feedback;

/// Terms of an end's value that are common to all conversations: see [`policy::tail`].
#[derive(Clone, Debug, Serialize)]
pub struct TailState {
    /// T: time to first token above which a turn counts as late; absent while too few turns were observed.
    pub target_ms: Option<f64>,
    /// κ: mean number of turns that wait behind one turn.
    pub turns_behind: f64,
    /// ε: mean number of late turns behind one turn.
    pub late_behind: f64,
    /// τ: time for which a return is considered, in seconds.
    pub horizon_s: f64,
    /// Ratio of late turns to those expected without hints; absent while too few turns were observed.
    pub late_ratio: Option<f64>,
    /// Number of turns until trimming resumes after hints made more turns late than they saved; 0 while trimming is on.
    pub pause_turns: u64,
    /// Explanation in a few sentences.
    pub why: String,
}

impl TailState {
    #[must_use]
    pub fn of(feedback: &Feedback, rule: HintRule) -> Self {
        let tail = feedback.tail.lock();
        let harm = tail.harm();
        let guard = tail.guard();
        let target_ms = harm.target().map(|target| target.0);
        Self {
            late_ratio: guard.late_ratio(),
            pause_turns: guard.pause(),
            target_ms,
            turns_behind: harm.kappa(),
            late_behind: harm.epsilon(),
            horizon_s: tail.returns().horizon().0 / 1e3,
            why: why(rule, guard.pause(), target_ms, harm.kappa()),
        }
    }
}

/// Expected behaviour of a class, each value with its error.
#[derive(Clone, Debug, Serialize)]
pub struct ClassState {
    /// The class; `None` for all traffic.
    #[serde(flatten)]
    pub class: Option<Class>,
    /// Number of completed turns, exponentially decayed.
    pub turns: f64,
    /// Q̂: tokens that the next prompt is expected to add, and their mean absolute error.
    pub next_prompt_tokens: (u64, f64),
    /// Response tokens, and their mean absolute error.
    pub response_tokens: (u64, f64),
    /// Gap between a response and the next turn, in milliseconds, and its mean absolute error.
    pub gap_ms: (f64, f64),
    /// Share of turns that are followed by another, and its standard error.
    pub return_share: (f64, f64),
    /// Hazard of return just after a response, per second.
    pub hazard_per_s: f64,
    /// Mean error of the predicted probability that a conversation is over.
    pub over_error: f64,
}

impl ClassState {
    #[must_use]
    pub fn of(class: Option<Class>, habits: &Habits) -> Self {
        let (next, next_error) = habits.next_prompt();
        let (response, response_error) = habits.response();
        let (gap, gap_error) = habits.gap();
        Self {
            class,
            turns: habits.turns(),
            next_prompt_tokens: (next.0, next_error),
            response_tokens: (response.0, response_error),
            gap_ms: (gap.0, gap_error.0),
            return_share: habits.return_share(),
            hazard_per_s: habits.hazard(Millis::ZERO) * 1e3,
            over_error: habits.over_error(),
        }
    }

    /// Returns the observed classes without an API key, whose number is fixed.
    #[must_use]
    pub fn keyless(habits: &HabitTable) -> Vec<Self> {
        let class = |(stage, tools)| Class {
            stage,
            tools,
            key: None,
            finish: None,
        };
        Stage::ALL
            .into_iter()
            .flat_map(|stage| [(stage, false), (stage, true)])
            .map(class)
            .filter_map(|class| habits.own(class).map(|habits| Self::of(Some(class), habits)))
            .collect()
    }
}

/// Explains whether early eviction is on, and why.
fn why(rule: HintRule, pause: u64, target_ms: Option<f64>, behind: f64) -> String {
    match rule {
        HintRule::Off => {
            return "Early eviction is off (hints.rule): workers evict the least recently used first."
                .to_owned();
        }
        HintRule::TLru if pause == 0 => {
            return "Early eviction is T-LRU (hints.rule): each worker first evicts what its threshold ξ leaves over."
                .to_owned();
        }
        HintRule::TLru | HintRule::QueueAware | HintRule::Both => {}
    }
    if pause > 0 {
        return format!(
            "Early eviction is paused for the next {}: with it, more turns were late than expected without.",
            counted(pause, "turn")
        );
    }
    let late = target_ms.map_or_else(
        || "It protects turns from missing their objective, until enough turns are observed.".to_owned(),
        |target| {
            let share = 100.0 * (1.0 - IN_TIME);
            format!(
                "It protects the slowest {share:.0} % of turns (at present above {}).",
                ms(target)
            )
        },
    );
    format!("Early eviction is on. {late} Each turn delays {behind:.1} turns behind it on average.")
}

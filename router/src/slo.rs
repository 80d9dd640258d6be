//! State of the feedback loop as reported by the admin API: the values in force, their reasons and errors.

use policy::estimate::{Class, HabitTable, Habits, Stage};
use policy::tail::IN_TIME;
use policy::units::Millis;
use serde::Serialize;

use crate::app::App;
use fleet::hints::SentObjective;
use learning::feedback::{CostState, Trimmed};

/// State of the objectives and of what follows from them: `GET /admin/v1/slo`.
#[derive(Clone, Debug, Serialize)]
pub struct SloState {
    /// Objective, and the share of turns that has to meet it.
    pub objective: ObjectiveState,
    /// Value of the ends of silent conversations.
    pub tail: TailState,
    /// Most recent trims, the newest first.
    pub given_up: Vec<Trimmed>,
    /// State of each worker.
    pub workers: Vec<WorkerState>,
    /// Expected behaviour of conversations over all traffic.
    pub habits: ClassState,
    /// The same by class, for the classes without an API key.
    pub classes: Vec<ClassState>,
    /// Conversations remembered.
    pub conversations: usize,
    /// Observations dropped because the queue was full.
    pub lessons_dropped: u64,
}

/// The objective, and how it is met.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectiveState {
    /// Share of turns that has to meet the objective.
    pub share: f64,
    /// Turns by source of their objective.
    pub classes: Vec<ObjectiveClass>,
}

/// One source of objectives.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectiveClass {
    /// `default`, `header`, or a configured name.
    pub class: String,
    /// Time to first token to be met, if the class has a fixed one.
    pub ttft_ms: Option<f64>,
    /// Turns since start that met it.
    pub met: u64,
    /// Turns since start that missed it.
    pub missed: u64,
}

/// Terms of an end's value that are common to all conversations: see [`policy::tail`].
#[derive(Clone, Debug, Serialize)]
pub struct TailState {
    /// T: time to first token above which a turn counts as late; absent while too few turns were observed.
    pub target_ms: Option<f64>,
    /// κ: turns that wait behind one turn.
    pub turns_behind: f64,
    /// ε: late turns behind one turn.
    pub late_behind: f64,
    /// τ: how far ahead a return counts.
    pub horizon_s: f64,
    /// Ratio of late turns to those expected without hints; absent while too few turns were observed.
    pub late_ratio: Option<f64>,
    /// Turns until trimming resumes after hints made more turns late than they saved; 0 while trimming is on.
    pub pause_turns: u64,
    /// Explanation in one sentence.
    pub why: String,
}

impl TailState {
    /// Returns the current terms.
    #[must_use]
    pub fn of(app: &App) -> Self {
        let tail = app.feedback.tail.lock();
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
            why: why(app.config.hints.enabled, guard.pause(), target_ms, harm.kappa()),
        }
    }
}

/// State of the feedback loop for one worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerState {
    /// Name of the worker.
    pub name: String,
    /// Hint dialect found so far; `none` if the worker takes no hints.
    pub dialect: &'static str,
    /// Learned prefill cost.
    #[serde(flatten)]
    pub cost: Option<CostState>,
    /// ρ: utilisation.
    pub utilisation: f64,
    /// Predicted wait.
    pub wait_ms: f64,
    /// ξ_w: uncached tokens that fit in the configured objective.
    pub xi_tokens: f64,
    /// Silent conversations on the worker.
    pub silent: usize,
    /// Hints sent to the worker, if it takes any.
    pub told: Option<SentObjective>,
}

/// Expected behaviour of a class, each value with its error.
#[derive(Clone, Debug, Serialize)]
pub struct ClassState {
    /// The class; `None` for all traffic.
    #[serde(flatten)]
    pub class: Option<Class>,
    /// Completed turns, exponentially decayed.
    pub turns: f64,
    /// Q̂, and its mean absolute error.
    pub next_prompt_tokens: (u64, f64),
    /// Response tokens, and their mean absolute error.
    pub response_tokens: (u64, f64),
    /// Gap between a response and the next turn, and its mean absolute error.
    pub gap_ms: (f64, f64),
    /// Share of turns that are followed by another, and its standard error.
    pub return_share: (f64, f64),
    /// Hazard of return just after a response, per second.
    pub hazard_per_s: f64,
    /// Mean error of the predicted probability that a conversation is over.
    pub over_error: f64,
}

impl ClassState {
    /// Returns the state of a class.
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

/// Returns the current state of the feedback loop.
#[must_use]
pub fn explain(app: &App) -> SloState {
    let (habits, classes, conversations) = {
        let conversations = app.feedback.conversations.lock();
        let habits = &conversations.habits;
        let all = ClassState::of(None, habits.all());
        (all, ClassState::keyless(habits), conversations.len())
    };
    SloState {
        objective: objective(app),
        tail: TailState::of(app),
        given_up: app.feedback.recent.all(),
        workers: workers(app),
        habits,
        classes,
        conversations,
        lessons_dropped: app.feedback.dropped(),
    }
}

fn objective(app: &App) -> ObjectiveState {
    let live = app.live();
    let objective = &live.objective;
    let class = |class: &str, ttft_ms| {
        let (met, missed) = app.metrics.slo_turns(class);
        ObjectiveClass {
            class: class.to_owned(),
            ttft_ms,
            met,
            missed,
        }
    };
    let fixed = [class("default", Some(objective.ttft.0)), class("header", None)];
    let named = objective
        .classes
        .iter()
        .map(|named| class(&named.name, Some(named.ttft.0)));
    ObjectiveState {
        share: objective.share,
        classes: fixed.into_iter().chain(named).collect(),
    }
}

fn workers(app: &App) -> Vec<WorkerState> {
    let now = app.clock.now();
    let objective = app.live().objective.ttft;
    let state = |worker: &std::sync::Arc<fleet::Worker>| {
        let (cost, wait, utilisation) =
            worker.with_load(|load| (load.cost, load.pending.wait(now), load.utilisation.at(now)));
        let xi = policy::slo::xi_tokens(&cost, objective, Millis::ZERO, policy::units::Tokens::ZERO);
        WorkerState {
            name: worker.name().to_owned(),
            dialect: worker.dialect().name(),
            cost: app.feedback.costs.lock().state(worker.id),
            utilisation,
            wait_ms: wait.0,
            xi_tokens: xi.min(1e9),
            silent: app.feedback.tail.lock().silent_on(worker.id),
            told: worker.hints.told(),
        }
    };
    app.fleet.present().iter().map(state).collect()
}

/// Explains the terms in one sentence.
fn why(enabled: bool, pause: u64, target_ms: Option<f64>, behind: f64) -> String {
    if !enabled {
        return "hints are off: workers evict the least recently used first".to_owned();
    }
    if pause > 0 {
        return format!(
            "more turns were late with hints than expected without: no ends are evicted early for the next {pause} \
             turns"
        );
    }
    let late = target_ms.map_or_else(
        || "turns use their objective as threshold until enough are observed".to_owned(),
        |target| {
            let share = 100.0 * (1.0 - IN_TIME);
            format!("{share:.0} % of turns take longer than {target:.0} ms to their first token")
        },
    );
    format!(
        "{late}, and {behind:.1} turns wait behind one: the ends that are expected to cost least are evicted first"
    )
}

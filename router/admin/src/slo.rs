//! State of the feedback loop as reported by the state API: the values in force, their reasons and errors.

use std::sync::Arc;

use serde::Serialize;

use fleet::hints::SentObjective;
use learning::feedback::{ClassState, CostState, TailState, Trimmed};
use state::Routing;

use crate::Admin;
use crate::hits::Hits;
use state::overload::OverloadReport;

/// State of the objectives and of what follows from them: `GET /state/v1/slo`.
#[derive(Clone, Debug, Serialize)]
pub struct SloState {
    /// Objectives, and how they are met.
    pub objective: ObjectiveState,
    /// Overload of the fleet, while it lasts.
    pub overload: Option<OverloadReport>,
    /// Terms of the value of a conversation's end that are common to all conversations.
    pub tail: TailState,
    /// Most recent trims, the newest first.
    pub given_up: Vec<Trimmed>,
    /// State of each worker in the fleet.
    pub workers: Vec<WorkerState>,
    /// Expected behaviour of conversations over all traffic.
    pub habits: ClassState,
    /// Expected behaviour of conversations by class, for the classes without an API key.
    pub classes: Vec<ClassState>,
    /// Number of conversations remembered.
    pub conversations: usize,
    /// Observations dropped because the queue was full.
    pub lessons_dropped: u64,
    /// Account of the prompt tokens that could have been cached.
    pub hits: Hits,
}

/// Objectives, and how they are met.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectiveState {
    /// Share of turns that has to meet the objective.
    pub share: f64,
    /// Turns by source of their objective.
    pub classes: Vec<ObjectiveClass>,
}

/// A source of objectives, and how its objective is met.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectiveClass {
    /// `default`, `header`, or a configured name.
    pub class: String,
    /// Time to first token that is the objective, in milliseconds; `null` for `header`, whose turns carry their own.
    pub ttft_ms: Option<f64>,
    /// Turns within the objective since the router's start.
    pub met: u64,
    /// Turns that missed the objective since the router's start.
    pub missed: u64,
}

/// State of the feedback loop for one worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerState {
    /// Name of the worker.
    pub name: String,
    /// Dialect in which hints are sent to the worker; `none` if it takes none.
    pub dialect: &'static str,
    /// Learned prefill cost.
    #[serde(flatten)]
    pub cost: Option<CostState>,
    /// ρ: prefill work routed to the worker, as a share of its time.
    pub utilisation: f64,
    /// Predicted time before a request sent now would start its prefill, in milliseconds.
    pub wait_ms: f64,
    /// ξ: uncached tokens with which a turn on the worker is expected to meet the objective.
    pub xi_tokens: f64,
    /// Number of silent conversations on the worker.
    pub silent: usize,
    /// Objective in force at the worker, with what it follows from; `null` if there is none.
    pub told: Option<Arc<SentObjective>>,
}

/// Returns the current state of the feedback loop.
pub fn explain(admin: &Admin) -> SloState {
    let state = &admin.state;
    let (habits, classes, conversations) = {
        let conversations = state.routing.feedback.conversations.lock();
        let habits = &conversations.habits;
        let all = ClassState::of(None, habits.all());
        (all, ClassState::keyless(habits), conversations.len())
    };
    SloState {
        objective: objective(&state.routing),
        overload: state.overload(),
        tail: TailState::of(&state.routing.feedback, state.routing.live().hints.rule),
        given_up: state.routing.feedback.recent.all(),
        workers: workers(&state.routing),
        habits,
        classes,
        conversations,
        lessons_dropped: state.routing.feedback.dropped(),
        hits: Hits::recent(admin),
    }
}

fn objective(routing: &Routing) -> ObjectiveState {
    let live = routing.live();
    let objective = &live.objective;
    let class = |class: &str, ttft_ms| {
        let (met, missed) = routing.metrics.slo_turns(class);
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

fn workers(routing: &Routing) -> Vec<WorkerState> {
    let now = routing.clock.now();
    let worker_state = |worker: &Arc<fleet::Worker>| {
        let (wait, utilisation) = worker.with_load(|load| (load.pending.wait(now), load.utilisation.at(now)));
        WorkerState {
            name: worker.name().to_owned(),
            dialect: worker.dialect().name(),
            cost: routing.feedback.costs.lock().state(worker.id),
            utilisation,
            wait_ms: wait.0,
            xi_tokens: routing.objective_for(worker).objective.xi_tokens,
            silent: routing.feedback.tail.lock().silent_on(worker.id),
            told: worker.hints.sent_objective(now),
        }
    };
    routing.fleet.present().iter().map(worker_state).collect()
}

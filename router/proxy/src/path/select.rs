//! Selects a worker for a turn: matches the prompt, views the fleet, and decides.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use policy::ids::{ConversationId, WorkerId};
use policy::route::{self, Decision, Snapshot, WorkerView};
use policy::units::{Millis, Tokens};
use tracing::debug;

use super::ask::Asked;
use super::evict_first::evict_first;
use super::turn::Turn;
use fleet::Worker;
use fleet::breaker::BreakerState;
use fleet::facts::Serves;
use fleet::rotation::{self, Condition};
use learning::knowledge::{Match, PredictionSource, Scale};
use protocol::error::ApiError;
use state::Routing;
use telemetry::traces::Stage;

/// A worker chosen for a turn.
#[derive(Debug)]
pub struct Choice {
    /// Time of the decision.
    pub at: Millis,
    pub worker: Arc<Worker>,
    pub decision: Decision,
    /// The prompt's match on the worker.
    pub matched: Matched,
    /// Tokens at the end of the conversation that the worker may evict first.
    pub evict_first: Tokens,
    /// The view of the worker at the decision.
    pub view: WorkerView,
    /// Whether the worker was chosen although its breaker is open, because too few others remain.
    pub regardless: bool,
    /// Whether another untried worker in normal use could serve the turn.
    pub has_alternative: bool,
    /// Whether another untried worker could serve the turn, even one that is not in normal use.
    pub may_go_elsewhere: bool,
    /// Times at which selection began, residency was known and the worker was chosen; only if requests are traced.
    pub timed: Option<[Instant; 3]>,
}

/// The chosen worker's part of a [`Match`].
#[derive(Debug)]
pub struct Matched {
    /// Tokens of the prompt, counted or estimated.
    pub prompt: Tokens,
    /// The source of the resident tokens.
    pub source: PredictionSource,
    /// Leading keys in the mirror.
    pub mirrored: usize,
    /// Token offsets of the chain's keys.
    pub scale: Scale,
}

impl Matched {
    fn of(found: &Match, worker: WorkerId) -> Self {
        let slot = worker.index();
        let source = found.sources.get(slot).copied();
        Self {
            prompt: found.prompt,
            source: source.unwrap_or(PredictionSource::Mirror { edge: 0 }),
            mirrored: found.mirrored.get(slot).copied().unwrap_or(0),
            scale: found.scale.clone(),
        }
    }
}

#[derive(Default)]
struct Scratch {
    found: Match,
    views: Vec<WorkerView>,
    conditions: Vec<Condition>,
    ready: Vec<bool>,
    /// Ready workers whose breaker and slow start allow turns.
    usual: Vec<bool>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Choice {
    /// Returns the stages of the selection with their beginning and end; none if requests are not traced.
    pub fn timed(&self) -> impl Iterator<Item = (Stage, [Instant; 2])> {
        let stages = |[began, matched, chosen]: [Instant; 3]| {
            [
                (Stage::Match, [began, matched]),
                (Stage::Score, [matched, chosen]),
            ]
        };
        self.timed.map(stages).into_iter().flatten()
    }
}

/// Returns the turn's shortest prefill time on any ready worker; `None` if none is ready.
#[must_use]
pub fn least_prefill(routing: &Routing, turn: &Turn) -> Option<Millis> {
    SCRATCH.with_borrow_mut(|scratch| {
        let found = &mut scratch.found;
        let workers = routing.fleet.workers();
        routing
            .knowledge
            .look_up_into(&turn.model, &turn.fingerprint, workers.len(), found);
        let eligible = turn.eligibility(routing, &workers);
        let ready = workers
            .iter()
            .filter(|worker| worker.is_ready() && turn.may_go_to(worker) && eligible.admits(worker));
        let prefill = ready.map(|worker| {
            let cached = found.resident.get(worker.id.index()).copied().unwrap_or_default();
            let cached = cached.min(found.prompt);
            worker.cost().prefill(found.prompt.saturating_sub(cached), cached)
        });
        prefill.reduce(Millis::min)
    })
}

/// Selects an untried worker. Fails if no worker is ready.
pub fn select(routing: &Routing, turn: &Turn, tried: &[WorkerId]) -> Result<Choice, ApiError> {
    SCRATCH.with_borrow_mut(|scratch| select_with(scratch, routing, turn, tried))
}

fn select_with(
    scratch: &mut Scratch,
    routing: &Routing,
    turn: &Turn,
    tried: &[WorkerId],
) -> Result<Choice, ApiError> {
    let now = routing.clock.now();
    let instant = || routing.config.traces.is_some().then(Instant::now);
    let began = instant();
    let workers = routing.fleet.workers();
    let found = &mut scratch.found;
    routing
        .knowledge
        .look_up_into(&turn.model, &turn.fingerprint, workers.len(), found);
    let matched = instant();
    scratch.view(routing, turn, &workers, now);
    scratch.leave_out(tried);
    let Scratch {
        found,
        views,
        conditions,
        ready,
        usual,
    } = scratch;
    let decision = decide(routing, turn, found, views).ok_or_else(|| match tried {
        [] => routing.no_worker_ready(),
        _ => ApiError::WorkerFailed,
    })?;
    // Views have the order of the slots.
    let at = decision.chosen;
    let worker = Arc::clone(&workers[at]);
    routing
        .metrics
        .decision(decision.policy.as_str(), decision.reason.as_str(), worker.name());
    debug!(
        decision = decision.sequence,
        worker = worker.name(),
        reason = decision.reason.as_str(),
        terms = ?decision.terms,
        "chosen"
    );
    let is_other = |could: &[bool]| {
        let mut others = views.iter().zip(could);
        others.any(|(view, could)| *could && view.id != worker.id && !tried.contains(&view.id))
    };
    Ok(Choice {
        at: now,
        has_alternative: is_other(usual),
        may_go_elsewhere: is_other(ready),
        matched: Matched::of(found, worker.id),
        evict_first: evict_first(routing, turn, &worker, found.prompt),
        worker,
        decision,
        view: views[at].clone(),
        timed: began
            .zip(matched)
            .zip(instant())
            .map(|((began, matched), chosen)| [began, matched, chosen]),
        regardless: conditions[at].breaker == BreakerState::Open,
    })
}

impl Scratch {
    /// Views every worker for this turn: readiness and resident tokens.
    fn view(&mut self, routing: &Routing, turn: &Turn, workers: &[Arc<Worker>], now: Millis) {
        let Self {
            found,
            views,
            conditions,
            ready,
            usual,
        } = self;
        let eligible = turn.eligibility(routing, workers);
        views.clear();
        views.extend(workers.iter().map(|worker| {
            let slot = worker.id.index();
            let indexed = found.indexed.get(slot).copied().unwrap_or_default();
            let living = found.living.get(slot).copied().unwrap_or_default();
            let is_eligible = turn.may_go_to(worker) && eligible.admits(worker);
            worker.view(now, is_eligible, indexed, living)
        }));
        ready.clear();
        ready.extend(views.iter().map(|view| view.ready));
        narrow(routing, workers, now, turn.source(), views, conditions);
        usual.clear();
        usual.extend(views.iter().map(|view| view.ready));
        rotation::avoid(views, conditions);
        let Some(pinned_to) = turn.pinned_to else { return };
        let is_possible = workers.get(pinned_to.index()).is_some_and(|worker| {
            worker.accepts_pinned()
                && turn.may_go_to(worker)
                && (turn.model.is_empty() || worker.serves(&turn.model) > Serves::No)
        });
        if is_possible {
            ready[pinned_to.index()] = true;
            // The breaker is ignored: no other worker can answer the turn.
            for (view, ready) in views.iter_mut().zip(ready.iter_mut()) {
                *ready &= view.id == pinned_to;
                view.ready = *ready;
            }
            usual.clone_from(ready);
        }
    }

    /// Excludes the tried workers. If that leaves none, allows ready workers with an open breaker or in recovery.
    fn leave_out(&mut self, tried: &[WorkerId]) {
        if tried.is_empty() {
            return;
        }
        let was_tried = |view: &WorkerView| tried.contains(&view.id);
        let is_last_resort = !self.views.iter().any(|view| view.ready && !was_tried(view));
        for (view, ready) in self.views.iter_mut().zip(&self.ready) {
            view.ready = (view.ready || (is_last_resort && *ready)) && !was_tried(view);
        }
    }
}

/// Decides by the active policy, and evaluates the shadow policy on the same snapshot. Returns `None` if no worker is
/// ready.
fn decide(routing: &Routing, turn: &Turn, found: &Match, views: &[WorkerView]) -> Option<Decision> {
    let policy = routing.policy.load();
    let snapshot = Snapshot {
        workers: views,
        settings: &policy.settings,
        sequence: routing.next_sequence(),
    };
    let session = turn.session.as_ref();
    let asked = route::Turn {
        prompt: found.prompt,
        resident: &found.resident,
        objective: turn.goal.ttft,
        last_worker: session.and_then(|session| routing.knowledge.last_worker(session.key)),
        conversation: session.map(|session| ConversationId(session.key)),
        head: turn.fingerprint.chain.hashes().first().copied(),
        class: turn.goal.origin.named(&turn.live.objective),
        ask: turn.asked.as_deref().map(Asked::ask),
    };
    let decision = route::decide(&snapshot, &asked)?;
    if let Some(shadow) = &*routing.shadow.load() {
        shadow.see(&snapshot, &asked, &decision);
    }
    Some(decision)
}

/// Excludes failing and recovering workers as long as enough others remain.
pub(super) fn narrow(
    routing: &Routing,
    workers: &[Arc<Worker>],
    now: Millis,
    source: Option<u64>,
    views: &mut [WorkerView],
    conditions: &mut Vec<Condition>,
) {
    conditions.clear();
    conditions.extend(workers.iter().map(|worker| worker.condition_for(now, source)));
    if conditions.iter().all(|condition| *condition == Condition::WELL) {
        return;
    }
    let passed_over = rotation::narrow(views, conditions, routing.config.failure.max_ejected_share);
    routing.metrics.breakers_passed_over(passed_over);
}

#[cfg(test)]
mod tests;

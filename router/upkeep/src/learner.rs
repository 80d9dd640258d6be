//! Applies queued observations, and periodically sweeps for silent conversations.

use std::sync::Arc;
use std::time::Duration;

use policy::estimate::PrefillSize;
use policy::ids::WorkerId;
use policy::slo::evict_first_tail;
use policy::units::{Millis, Tokens};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, MissedTickBehavior};

use super::{room, slow};
use config::HintRule;
use fleet::Worker;
use fleet::hints::{HintKind, OBJECTIVE_REFRESH};
use fleet::overrides::AdminState;
use learning::feedback::{CompletedTurn, Counted, Late, LearnerEvent, Observation, PrefillSample};
use proxy::Proxy;
use state::{Routing, State};

/// Interval of the sweep over silent conversations, workers' costs and objectives.
const SWEEP: Duration = Duration::from_millis(500);
/// Interval while the router is idle. Objectives stay in force.
const IDLE_SWEEP: Duration = Duration::from_millis(OBJECTIVE_REFRESH.0 as u64);
/// Number of observations applied before other tasks may run.
const BATCH: usize = 64;

pub(super) async fn learn(proxy: Arc<Proxy>, events: Arc<Mutex<mpsc::Receiver<LearnerEvent>>>) {
    let mut events = events.lock().await;
    let mut sweeps = tokio::time::interval(SWEEP);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut swept, mut is_slow) = (Instant::now(), false);
    loop {
        tokio::select! {
            // A sweep is rare, and later observations should not be applied before it.
            biased;
            _ = sweeps.tick() => {
                sweep(&proxy.state);
                proxy.capture_fleet(false);
                let state = &proxy.state;
                state.operations.idle.check(state.routing.clock.now(), proxy.in_flight());
                (swept, is_slow) = (Instant::now(), state.operations.idle.is_idle());
                if is_slow {
                    sweeps.reset_after(IDLE_SWEEP);
                }
            }
            () = sweep_is_wanted(&proxy.state), if is_slow => {
                is_slow = false;
                sweeps.reset_at(swept + SWEEP);
            }
            first = events.recv() => {
                let Some(first) = first else { return };
                proxy.state.operations.idle.requested(proxy.state.routing.clock.now());
                apply_event(&proxy, first);
                // Each event stays in the queue until its turn: the task that replaces one that panics finds the rest.
                for event in std::iter::from_fn(|| events.try_recv().ok()).take(BATCH - 1) {
                    apply_event(&proxy, event);
                }
                proxy.state.routing.publish_costs();
                tokio::task::yield_now().await;
            }
        }
    }
}

fn apply_event(proxy: &Proxy, event: LearnerEvent) {
    match event {
        LearnerEvent::Turn(observation) => apply(proxy, &observation),
        LearnerEvent::Late(late) => learn_late(&proxy.state.routing, &late),
        LearnerEvent::Sent(worker) => make_room(proxy, worker),
        LearnerEvent::Begun(begun) => room::begun(&proxy.state.routing, &begun),
    }
}

/// Waits until an idle router has a request, an event such as a worker that becomes ready, or changed settings.
async fn sweep_is_wanted(state: &State) {
    tokio::select! {
        () = state.operations.idle.ends() => {}
        () = state.operations.operator.events.happened() => {}
        () = state.routing.live_changed() => {}
    }
}

fn present(workers: &[Arc<Worker>], worker: WorkerId) -> Option<&Arc<Worker>> {
    let known = workers.get(worker.index())?;
    (known.admin_state() != AdminState::Gone).then_some(known)
}

fn apply(proxy: &Proxy, observation: &Observation) {
    let routing = &proxy.state.routing;
    let workers = routing.fleet.workers();
    let Some(worker) = present(&workers, observation.worker) else {
        return;
    };
    learn_cost(routing, worker, observation);
    let (share, configured) = routing.configured_objectives();
    routing
        .feedback
        .objectives
        .served(observation, share, &configured);
    let Some((key, _)) = &observation.conversation else {
        return;
    };
    let (keys, shared_tokens) = shared(routing, observation);
    let turns = routing.feedback.conversations.lock().turned(&CompletedTurn {
        key: *key,
        class: observation.class,
        finish: observation.finish,
        arrived: observation.arrived,
        ended: observation.ended,
        prompt: observation.prompt,
        response: observation.response,
        last: observation.last,
    });
    room::learn(routing, worker, observation, *key, turns);
    let (rule, out_of_band) = {
        let hints = &routing.live().hints;
        (hints.rule_of(worker.name()), hints.out_of_band)
    };
    if rule == HintRule::Off {
        return;
    }
    if out_of_band {
        if observation.last {
            give_up(
                routing,
                worker,
                observation,
                keys,
                HintKind::Ended { keep: shared_tokens },
            );
        }
        protect(routing, worker, observation, keys, shared_tokens);
        if let Some(left) = observation.left.and_then(|left| present(&workers, left)) {
            leave(routing, left, observation, keys);
        }
    }
    let stored = observation.prompt.saturating_sub(observation.cached) + observation.response;
    room::price(routing, worker, stored);
    room::make(proxy, worker);
}

fn make_room(proxy: &Proxy, worker: WorkerId) {
    if let Some(worker) = present(&proxy.state.routing.fleet.workers(), worker) {
        room::make(proxy, worker);
    }
}

fn learn_cost(routing: &Routing, worker: &Worker, observation: &Observation) {
    let told = match observation.prefill {
        None => "none",
        Some(_) if !observation.cached_is_told => "predicted",
        Some(sample) => sample.source(),
    };
    routing.metrics.cost_sample(worker.name(), told);
    if !routing.config.learning.costs {
        return;
    }
    let size = PrefillSize::of(
        observation.prompt.saturating_sub(observation.cached),
        observation.cached,
    );
    routing.feedback.counters.lock().answered(
        observation.ended,
        worker.id,
        size,
        observation.cached_is_told,
        observation.prefill.is_some(),
    );
    let mut costs = routing.feedback.costs.lock();
    // First, because the prefill ends the time without a response.
    if let Some(beside) = observation.beside {
        costs.beside(worker.id, beside);
    }
    if let Some(sample) = observation.prefill {
        costs.observe(observation.ended, worker.id, size, sample);
    }
}

pub(super) fn learn_counted(routing: &Routing, worker: &Worker, counted: Counted) {
    if !routing.config.learning.costs {
        return;
    }
    let now = routing.clock.now();
    let learned = routing.feedback.counters.lock().counted(now, worker.id, counted);
    let Some((size, took)) = learned else { return };
    let sample = PrefillSample::Counters(took);
    routing.metrics.cost_sample(worker.name(), sample.source());
    routing
        .feedback
        .costs
        .lock()
        .observe(now, worker.id, size, sample);
    routing.publish_costs();
}

/// Learns from a late first token, before the response ends.
fn learn_late(routing: &Routing, late: &Late) {
    let workers = routing.fleet.workers();
    let Some(worker) = present(&workers, late.worker) else {
        return;
    };
    routing.metrics.cost_sample(worker.name(), "late");
    if routing.config.learning.costs {
        let size = PrefillSize::of(late.uncached, late.cached);
        routing
            .feedback
            .costs
            .lock()
            .observe(late.at, late.worker, size, late.took);
    }
}

/// Sets a new worker's cost to the median of the others.
pub(super) fn introduce(routing: &Routing, worker: WorkerId) {
    routing.feedback.costs.lock().introduce(worker);
    routing.publish_costs();
}

/// Returns the leading keys of a prompt that many conversations share, and their tokens.
fn shared(routing: &Routing, observation: &Observation) -> (usize, Tokens) {
    let keys = observation.chain.hashes();
    let mut shared = routing.feedback.shared.lock();
    if observation.class.stage == policy::estimate::Stage::First {
        shared.begins(keys);
    }
    let count = shared.shared(keys);
    (count, tokens_up_to(observation, count))
}

/// Marks a worker's copy of a conversation past the shared prefix as evicted first, by a hint and in the mirror.
fn give_up(routing: &Routing, worker: &Worker, observation: &Observation, shared: usize, kind: HintKind) {
    let Some((_, name)) = &observation.conversation else {
        return;
    };
    if !worker.hears_hints() {
        return;
    }
    worker.hints.push(Arc::clone(name), kind);
    let own = observation.chain.hashes().get(shared..).unwrap_or_default();
    routing
        .knowledge
        .update(worker.id, |residency| residency.released(worker.id, own));
}

/// Gives up the copy of a conversation on the worker that it left, but for what other conversations there share.
fn leave(routing: &Routing, left: &Worker, observation: &Observation, shared_by_many: usize) {
    let keys = observation.chain.hashes();
    let shared_there = routing
        .knowledge
        .update(left.id, |residency| residency.shared(left.id, keys));
    let shared = shared_there.max(shared_by_many);
    let keep = tokens_up_to(observation, shared);
    give_up(routing, left, observation, shared, HintKind::Moved { keep });
    if let Some((key, _)) = &observation.conversation {
        room::forget(routing, left.id, *key);
    }
}

fn tokens_up_to(observation: &Observation, keys: usize) -> Tokens {
    let units = observation.chain.span(keys) as f64;
    Tokens((units * observation.tokens_per_unit).round() as u64)
}

/// Removes evict-first marks from a shared prefix, which outlives any one of its conversations.
fn protect(routing: &Routing, worker: &Worker, observation: &Observation, keys: usize, tokens: Tokens) {
    let (Some((_, name)), Some(&last)) = (
        &observation.conversation,
        keys.checked_sub(1)
            .and_then(|at| observation.chain.hashes().get(at)),
    ) else {
        return;
    };
    if tokens.0 < u64::from(worker.spec.block_size) || !worker.hears_hints() {
        return;
    }
    let again_after = Millis(routing.live().hints.ttl.0 / 2.0);
    let due = routing
        .feedback
        .shared
        .lock()
        .is_due(observation.ended, worker.id, last, again_after);
    if due {
        worker
            .hints
            .push(Arc::clone(name), HintKind::Protect { keep: tokens });
        routing.knowledge.update(worker.id, |residency| {
            residency.protected(worker.id, &observation.chain.hashes()[..keys]);
        });
    }
}

fn sweep(state: &State) {
    let now = state.routing.clock.now();
    let workers = state.routing.fleet.workers();
    state.routing.feedback.conversations.lock().sweep(now);
    let told_beforehand = workers
        .iter()
        .filter(|worker| !state.routing.makes_room_on(worker));
    state
        .routing
        .feedback
        .publish_free_tails(told_beforehand.map(|worker| worker.id));
    if state.config.learning.costs {
        let has_doubt = state.routing.feedback.costs.lock().elapse(now);
        if has_doubt {
            state.routing.publish_costs();
        }
        slow::watch(state, &workers);
    }
    for worker in workers.iter().filter(|worker| worker.is_well()) {
        queue_objective(&state.routing, worker);
    }
}

/// Publishes what a worker's ξ leaves over, and queues its objective if it takes one and it is news.
pub(super) fn queue_objective(routing: &Routing, worker: &Worker) {
    let objective = routing.objective_for(worker);
    let tail = match routing.feedback.tail.lock().guard().allows() {
        true => evict_first_tail(
            objective.objective.xi_tokens,
            Tokens(objective.next_prompt_tokens),
        ),
        false => Tokens::ZERO,
    };
    routing.feedback.objectives.publish_tail(worker.id, tail);
    if worker.takes_objective() && routing.live().hints.rule_of(worker.name()) != HintRule::Off {
        worker.hints.objective(routing.clock.now(), objective);
    }
}

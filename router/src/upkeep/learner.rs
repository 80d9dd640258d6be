//! Applies queued observations, and periodically what follows from silence.

use std::sync::Arc;
use std::time::Duration;

use policy::estimate::PrefillSize;
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, MissedTickBehavior};

use super::room;
use crate::app::App;
use fleet::Worker;
use fleet::hints::Kind;
use fleet::hold::Hold;
use learning::feedback::{CompletedTurn, Counted, Late, LearnerEvent, Observation, Sample};

/// Interval of the sweep over silent conversations, idle workers' costs and objectives.
const SWEEP: Duration = Duration::from_millis(500);
/// Interval of the sweep of an idle router.
const IDLE_SWEEP: Duration = Duration::from_secs(30);
/// Observations applied before other tasks may run.
const BATCH: usize = 64;

pub(super) async fn learn(app: Arc<App>, lessons: Arc<Mutex<mpsc::Receiver<LearnerEvent>>>) {
    let mut lessons = lessons.lock().await;
    let mut sweeps = tokio::time::interval(SWEEP);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut swept, mut is_slow) = (Instant::now(), false);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            // A sweep is rare, and later observations should not be applied before it.
            biased;
            _ = sweeps.tick() => {
                sweep(&app);
                app.idle.check(app.clock.now(), app.in_flight());
                (swept, is_slow) = (Instant::now(), app.idle.is_idle());
                if is_slow {
                    sweeps.reset_after(IDLE_SWEEP);
                }
            }
            () = sweep_is_wanted(&app), if is_slow => {
                is_slow = false;
                sweeps.reset_at(swept + SWEEP);
            }
            count = lessons.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    return;
                }
                app.idle.requested(app.clock.now());
                for taught in batch.drain(..) {
                    match taught {
                        LearnerEvent::Turn(lesson) => apply(&app, &lesson),
                        LearnerEvent::Late(late) => learn_late(&app, &late),
                        LearnerEvent::Sent(worker) => make_room(&app, worker),
                        LearnerEvent::Begun(begun) => room::begun(&app, &begun),
                    }
                }
                publish_costs(&app);
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Waits until an idle router has a request or an event, such as a worker that is ready or a changed objective.
async fn sweep_is_wanted(app: &App) {
    tokio::select! {
        () = app.idle.ends() => {}
        () = app.operator.events.happened() => {}
    }
}

/// Returns the worker, unless it was removed.
fn present(workers: &[Arc<Worker>], worker: WorkerId) -> Option<&Arc<Worker>> {
    let known = workers.get(worker.index())?;
    (known.hold() != Hold::Gone).then_some(known)
}

fn apply(app: &App, lesson: &Observation) {
    let workers = app.fleet.workers();
    let Some(worker) = present(&workers, lesson.worker) else {
        return;
    };
    learn_cost(app, worker, lesson);
    let Some((key, _)) = &lesson.conversation else {
        return;
    };
    let (keys, shared_tokens) = shared(app, lesson);
    let turns = app.feedback.conversations.lock().turned(&CompletedTurn {
        key: *key,
        class: lesson.class,
        finish: lesson.finish,
        arrived: lesson.arrived,
        ended: lesson.ended,
        prompt: lesson.prompt,
        response: lesson.response,
        last: lesson.last,
    });
    room::learn(app, worker, lesson, *key, turns);
    let hints = &app.config.hints;
    if !hints.enabled {
        return;
    }
    if hints.out_of_band {
        if lesson.last {
            give_up(app, worker, lesson, keys, Kind::Ended { keep: shared_tokens });
        }
        protect(app, worker, lesson, keys, shared_tokens);
    }
    let stored = lesson.prompt.saturating_sub(lesson.cached) + lesson.response;
    room::price(app, worker, stored);
    room::make(app, worker);
}

/// Handles a turn that was sent to a worker with little room left.
fn make_room(app: &App, worker: WorkerId) {
    if let Some(worker) = present(&app.fleet.workers(), worker) {
        room::make(app, worker);
    }
}

/// Learns from a response whose prefill time is known.
fn learn_cost(app: &App, worker: &Worker, lesson: &Observation) {
    let told = match lesson.prefill {
        None => "none",
        Some(_) if !lesson.cached_is_told => "predicted",
        Some(sample) => sample.source(),
    };
    app.metrics.cost_sample(worker.name(), told);
    if !app.config.learning.costs {
        return;
    }
    let size = PrefillSize::of(lesson.prompt.saturating_sub(lesson.cached), lesson.cached);
    app.feedback.counters.lock().answered(
        lesson.ended,
        worker.id,
        size,
        lesson.cached_is_told,
        lesson.prefill.is_some(),
    );
    let mut costs = app.feedback.costs.lock();
    // First, since the prefill ends the time without a response.
    if let Some(beside) = lesson.beside {
        costs.beside(worker.id, beside);
    }
    if let Some(sample) = lesson.prefill {
        costs.observe(lesson.ended, worker.id, size, sample);
    }
}

pub(super) fn learn_counted(app: &App, worker: &Worker, counted: Counted) {
    if !app.config.learning.costs {
        return;
    }
    let now = app.clock.now();
    let learned = app.feedback.counters.lock().counted(now, worker.id, counted);
    let Some((size, took)) = learned else { return };
    let sample = Sample::Counters(took);
    app.metrics.cost_sample(worker.name(), sample.source());
    app.feedback.costs.lock().observe(now, worker.id, size, sample);
    publish_costs(app);
}

/// Learns from a late first token without waiting for the response's end.
fn learn_late(app: &App, late: &Late) {
    let workers = app.fleet.workers();
    let Some(worker) = present(&workers, late.worker) else {
        return;
    };
    app.metrics.cost_sample(worker.name(), "late");
    if app.config.learning.costs {
        let size = PrefillSize::of(late.uncached, late.cached);
        app.feedback
            .costs
            .lock()
            .observe(late.at, late.worker, size, late.took);
    }
}

/// Sets a new worker's cost to that of its pool.
pub(super) fn introduce(app: &App, worker: WorkerId) {
    app.feedback.costs.lock().introduce(worker);
    publish_costs(app);
}

fn publish_costs(app: &App) {
    if app.config.learning.costs {
        let mut costs = app.feedback.costs.lock();
        costs.elapse(app.clock.now());
        let (published, overheads) = (costs.published(), costs.overheads());
        drop(costs);
        for ((worker, cost), overhead) in app.fleet.workers().iter().zip(published).zip(overheads) {
            worker.set_cost(cost);
            worker.set_overhead(overhead);
        }
    }
}

/// Returns the leading keys of a prompt that many conversations share, and their tokens.
fn shared(app: &App, lesson: &Observation) -> (usize, Tokens) {
    let keys = lesson.chain.hashes();
    let mut shared = app.feedback.shared.lock();
    if lesson.class.stage == policy::estimate::Stage::First {
        shared.begins(keys);
    }
    let count = shared.shared(keys);
    let units = lesson.chain.span(count) as f64;
    (count, Tokens((units * lesson.tokens_per_unit).round() as u64))
}

/// Marks a worker's copy of a conversation past the shared prefix to be evicted first, by a hint; its mirror follows.
fn give_up(app: &App, worker: &Worker, lesson: &Observation, shared: usize, kind: Kind) {
    let Some((_, name)) = &lesson.conversation else {
        return;
    };
    if !worker.hears_hints() {
        return;
    }
    worker.hints.push(Arc::clone(name), kind);
    let own = lesson.chain.hashes().get(shared..).unwrap_or_default();
    app.knowledge
        .update(worker.id, |residency| residency.released(worker.id, own));
}

/// Removes marks from a shared prefix, which outlives any one of its conversations.
fn protect(app: &App, worker: &Worker, lesson: &Observation, keys: usize, tokens: Tokens) {
    let (Some((_, name)), Some(&last)) = (
        &lesson.conversation,
        keys.checked_sub(1).and_then(|at| lesson.chain.hashes().get(at)),
    ) else {
        return;
    };
    if tokens.0 < u64::from(worker.spec.block_size) || !worker.hears_hints() {
        return;
    }
    let again_after = Millis(app.config.hints.ttl.0 / 2.0);
    let due = app
        .feedback
        .shared
        .lock()
        .is_due(lesson.ended, worker.id, last, again_after);
    if due {
        worker
            .hints
            .push(Arc::clone(name), Kind::Protect { keep: tokens });
        app.knowledge.update(worker.id, |residency| {
            residency.protected(worker.id, &lesson.chain.hashes()[..keys]);
        });
    }
}

fn sweep(app: &App) {
    let now = app.clock.now();
    let workers = app.fleet.workers();
    app.feedback.conversations.lock().sweep(now);
    let told_beforehand = workers.iter().filter(|worker| !app.makes_room_on(worker));
    app.feedback
        .publish_free_tails(told_beforehand.map(|worker| worker.id));
    if app.config.learning.costs && app.feedback.costs.lock().elapse(now) {
        publish_costs(app);
    }
    if app.config.hints.enabled {
        for worker in workers
            .iter()
            .filter(|worker| worker.is_well() && worker.takes_objective())
        {
            worker.hints.objective(app.objective_for(worker));
        }
    }
}

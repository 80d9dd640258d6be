//! Applies lessons as they come, and looks now and then at what silence teaches.

use std::sync::Arc;
use std::time::Duration;

use policy::estimate::PrefillSize;
use policy::ids::WorkerId;
use policy::slo::{self, ServedTurn};
use policy::units::{Millis, Tokens};
use tokio::sync::{Mutex, mpsc};
use tokio::time::MissedTickBehavior;

use crate::app::App;
use crate::feedback::{Counted, Late, Lesson, Sample, Silent, Taught, Turned};
use crate::fleet::Worker;
use crate::fleet::hints::Kind;
use crate::fleet::hold::Hold;

/// Between two looks at silent conversations, costs that nothing has renewed and objectives.
const SWEEP: Duration = Duration::from_millis(500);
/// Lessons that are applied before others have their turn.
const BATCH: usize = 64;

/// Learns for as long as the task lives.
pub(super) async fn learn(app: Arc<App>, lessons: Arc<Mutex<mpsc::Receiver<Taught>>>) {
    let mut lessons = lessons.lock().await;
    let mut sweeps = tokio::time::interval(SWEEP);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            count = lessons.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    return;
                }
                for taught in batch.drain(..) {
                    match taught {
                        Taught::Turn(lesson) => apply(&app, &lesson),
                        Taught::Late(late) => learn_late(&app, &late),
                    }
                }
                publish_costs(&app);
                tokio::task::yield_now().await;
            }
            _ = sweeps.tick() => sweep(&app),
        }
    }
}

/// The worker, unless it has left: there is nothing to learn of one that is gone.
fn present(workers: &[Arc<Worker>], worker: WorkerId) -> Option<&Arc<Worker>> {
    let known = workers.get(worker.index())?;
    (known.hold() != Hold::Gone).then_some(known)
}

fn apply(app: &App, lesson: &Lesson) {
    let workers = app.fleet.workers();
    let Some(worker) = present(&workers, lesson.worker) else {
        return;
    };
    learn_cost(app, worker, lesson);
    let Some((key, name)) = &lesson.conversation else {
        return;
    };
    let (keys, shared_tokens) = shared(app, lesson);
    let history = app.feedback.conversations.lock().turned(&Turned {
        key: *key,
        name,
        worker: lesson.worker,
        class: lesson.class,
        finish: lesson.finish,
        arrived: lesson.arrived,
        ended: lesson.ended,
        prompt: lesson.prompt,
        response: lesson.response,
        last: lesson.last,
        keys: lesson.chain.hashes(),
        shared: (keys, shared_tokens),
    });
    if app.config.learning.xi {
        let rule = {
            let mut controller = app.feedback.controller.lock();
            controller.served(&served(lesson, *key, history));
            controller.rule()
        };
        app.feedback.publish(rule);
    }
    if !(app.config.hints.enabled && app.config.hints.out_of_band) {
        return;
    }
    let now = app.clock.now();
    if let Some(left) = lesson.left.and_then(|left| workers.get(left.index()))
        && slo::tells_of_moves(left.with_load(|load| load.utilisation.at(now)))
    {
        give_up(app, left, lesson, keys, Kind::Moved { keep: shared_tokens });
    }
    // Where requests carry no hints, the same is said beside them.
    let total = lesson.prompt + lesson.response;
    if !app.config.hints.in_request && lesson.evict_first > Tokens::ZERO && worker.hears_hints() {
        let keep = total.saturating_sub(lesson.evict_first);
        worker.hints.push(Arc::clone(name), Kind::Trim { keep });
    }
    if lesson.last {
        give_up(app, worker, lesson, keys, Kind::Ended { keep: shared_tokens });
    }
    protect(app, worker, lesson, keys, shared_tokens);
}

fn served(lesson: &Lesson, key: u64, history: Tokens) -> ServedTurn {
    ServedTurn {
        worker: lesson.worker,
        conversation: key,
        prompt: lesson.prompt,
        history,
        length: lesson.prompt + lesson.response,
        cost: lesson.cost,
        wait: lesson.wait,
        objective: lesson.objective,
        next_prompt: lesson.next_prompt,
        utilisation: lesson.utilisation,
    }
}

/// An answer that tells what its prefill took.
fn learn_cost(app: &App, worker: &Worker, lesson: &Lesson) {
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
    // First, as an answer's prefill ends the time without one.
    if let Some(beside) = lesson.beside {
        costs.beside(worker.id, beside);
    }
    if let Some(sample) = lesson.prefill {
        costs.observe(lesson.ended, worker.id, size, sample);
    }
}

/// What an engine has counted of its prefills.
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

/// A first token that could not wait for its answer's end.
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

/// A worker is met: it begins with what is known of its pool.
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

/// How much of a prompt's beginning many conversations share: keys, and tokens.
fn shared(app: &App, lesson: &Lesson) -> (usize, Tokens) {
    let keys = lesson.chain.hashes();
    let mut shared = app.feedback.shared.lock();
    if lesson.class.stage == policy::estimate::Stage::First {
        shared.begins(keys);
    }
    let count = shared.shared(keys);
    let units = lesson.chain.span(count) as f64;
    (count, Tokens((units * lesson.tokens_per_unit).round() as u64))
}

/// A worker may drop what it holds of a conversation past what others share; its mirror does as it will.
fn give_up(app: &App, worker: &Worker, lesson: &Lesson, shared: usize, kind: Kind) {
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

/// A beginning that many share is worth more than what any of them says about its own end.
fn protect(app: &App, worker: &Worker, lesson: &Lesson, keys: usize, tokens: Tokens) {
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
    let of = |id: WorkerId| workers.get(id.index());
    let silent = app.feedback.conversations.lock().sweep(now);
    if app.config.hints.enabled && app.config.hints.out_of_band {
        for conversation in silent {
            if let Some(worker) = of(conversation.worker).filter(|worker| worker.hears_hints()) {
                say_ended(app, worker, &conversation);
            }
        }
    }
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

fn say_ended(app: &App, worker: &Worker, silent: &Silent) {
    let kind = Kind::Ended { keep: silent.shared };
    worker.hints.push(Arc::clone(&silent.name), kind);
    app.knowledge.update(worker.id, |residency| {
        residency.given_up(worker.id, &silent.tips, silent.shared);
    });
}

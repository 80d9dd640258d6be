//! Reports workers that have become slow, and charges queues to them.

use std::sync::Arc;

use policy::estimate::{Slow, slowed_share};
use tracing::{info, warn};

use fleet::{Slowdown, Worker};
use state::State;

pub(super) fn watch(state: &State, workers: &[Arc<Worker>]) {
    let now = state.routing.clock.now();
    let readings = state.routing.feedback.costs.lock().take_readings(now);
    let slow = |worker: &Worker| readings.get(worker.id.index()).copied().flatten();
    let speed = |worker: &Worker| slow(worker).map_or(1.0, |slow| 1.0 / slow.factor);
    let ready: Vec<f64> = workers
        .iter()
        .filter(|worker| worker.is_ready())
        .map(|worker| speed(worker))
        .collect();
    let mean_speed = ready.iter().sum::<f64>() / ready.len().max(1) as f64;
    for worker in workers {
        let own = slow(worker);
        let queue_share = match own {
            Some(_) => 1.0 - speed(worker),
            None if mean_speed < 1.0 && worker.is_ready() => {
                slowed_share(worker.with_load(|load| load.utilisation.at(now)), mean_speed)
            }
            None => 0.0,
        };
        let was_slow = worker.slowdown().own.is_some();
        worker.set_slowdown(Slowdown { own, queue_share });
        match (was_slow, own) {
            (false, Some(slow)) => became_slow(state, worker, &slow),
            (true, Some(slow)) => state.routing.metrics.worker_slow(worker.name(), slow.factor),
            (true, None) => recovered(state, worker),
            (false, None) => {}
        }
    }
}

fn became_slow(state: &State, worker: &Worker, slow: &Slow) {
    state.routing.metrics.worker_slow(worker.name(), slow.factor);
    state.operations.slow_changed(worker);
    warn!(
        worker = worker.name(),
        typical_prompt_ms = slow.typical.0,
        baseline_typical_prompt_ms = slow.baseline_typical.0,
        times = slow.factor,
        against = slow.against.as_str(),
        "worker is slow: cordon it (`tailroute ctl workers cordon`) and look at its GPU: clock, throttling, other \
         processes; if this is its normal speed, measure it with gpu-bench"
    );
}

fn recovered(state: &State, worker: &Worker) {
    state.routing.metrics.worker_slow(worker.name(), 1.0);
    state.operations.slow_changed(worker);
    let learned = state.routing.feedback.costs.lock().state(worker.id);
    info!(
        worker = worker.name(),
        alpha_ms_per_token = learned.map(|learned| learned.cost.alpha_ms_per_token),
        "worker has recovered from being slow"
    );
}

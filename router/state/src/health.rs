//! Workers' health, as probes and requests observe it.

use fleet::Worker;
use fleet::breaker::BreakerState;
use fleet::health::Probe;
use policy::evidence::WorkerEvidence;
use tracing::{info, warn};

use crate::{Routing, State};

impl State {
    /// Records a probe's result, and acts on a change of the worker's health.
    pub fn note_health(&self, worker: &Worker, probe: Probe) {
        let now = self.routing.clock.now();
        let stood = worker.condition(now).breaker;
        let was_late = worker.is_late();
        let changed = worker.observe_health(now, probe);
        note_lateness(worker, was_late);
        if changed == Some(true) && stood != BreakerState::Closed {
            self.operations.breaker_closed(worker);
        }
        if changed.is_some() {
            self.operations.worker_changed(worker);
        }
        match changed {
            Some(true) => {
                self.routing
                    .fleet
                    .begins(worker, now, self.config.routing.utilisation_window);
                info!(worker = worker.name(), "ready");
            }
            Some(false) => {
                let error = worker.failing().map(|failure| failure.error);
                warn!(
                    worker = worker.name(),
                    url = %worker.spec.url,
                    error,
                    "not ready: it fails its probes or refuses connections"
                );
                self.routing.forget_cache(worker);
            }
            None => {}
        }
    }

    /// Acts on the restart of a worker's engine that no probe has noticed: forgets its cache, and queries its facts
    /// again.
    pub fn note_restart(&self, worker: &Worker) {
        warn!(
            worker = worker.name(),
            "the engine has restarted between two probes"
        );
        self.routing.forget_cache(worker);
        worker.facts.begin(self.routing.clock.now());
    }
}

impl Routing {
    /// Forgets a worker's cache, which a restarted engine has lost.
    fn forget_cache(&self, worker: &Worker) {
        self.knowledge.forget(worker.id);
        self.knowledge.evidence(worker.id, WorkerEvidence::forget);
    }
}

fn note_lateness(worker: &Worker, was_late: bool) {
    match (was_late, worker.is_late()) {
        (false, true) => warn!(
            worker = worker.name(),
            "its probes are late while it has requests: it gets new ones only where no other worker remains"
        ),
        (true, false) if worker.is_well() => {
            info!(
                worker = worker.name(),
                "its probes are answered in time, or its requests make progress"
            );
        }
        _ => {}
    }
}

//! Workers' health, as probes and requests observe it.

use fleet::Worker;
use fleet::breaker::BreakerState;
use fleet::health::Probe;
use policy::evidence::WorkerEvidence;
use tracing::{info, warn};

use crate::State;

impl State {
    /// Records a probe's result, and acts on the change that it makes.
    pub fn note_health(&self, worker: &Worker, probe: Probe) {
        let now = self.clock.now();
        let stood = worker.condition(now).breaker;
        let changed = worker.observe_health(now, probe);
        if changed == Some(true) && stood != BreakerState::Closed {
            self.breaker_closed(worker);
        }
        if changed.is_some() {
            self.worker_changed(worker);
        }
        match changed {
            Some(true) => {
                self.fleet
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
                // The worker may come back with an empty cache.
                self.knowledge.forget(worker.id);
                self.knowledge.evidence(worker.id, WorkerEvidence::forget);
            }
            None => {}
        }
    }
}

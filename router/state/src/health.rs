//! Workers' health, as probes and requests observe it.

use fleet::Worker;
use fleet::breaker::BreakerState;
use fleet::health::Probe;
use policy::evidence::WorkerEvidence;
use tracing::{info, warn};

use crate::State;

impl State {
    /// Records a probe's result, and acts on a change of the worker's health.
    pub fn note_health(&self, worker: &Worker, probe: Probe) {
        let now = self.clock.now();
        let stood = worker.condition(now).breaker;
        let was_late = worker.is_late();
        let changed = worker.observe_health(now, probe);
        note_lateness(worker, was_late);
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
                self.forget_cache(worker);
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
        self.forget_cache(worker);
        worker.facts.begin(self.clock.now());
    }

    /// Forgets a worker's cache, which a restarted engine has lost.
    fn forget_cache(&self, worker: &Worker) {
        self.knowledge.forget(worker.id);
        self.knowledge.evidence(worker.id, WorkerEvidence::forget);
    }

    /// Returns whether a worker has made progress since it had sent `bytes_before` bytes of responses, and is not
    /// silent.
    pub fn is_answering(&self, worker: &Worker, bytes_before: u64) -> bool {
        worker.bytes_seen() != bytes_before && !self.is_silent(worker)
    }

    /// Returns whether a worker has had requests and sent nothing for `limits.idle_timeout_s`.
    pub fn is_silent(&self, worker: &Worker) -> bool {
        worker.silent_for(self.clock.now()).0 >= self.live().limits.idle_timeout.as_secs_f64() * 1e3
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

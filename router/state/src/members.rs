//! Workers that join, leave and are calibrated while the router serves. A new worker takes an empty slot, and every
//! user of slots is notified before a request can see it. A leaving one frees its slot after its last request.

use std::sync::Arc;

use policy::evidence::WorkerEvidence;
use serde_json::json;
use tracing::{info, warn};

use super::State;
use fleet::overrides::{AdminState, Measured};
use fleet::source::WorkerSource;
use fleet::{JoinError, Worker};
use operator::events::EventKind;

impl State {
    /// Adds a worker to the fleet, which is probed at once and gets turns when it is healthy. Fails if a worker of its
    /// name is in the fleet or still leaving it, or if the fleet is full.
    pub fn join(&self, spec: config::Worker) -> Result<Arc<Worker>, JoinError> {
        self.join_named(spec, WorkerSource::Operator, true)
    }

    /// Adds a worker found by this source, which also says whether the worker may get turns (`offered`). Fails if a
    /// worker of its name is in the fleet or still leaving it, or if the fleet is full.
    pub fn join_named(
        &self,
        spec: config::Worker,
        source: WorkerSource,
        offered: bool,
    ) -> Result<Arc<Worker>, JoinError> {
        let name = spec.name.clone();
        let now = self.routing.clock.now();
        let worker = self.routing.fleet.join(&name, now, |slot| {
            self.routing.knowledge.admit(slot, spec.capacity, spec.block_size);
            if !spec.capacity_is_known {
                self.routing.knowledge.learn_capacity(slot);
            }
            self.routing.feedback.admit(slot, &spec);
            Worker::new(slot, spec, &self.config, now).with_source(source, offered)
        })?;
        info!(worker = name, url = %worker.spec.url, source = source.as_str(), "worker joined the fleet");
        if self.config.endpoint_picker.is_some() && worker.endpoint.is_none() {
            warn!(
                worker = name,
                url = %worker.spec.url,
                "gateways cannot address this worker: its url is not http://IP:PORT without a path"
            );
        }
        self.operations
            .operator
            .events
            .tell(EventKind::Worker, &name, json!({ "joined": true }));
        self.claim_pending(&worker);
        Ok(worker)
    }

    /// Applies a measured cost. Learning restarts from it.
    pub fn calibrate(&self, worker: &Worker, measured: Measured) {
        self.routing
            .feedback
            .costs
            .lock()
            .calibrate(worker.id, measured.cost);
        worker.calibrated(measured);
        info!(worker = worker.name(), cost = ?measured.cost, "worker calibrated");
    }

    /// Starts a worker's removal: it finishes its requests. Returns its previous hold; `None` if it is leaving already.
    pub fn leave(&self, worker: &Worker) -> Option<AdminState> {
        let before = self.routing.fleet.leave(worker)?;
        info!(worker = worker.name(), "worker is leaving the fleet");
        self.operations.worker_changed(worker);
        Some(before)
    }

    /// Removes a leaving worker and its state once it has no requests in flight. Returns whether it is gone.
    pub fn forget_if_done(&self, worker: &Worker) -> bool {
        let done =
            worker.admin_state() == AdminState::Leaving && worker.with_load(|load| load.in_flight) == 0;
        if done {
            self.routing.knowledge.forget(worker.id);
            self.routing.knowledge.evidence_paused(worker.id);
            self.routing.knowledge.evidence(worker.id, WorkerEvidence::forget);
            self.routing.knowledge.left(worker.id);
            self.routing.feedback.remove_worker(worker.id);
            self.routing.metrics.left(worker.name());
            worker.gone(self.routing.clock.now());
            info!(worker = worker.name(), "worker left the fleet");
            self.operations
                .operator
                .events
                .tell(EventKind::Worker, worker.name(), json!({ "left": true }));
        }
        done
    }
}

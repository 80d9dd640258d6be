//! Workers that join, leave and are measured while the router serves.
//!
//! Everything that is kept by worker is kept by its slot. Who joins takes an empty one, and whatever goes by slots is told
//! before any request can see the worker. Who leaves gets nothing more and ends what it has; then all that was known under
//! its slot is forgotten, and the slot waits for its next holder.

use std::sync::Arc;

use policy::evidence::WorkerEvidence;
use serde_json::json;
use tracing::{info, warn};

use super::App;
use fleet::hold::{Hold, Measured};
use fleet::source::Source;
use fleet::{JoinError, Worker};
use operator::events::Kind;

impl App {
    /// A worker joins the fleet. It is probed from now on, and given work when it is well.
    ///
    /// # Errors
    /// If its name is taken, or the fleet is full.
    pub fn join(&self, spec: config::Worker) -> Result<Arc<Worker>, JoinError> {
        self.join_named(spec, Source::Operator, true)
    }

    /// The same, named by this source, which says whether it may be given work.
    ///
    /// # Errors
    /// If its name is taken, or the fleet is full.
    pub fn join_named(
        &self,
        spec: config::Worker,
        source: Source,
        offered: bool,
    ) -> Result<Arc<Worker>, JoinError> {
        let name = spec.name.clone();
        let now = self.clock.now();
        let worker = self.fleet.join(&name, now, |slot| {
            self.knowledge.admit(slot, spec.capacity, spec.block_size);
            if !spec.capacity_is_known {
                self.knowledge.learn_capacity(slot);
            }
            self.feedback.admit(slot, &spec);
            Worker::new(slot, spec, &self.config, now).named_by(source, offered)
        })?;
        info!(worker = name, url = %worker.spec.url, source = source.as_str(), "worker joined the fleet");
        if self.config.endpoint_picker.is_some() && worker.endpoint.is_none() {
            warn!(
                worker = name,
                url = %worker.spec.url,
                "gateways cannot address this worker: its url is not http://IP:PORT without a path"
            );
        }
        self.operator
            .events
            .tell(Kind::Worker, &name, json!({ "joined": true }));
        Ok(worker)
    }

    /// Somebody has measured what a worker costs: learning begins anew from there.
    pub fn calibrate(&self, worker: &Worker, measured: Measured) {
        self.feedback.costs.lock().calibrate(worker.id, measured.cost);
        worker.calibrated(measured);
        info!(worker = worker.name(), cost = ?measured.cost, "worker calibrated");
    }

    /// A worker is to leave the fleet: it ends what it has. Returns what was said of it before; `None` if it is leaving
    /// already.
    pub fn leave(&self, worker: &Worker) -> Option<Hold> {
        let before = self.fleet.leave(worker)?;
        info!(worker = worker.name(), "worker is leaving the fleet");
        self.worker_changed(worker);
        Some(before)
    }

    /// If a worker that is to leave has nothing left, all that is known of it is forgotten. Returns whether it is gone.
    pub fn forget_if_done(&self, worker: &Worker) -> bool {
        let done = worker.hold() == Hold::Leaving && worker.with_load(|load| load.in_flight) == 0;
        if done {
            self.knowledge.forget(worker.id);
            self.knowledge.evidence_paused(worker.id);
            self.knowledge.evidence(worker.id, WorkerEvidence::forget);
            self.knowledge.left(worker.id);
            self.feedback.vacate(worker.id);
            self.stored.left(worker.id);
            self.metrics.left(worker.name());
            self.fleet.gone(worker, self.clock.now());
            info!(worker = worker.name(), "worker left the fleet");
            self.operator
                .events
                .tell(Kind::Worker, worker.name(), json!({ "left": true }));
        }
        done
    }
}

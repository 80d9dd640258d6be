//! Events for subscribers of the admin API, and the failures that cause some of them.

use fleet::breaker::{BreakerState, Outcomes};
use fleet::{InFlight, Worker};
use operator::events::EventKind;

use crate::{Operations, State};

impl Operations {
    /// Announces that a worker's state has changed.
    pub fn worker_changed(&self, worker: &Worker) {
        let now = serde_json::json!({
            "ready": worker.is_ready(),
            "well": worker.is_well(),
            "hold": worker.admin_state(),
            "error": worker.failing().map(|failure| failure.error),
        });
        self.operator.events.tell(EventKind::Worker, worker.name(), now);
    }

    /// Announces that a worker became slow, or recovered.
    pub fn slow_changed(&self, worker: &Worker) {
        let now = match worker.slowdown().own {
            None => serde_json::json!({ "slow": false }),
            Some(slow) => serde_json::json!({
                "slow": true,
                "factor": slow.factor,
                "against": slow.against.as_str(),
                "typical_prompt_ms": slow.typical.0,
                "baseline_typical_prompt_ms": slow.baseline_typical.0,
                "alpha_ms_per_token": slow.cost.alpha_ms_per_token,
                "baseline_alpha_ms_per_token": slow.baseline.alpha_ms_per_token,
            }),
        };
        self.operator.events.tell(EventKind::Slow, worker.name(), now);
    }

    /// Announces that a worker's cache events are followed.
    pub fn evidence_live(&self, worker: &Worker) {
        let now = serde_json::json!({ "followed": true });
        self.operator.events.tell(EventKind::Evidence, worker.name(), now);
    }

    /// Announces that a worker's cache events are lost.
    pub fn evidence_lost(&self, worker: &Worker, error: &dyn std::error::Error) {
        let now = serde_json::json!({ "followed": false, "error": error.to_string() });
        self.operator.events.tell(EventKind::Evidence, worker.name(), now);
    }

    /// Announces that a worker's breaker has closed.
    pub fn breaker_closed(&self, worker: &Worker) {
        let now = serde_json::json!({ "breaker": BreakerState::Closed.as_str() });
        self.operator.events.tell(EventKind::Breaker, worker.name(), now);
    }
}

impl State {
    /// Announces that the fleet became overloaded, or that overload ended.
    pub fn overload_changed(&self) {
        let now = match self.overload() {
            None => serde_json::json!({ "overloaded": false }),
            Some(report) => serde_json::json!({
                "overloaded": true,
                "wait_ms": report.waits.wait_ms,
                "workers_over": report.waits.workers_over,
                "workers_ready": report.waits.workers_ready,
            }),
        };
        self.operations
            .operator
            .events
            .tell(EventKind::Overload, "fleet", now);
    }

    /// Records a failure of a request's worker. `source` identifies its prompt and client, if they are known.
    pub fn failed(&self, in_flight: &mut InFlight, source: Option<u64>) {
        self.routing.metrics.worker_failed(in_flight.worker().name());
        if !in_flight.failed(source) {
            return;
        }
        let (worker, now) = (in_flight.worker(), self.routing.clock.now());
        let mut others = Outcomes::default();
        for other in self
            .routing
            .fleet
            .workers()
            .iter()
            .filter(|other| other.id != worker.id)
        {
            others += other.outcomes(now);
        }
        if worker.open_unless_alike(now, others) {
            self.breaker_opened(worker);
        }
    }

    /// Counts and announces that a worker's breaker has opened.
    fn breaker_opened(&self, worker: &Worker) {
        self.routing.metrics.breaker_opened(worker.name());
        let now = serde_json::json!({ "breaker": BreakerState::Open.as_str() });
        self.operations
            .operator
            .events
            .tell(EventKind::Breaker, worker.name(), now);
    }
}

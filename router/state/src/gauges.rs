//! Values of the metrics page.

use fleet::Worker;
use learning::feedback::{ClassState, TailState};
use metrics::{AdmissionGauges, BusGauges, Gauges, WorkerGauges};
use policy::units::Millis;

use crate::{Routing, State};

impl State {
    /// Returns the gauges of the metrics page, with those of the parts that own admission and the bus.
    #[must_use]
    pub fn gauges(&self, admission: AdmissionGauges, bus: Option<BusGauges>) -> Gauges {
        let habits = {
            let conversations = self.routing.feedback.conversations.lock();
            let all = ClassState::of(None, conversations.habits.all());
            let mut classes = ClassState::keyless(&conversations.habits);
            classes.insert(0, all);
            classes
        };
        let live = self.routing.live();
        Gauges {
            workers: self
                .routing
                .fleet
                .present()
                .iter()
                .map(|worker| self.routing.worker_gauges(worker))
                .collect(),
            index: self.routing.knowledge.index_stats(),
            losses: self.routing.knowledge.losses(),
            slo_share: live.objective.share,
            objective: live.objective.ttft,
            is_overloaded: self.overload().is_some(),
            tail: TailState::of(&self.routing.feedback, live.hints.rule),
            habits,
            lessons_dropped: self.routing.feedback.dropped(),
            policy_revision: self.routing.policy.load().revision,
            audit_failures: self.operations.operator.audit.failures(),
            admission,
            discovery: self.operations.discovery.states(),
            bus,
            log_dropped: telemetry::logs::writer::dropped(),
            tasks: tokio::runtime::Handle::try_current()
                .map_or(0, |runtime| runtime.metrics().num_alive_tasks() as u64),
        }
    }
}

impl Routing {
    #[must_use]
    pub fn worker_gauges(&self, worker: &Worker) -> WorkerGauges {
        let now = self.clock.now();
        let silent = self.feedback.tail.lock().silent_on(worker.id);
        let costs = self.feedback.costs.lock().state(worker.id);
        let resident = self.knowledge.held(worker.id);
        let kv_live = self.knowledge.stored(worker.id).is_some();
        let told = self
            .knowledge
            .evidence(worker.id, |evidence| (evidence.blocks(), evidence.bindings()));
        let (blocks, kv_bindings) = told.unwrap_or_default();
        let breaker = worker.condition(now).breaker;
        let ttft_errors = worker.errors.lock().percentiles();
        let xi_tokens = self.objective_for(worker).objective.xi_tokens;
        worker.with_load(|load| {
            let utilisation = load.utilisation.at(now);
            WorkerGauges {
                name: worker.name().to_owned(),
                ready: worker.is_ready(),
                breaker,
                ttft_errors,
                in_flight: load.in_flight,
                wait: load.pending.wait(now),
                utilisation,
                resident,
                kv_live,
                kv_blocks: blocks as u64,
                kv_bindings,
                cost: load.cost,
                overhead: load.overhead,
                cost_error: Millis(costs.map_or(0.0, |costs| costs.error_ms)),
                xi_tokens,
                silent: silent as u64,
                queue: load.figure,
            }
        })
    }
}

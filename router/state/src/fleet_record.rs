//! The fleet as captures record it and previews simulate it.

use fleet::Worker;
use fleet::dialect::trims;
use fleet::overrides::AdminState;
use policy::fleet_record::{CapacitySource, CostSource, FleetRecord, WorkerRecord};
use policy::hint_rule::HintRule;
use policy::units::{Millis, Tokens};

use crate::Routing;

impl Routing {
    /// Returns the fleet that serves turns, including workers whose probes fail; `None` if there is none.
    #[must_use]
    pub fn fleet_in_use(&self) -> Option<FleetRecord> {
        self.fleet_record(|worker| worker.is_offered() && worker.admin_state() == AdminState::None)
    }

    /// Returns the workers that are ready; `None` if there is none.
    #[must_use]
    pub fn ready_fleet(&self) -> Option<FleetRecord> {
        self.fleet_record(Worker::is_ready)
    }

    fn fleet_record(&self, counts: impl Fn(&Worker) -> bool) -> Option<FleetRecord> {
        let mut workers = self.fleet.present();
        workers.retain(|worker| counts(worker));
        if workers.is_empty() {
            return None;
        }
        let live = self.live();
        let follow = workers
            .iter()
            .filter(|worker| trims(&*worker.dialect(), HintRule::default(), &live.hints))
            .count();
        let (revision, _) = self.policy.now();
        let since_ms = revision.since_unix_ms as f64 - self.clock.unix_ms(Millis::ZERO);
        Some(FleetRecord {
            at_s: (self.clock.now().0 / 1e3 * 1e6).round() / 1e6,
            settings_since_s: since_ms.max(0.0).round() / 1e3,
            settings: revision.settings.clone(),
            utilisation_window_ms: self.config.routing.utilisation_window,
            objective_ms: live.objective.ttft,
            objective_share: live.objective.share,
            next_prompt_tokens: self.next_prompt(),
            // The simulated workers all behave alike in this.
            follows_hints: 2 * follow > workers.len(),
            hint_rule: live.hints.rule,
            workers: workers.iter().map(|worker| self.worker_record(worker)).collect(),
        })
    }

    fn worker_record(&self, worker: &Worker) -> WorkerRecord {
        let (cost, overhead_ms) = worker.with_load(|load| (load.cost, load.overhead));
        WorkerRecord {
            name: worker.name().to_owned(),
            cost,
            overhead_ms,
            cost_source: self.cost_source(worker),
            capacity_tokens: self.capacity_of(worker),
            capacity_source: self.capacity_source(worker),
        }
    }

    /// Returns the tokens that fit into a worker's cache: configured, reported, learned or assumed.
    #[must_use]
    pub fn capacity_of(&self, worker: &Worker) -> Tokens {
        self.knowledge.capacity(worker.id) + Tokens(worker.spec.block_size.into())
    }

    #[must_use]
    pub fn capacity_source(&self, worker: &Worker) -> CapacitySource {
        if worker.spec.capacity_is_known {
            return CapacitySource::Configured;
        }
        if !self.knowledge.learns_capacity(worker.id) {
            return CapacitySource::Reported;
        }
        let (initial, block) = (worker.spec.capacity, Tokens(worker.spec.block_size.into()));
        match self.knowledge.capacity(worker.id).0.abs_diff(initial.0) > block.0 {
            true => CapacitySource::Learned,
            false => CapacitySource::Assumed,
        }
    }

    #[must_use]
    pub fn cost_source(&self, worker: &Worker) -> CostSource {
        let answers = self
            .feedback
            .costs
            .lock()
            .state(worker.id)
            .map_or(0, |costs| costs.answers);
        if worker.calibration().is_some() {
            CostSource::Calibrated
        } else if worker.spec.cost_is_known {
            CostSource::Configured
        } else if answers > 0 {
            CostSource::Learned
        } else if worker.with_load(|load| load.learned) != worker.spec.cost {
            CostSource::Fleet
        } else {
            CostSource::Default
        }
    }
}

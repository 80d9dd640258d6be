//! The state that the choice of a worker reads and writes.

use std::fmt::Display;
use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use config::{Config, HintRule};
use fleet::clock::Clock;
use fleet::hints::SentObjective;
use fleet::overrides::AdminState;
use fleet::retry_budget::RetryBudget;
use fleet::{Fleet, Worker};
use learning::feedback::Feedback;
use learning::knowledge::Knowledge;
use metrics::Metrics;
use operator::revisions::Revisions;
use operator::shadow::Shadow;
use parking_lot::Mutex;
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use protocol::error::ApiError;
use tokio::sync::Notify;
use tracing::{debug, warn};

use crate::Live;

/// Policy, fleet, and what was learned of prompts, workers and conversations.
#[derive(Debug)]
pub struct Routing {
    /// Configuration at the start.
    pub config: Arc<Config>,
    live: ArcSwap<Live>,
    live_changed: Notify,
    /// Policy in force, and its history.
    pub policy: Revisions,
    /// A policy evaluated on live traffic.
    pub shadow: ArcSwapOption<Shadow>,
    pub fleet: Fleet,
    /// Prefixes cached by each worker, and token counts of prompts.
    pub knowledge: Knowledge,
    /// Costs, conversations and the value of their ends.
    pub feedback: Feedback,
    pub retries: Mutex<RetryBudget>,
    pub metrics: Metrics,
    pub clock: Clock,
    sequence: AtomicU64,
}

impl Routing {
    /// Creates the state of a router that has served nothing yet.
    #[must_use]
    pub fn new(config: Arc<Config>, metrics: Metrics) -> Self {
        metrics.name_workers(config.workers.iter().map(|worker| &*worker.name));
        let worker = |(slot, spec): (u32, &config::Worker)| {
            Arc::new(Worker::new(WorkerId(slot), spec.clone(), &config, Millis::ZERO))
        };
        let fleet = Fleet::new((0..).zip(&config.workers).map(worker).collect());
        let failure = &config.failure;
        Self {
            live: ArcSwap::from_pointee(Live::of(&config)),
            live_changed: Notify::new(),
            policy: Revisions::new(config.routing.settings()),
            shadow: ArcSwapOption::empty(),
            fleet,
            knowledge: knowledge(&config),
            feedback: Feedback::new(&config),
            retries: Mutex::new(RetryBudget::new(failure.retry_share, failure.retry_floor_per_s)),
            metrics,
            clock: Clock::start(),
            sequence: AtomicU64::new(0),
            config,
        }
    }

    /// Returns the settings that can change while the router serves. Not to be held across an await: a guard occupies
    /// one of few places of its thread.
    #[must_use]
    pub fn live(&self) -> Guard<Arc<Live>> {
        self.live.load()
    }

    /// Applies the settings of another configuration.
    pub fn set_live(&self, config: &Config) {
        self.live.store(Arc::new(Live::of(config)));
        self.live_changed.notify_one();
    }

    /// Waits until settings were applied since the last call. Only one task may wait.
    pub async fn live_changed(&self) {
        self.live_changed.notified().await;
    }

    /// Returns the number of the next decision.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the error for a request that finds no ready worker.
    #[must_use]
    pub fn no_worker_ready(&self) -> ApiError {
        let workers = self.fleet.workers();
        let held = |worker: &Arc<Worker>| {
            matches!(worker.admin_state(), AdminState::Cordoned | AdminState::Draining)
        };
        if !workers.is_empty() && workers.iter().all(held) {
            ApiError::AllWorkersHeld
        } else {
            ApiError::NoWorkerReady
        }
    }

    /// Returns whether a worker is sent hints between requests, so that ends of conversations are evicted when it needs
    /// room.
    #[must_use]
    pub fn makes_room_on(&self, worker: &Worker) -> bool {
        let live = self.live();
        live.hints.rule_of(worker.name()).names_ends() && live.hints.out_of_band && worker.hears_hints()
    }

    /// Returns whether a worker is to evict by ξ: by the rule in force, or because it takes no hint that names an end. The
    /// guard can pause that.
    #[must_use]
    pub fn evicts_by_xi(&self, worker: &Worker) -> bool {
        let rule = self.live().hints.rule_of(worker.name());
        worker.takes_objective() && (rule.is_t_lru() || (rule != HintRule::Off && !worker.hears_hints()))
    }

    /// Returns the objective of a worker as of now.
    #[must_use]
    pub fn objective_for(&self, worker: &Worker) -> SentObjective {
        let cost = worker.with_load(|load| load.cost);
        let (share, configured) = self.configured_objectives();
        let objective = self
            .feedback
            .objectives
            .tell(worker.id, self.clock.now(), &cost, share, &configured);
        SentObjective {
            objective,
            next_prompt_tokens: self.next_prompt().0,
            t_lru: self.evicts_by_xi(worker) && self.feedback.tail.lock().guard().allows(),
        }
    }

    /// Returns the share of turns that has to meet its objective, and the configured objectives, that of turns without
    /// a class first.
    #[must_use]
    pub fn configured_objectives(&self) -> (f64, Vec<Millis>) {
        let live = self.live();
        let objective = &live.objective;
        let classes = objective.classes.iter().map(|class| class.ttft);
        (objective.share, once(objective.ttft).chain(classes).collect())
    }

    /// Returns Q̂ of all traffic: as learned, or as configured if habits are not learned.
    #[must_use]
    pub fn next_prompt(&self) -> Tokens {
        if self.config.learning.habits {
            self.feedback.conversations.lock().habits.all().next_prompt().0
        } else {
            self.live().objective.next_prompt
        }
    }

    /// Puts the learned costs and overheads in force, if costs are learned.
    pub fn publish_costs(&self) {
        if self.config.learning.costs {
            let mut costs = self.feedback.costs.lock();
            costs.elapse(self.clock.now());
            let (published, overheads) = (costs.published(), costs.overheads());
            drop(costs);
            for ((worker, cost), overhead) in self.fleet.workers().iter().zip(published).zip(overheads) {
                worker.set_cost(cost);
                worker.set_overhead(overhead);
            }
        }
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

    /// Logs a failed request: the first of a worker in a minute as a warning, with the number of failures held back
    /// since the last one; the others at `debug`.
    pub fn log_failure(&self, worker: &Worker, error: &dyn Display, what: &'static str) {
        let name = worker.name();
        match worker.failures.count(self.clock.now()) {
            Some(0) => warn!(worker = name, %error, "{what}"),
            Some(held_back) => warn!(worker = name, %error, held_back, "{what}"),
            None => debug!(worker = name, %error, "{what}"),
        }
    }

    /// Logs the number of each worker's failed requests that were held back, at most once a minute.
    pub fn flush_failures(&self) {
        let now = self.clock.now();
        for worker in self.fleet.workers().iter() {
            if let Some(failed) = worker.failures.flush(now) {
                warn!(
                    worker = worker.name(),
                    failed, "more requests failed on the worker in the last minute"
                );
            }
        }
    }
}

fn knowledge(config: &Config) -> Knowledge {
    let capacities: Vec<_> = config
        .workers
        .iter()
        .map(|worker| (worker.capacity, worker.block_size))
        .collect();
    let index_bytes = config.index.max_bytes.get() as u64;
    let routing = &config.routing;
    let window = routing.utilisation_window;
    let knowledge = Knowledge::new(index_bytes, &capacities, routing.tokens_per_byte, window);
    for (slot, spec) in (0..).zip(&config.workers) {
        if !spec.capacity_is_known {
            knowledge.learn_capacity(WorkerId(slot));
        }
    }
    knowledge
}

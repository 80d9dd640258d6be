//! The workers: what is known of each. The tasks that keep it known are in `upkeep`.
//!
//! `worker` holds one worker's state, `in_flight` is a request on it; `health` judges from probes whether it is there,
//! `breaker` from its requests whether it does what it is for, and `rotation` who of those that are well is given work;
//! `retry_budget` bounds what is tried again; `errors` holds how far off its predicted times were, `hints` queues what a worker should be told, `dialect` is how it is said, and `cache_policy` what it drops when it is told nothing.

pub mod breaker;
pub mod cache_policy;
pub mod dialect;
pub mod errors;
pub mod health;
pub mod hints;
pub mod hold;
mod in_flight;
pub mod retry_budget;
pub mod rotation;
mod worker;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub use in_flight::InFlight;
pub use worker::{Load, Worker};

/// All workers, as one list that is swapped whole. A worker's slot is its position.
#[derive(Debug)]
pub struct Fleet {
    workers: ArcSwap<Vec<Arc<Worker>>>,
}

impl Fleet {
    /// A fleet of these workers.
    #[must_use]
    pub fn new(workers: Vec<Arc<Worker>>) -> Self {
        Self {
            workers: ArcSwap::from_pointee(workers),
        }
    }

    /// The workers now.
    #[must_use]
    pub fn workers(&self) -> Arc<Vec<Arc<Worker>>> {
        self.workers.load_full()
    }

    /// The worker of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Worker>> {
        let workers = self.workers.load();
        workers
            .iter()
            .find(|worker| worker.name() == name)
            .map(Arc::clone)
    }

    /// Whether any worker may be given work.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        self.workers.load().iter().any(|worker| worker.is_ready())
    }

    /// Whether some worker is well, every such worker's models are known, and none of any worker's is this one: a model
    /// whose workers are all down is not unknown.
    #[must_use]
    pub fn surely_lacks(&self, model: &str) -> bool {
        let workers = self.workers.load();
        let lacks = |worker: &Arc<Worker>| match worker.serves(model) {
            Some(serves) => !serves,
            None => !worker.is_well(),
        };
        workers.iter().any(|worker| worker.is_well()) && workers.iter().all(lacks)
    }
}

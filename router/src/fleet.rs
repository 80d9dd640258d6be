//! The workers: what is known of each. The tasks that keep it known are in `upkeep`.
//!
//! `worker` holds one worker's state; `health` judges from probes whether it may be given work; `hints` queues what it
//! should be told, `dialect` is how it is said, and `cache_policy` what it drops when it is told nothing.

pub mod cache_policy;
pub mod dialect;
pub mod health;
pub mod hints;
mod worker;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub use worker::{InFlight, Load, Worker};

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

    /// Whether any worker may be given work.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        self.workers.load().iter().any(|worker| worker.is_ready())
    }

    /// Whether some worker is ready, every ready worker's models are known, and none of them is this one.
    #[must_use]
    pub fn surely_lacks(&self, model: &str) -> bool {
        let workers = self.workers.load();
        let mut ready = workers.iter().filter(|worker| worker.is_ready()).peekable();
        ready.peek().is_some() && ready.all(|worker| worker.serves(model) == Some(false))
    }
}

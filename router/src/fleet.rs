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
use parking_lot::Mutex;
use policy::ids::WorkerId;
use policy::units::Millis;
use tokio::sync::watch;

use hold::Hold;
pub use in_flight::InFlight;
pub use worker::{Load, Worker};

/// Most slots: per-worker memory and labels stay bounded whatever discovery or an operator does.
const MAX_SLOTS: usize = 10_000;
/// A slot stays empty for so long before it has another holder: what its last one taught last is still being learned.
const EMPTY_FOR: Millis = Millis(10_000.0);

/// All workers, as one list that is swapped whole. A worker's slot is its position; one that has left stays in the list,
/// out of use, until its slot is needed.
#[derive(Debug)]
pub struct Fleet {
    workers: ArcSwap<Vec<Arc<Worker>>>,
    /// Held while the list changes.
    changing: Mutex<()>,
    /// Told when somebody joins or is to leave.
    changed: watch::Sender<()>,
}

/// Why a worker cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Another one is called that.
    #[error("a worker of this name is in the fleet already")]
    NameTaken,
    /// No slot is empty.
    #[error("the fleet has {MAX_SLOTS} workers, or so many have left within seconds: no slot is empty")]
    Full,
}

impl Fleet {
    /// A fleet of these workers.
    #[must_use]
    pub fn new(workers: Vec<Arc<Worker>>) -> Self {
        Self {
            workers: ArcSwap::from_pointee(workers),
            changing: Mutex::new(()),
            changed: watch::Sender::new(()),
        }
    }

    /// A worker joins: `make` is told its slot, and prepares whatever goes by slots before anybody sees the worker.
    ///
    /// # Errors
    /// If its name is taken, or the fleet is full.
    pub fn join(
        &self,
        name: &str,
        now: Millis,
        make: impl FnOnce(WorkerId) -> Worker,
    ) -> Result<Arc<Worker>, JoinError> {
        let _alone = self.changing.lock();
        if self.find(name).is_some() {
            return Err(JoinError::NameTaken);
        }
        let mut workers = Vec::clone(&self.workers.load());
        let empty = |worker: &Arc<Worker>| worker.gone_since().is_some_and(|since| now >= since + EMPTY_FOR);
        let slot = workers.iter().position(empty).unwrap_or(workers.len());
        if slot >= MAX_SLOTS {
            return Err(JoinError::Full);
        }
        let worker = Arc::new(make(WorkerId(slot as u32)));
        if slot == workers.len() {
            workers.push(Arc::clone(&worker));
        } else {
            workers[slot] = Arc::clone(&worker);
        }
        self.workers.store(Arc::new(workers));
        self.changed.send_replace(());
        Ok(worker)
    }

    /// A worker is to leave: it gets nothing more, and is [`Self::gone`] when it has ended what it has. Returns what was
    /// said of it before; `None` if it is leaving already.
    pub fn leave(&self, worker: &Worker) -> Option<Hold> {
        let before = worker.set_hold(Hold::Leaving);
        self.changed.send_replace(());
        before
    }

    /// A worker has left, and nothing of it is known any more: its slot is empty.
    pub fn gone(&self, worker: &Worker, now: Millis) {
        worker.gone(now);
    }

    /// Told when somebody joins or is to leave.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The workers that have not left.
    #[must_use]
    pub fn present(&self) -> Vec<Arc<Worker>> {
        let workers = self.workers.load();
        let present = workers.iter().filter(|worker| worker.hold() != Hold::Gone);
        present.map(Arc::clone).collect()
    }

    /// The workers now, by slot: those that have left, too.
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
            .find(|worker| worker.name() == name && worker.hold() != Hold::Gone)
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
        let mut present = workers.iter().filter(|worker| worker.hold() != Hold::Gone);
        workers.iter().any(|worker| worker.is_well()) && present.all(lacks)
    }
}

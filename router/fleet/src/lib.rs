//! The workers: what is known of each. The tasks that keep it known are in `upkeep`.
//!
//! `worker` holds one worker's state, `in_flight` is a request on it; `health` judges from probes whether it is there,
//! `breaker` from its requests whether it does what it is for, and `rotation` who of those that are well is given work;
//! `retry_budget` bounds what is tried again; `errors` holds how far off its predicted times were, `hints` queues what a worker should be told, `dialect` is how it is said, and `cache_policy` what it drops when it is told nothing.

pub mod breaker;
pub mod cache_policy;
pub mod clock;
pub mod dialect;
pub mod errors;
pub mod health;
pub mod hints;
pub mod hold;
mod in_flight;
pub mod retry_budget;
pub mod rotation;
pub mod seldom;
pub mod source;
mod worker;

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use policy::estimate::Utilisation;
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
    /// The one that is called that has not ended yet what it had.
    #[error("a worker of this name is leaving the fleet: it ends what it has, then the name is free")]
    Leaving,
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
        match self.find(name) {
            Some(known) if known.hold() == Hold::Leaving => return Err(JoinError::Leaving),
            Some(_) => return Err(JoinError::NameTaken),
            None => {}
        }
        let mut workers = Vec::clone(&self.workers.load());
        let slot = empty_slot(&workers, now).unwrap_or(workers.len());
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

    /// Whether one more worker can join without there being more slots than `most`.
    pub fn has_slot(&self, now: Millis, most: usize) -> bool {
        let workers = self.workers.load();
        workers.len() < most || empty_slot(&workers, now).is_some()
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

    /// A worker has become ready: it counts as busy as the others that are, until its own work shows.
    pub fn begins(&self, worker: &Worker, now: Millis, window: Millis) {
        let workers = self.workers.load();
        let others = workers
            .iter()
            .filter(|other| other.id != worker.id && other.is_ready());
        let others = others.map(|other| other.with_load(|load| load.utilisation));
        worker.begins_as(Utilisation::beside(window, now, others));
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

/// A slot that may have another holder.
fn empty_slot(workers: &[Arc<Worker>], now: Millis) -> Option<usize> {
    workers.iter().position(|worker| {
        // A request that had chosen it when it went may be on it yet.
        worker.gone_since().is_some_and(|since| now >= since + EMPTY_FOR)
            && worker.with_load(|load| load.in_flight) == 0
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use config::{Config, Overrides};

    use super::*;

    fn config() -> Config {
        let overrides = Overrides {
            workers: vec!["http://w:1".to_owned()],
            ..Overrides::default()
        };
        config::load_file(None, BTreeMap::new(), overrides).unwrap()
    }

    fn join(fleet: &Fleet, config: &Config, name: &str, now: f64) -> Result<u32, JoinError> {
        let spec = config::Worker {
            name: name.to_owned(),
            ..config.workers[0].clone()
        };
        let joined = fleet.join(name, Millis(now), |slot| {
            Worker::new(slot, spec, config, Millis(now))
        });
        joined.map(|worker| worker.id.0)
    }

    #[test]
    fn a_slot_is_used_again_when_its_holder_has_been_gone_for_a_while() {
        let (config, fleet) = (config(), Fleet::new(Vec::new()));
        assert_eq!(join(&fleet, &config, "a", 0.0), Ok(0));
        assert_eq!(join(&fleet, &config, "a", 0.0), Err(JoinError::NameTaken));
        assert_eq!(join(&fleet, &config, "b", 0.0), Ok(1));
        let a = fleet.find("a").unwrap();
        assert_eq!((fleet.leave(&a), fleet.leave(&a)), (Some(Hold::None), None));
        assert_eq!(
            join(&fleet, &config, "a", 0.0),
            Err(JoinError::Leaving),
            "it is there yet"
        );
        fleet.gone(&a, Millis(5_000.0));
        assert!(fleet.find("a").is_none() && fleet.present().len() == 1);
        assert_eq!(join(&fleet, &config, "a", 14_999.0), Ok(2));
        assert_eq!(join(&fleet, &config, "c", 15_000.0), Ok(0));
        assert_eq!(
            fleet
                .workers()
                .iter()
                .map(|worker| worker.name())
                .collect::<Vec<_>>(),
            ["c", "b", "a"]
        );
    }

    #[test]
    fn a_fleet_has_so_many_slots_and_no_more() {
        let (config, fleet) = (config(), Fleet::new(Vec::new()));
        let worker = Arc::new(Worker::new(
            WorkerId(0),
            config.workers[0].clone(),
            &config,
            Millis::ZERO,
        ));
        fleet.workers.store(Arc::new(vec![worker; MAX_SLOTS]));
        assert_eq!(join(&fleet, &config, "one more", 0.0), Err(JoinError::Full));
        fleet.gone(&fleet.workers()[7], Millis(0.0));
        assert_eq!(
            join(&fleet, &config, "one more", 20_000.0),
            Ok(0),
            "all of them are one here"
        );
    }
}

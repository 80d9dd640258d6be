//! State of the workers. The tasks that maintain it are in the router's `upkeep`.

pub mod breaker;
pub mod cache_policy;
pub mod clock;
pub mod dialect;
pub mod eligibility;
pub mod errors;
pub mod facts;
pub mod health;
pub mod hints;
mod in_flight;
pub mod log_rate_limit;
pub mod overrides;
pub mod pause;
pub mod retry_budget;
pub mod rotation;
pub mod source;
mod worker;

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use policy::estimate::Utilisation;
use policy::ids::WorkerId;
use policy::units::Millis;
use tokio::sync::watch;

pub use in_flight::InFlight;
use overrides::AdminState;
use protocol::references::Addresses;
pub use worker::{Slowdown, Worker, WorkerLoad};

/// Largest number of slots, which bounds per-worker memory and labels whatever discovery or an operator adds.
const MAX_SLOTS: usize = 10_000;
/// Time before the slot of a removed worker is reused: its last turns are still being learned from.
const EMPTY_FOR: Millis = Millis(10_000.0);

/// All workers by slot, as one list that is replaced as a whole. A removed worker stays until its slot is reused.
#[derive(Debug)]
pub struct Fleet {
    workers: ArcSwap<Vec<Arc<Worker>>>,
    /// Locked while the list changes.
    changing: Mutex<()>,
    /// Notification that a worker joins or is to leave.
    changed: watch::Sender<()>,
}

/// The reason why a worker cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Another worker has this name.
    #[error("a worker of this name is already in the fleet")]
    NameTaken,
    /// The previous worker of this name still has requests in flight.
    #[error(
        "a worker of this name is leaving the fleet; its name becomes available once its requests have ended"
    )]
    Leaving,
    /// No slot is free.
    #[error("the fleet has {MAX_SLOTS} workers, or so many have left within seconds: no slot is free")]
    Full,
}

impl Fleet {
    #[must_use]
    pub fn new(workers: Vec<Arc<Worker>>) -> Self {
        Self {
            workers: ArcSwap::from_pointee(workers),
            changing: Mutex::new(()),
            changed: watch::Sender::new(()),
        }
    }

    /// Adds a worker. `make` gets its slot and prepares per-slot state before the worker becomes visible. Fails if the
    /// name is taken, or no slot is free.
    pub fn join(
        &self,
        name: &str,
        now: Millis,
        make: impl FnOnce(WorkerId) -> Worker,
    ) -> Result<Arc<Worker>, JoinError> {
        let _alone = self.changing.lock();
        match self.find(name) {
            Some(known) if known.admin_state() == AdminState::Leaving => return Err(JoinError::Leaving),
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

    /// Returns whether a worker can join without exceeding `most` slots.
    pub fn has_slot(&self, now: Millis, most: usize) -> bool {
        let workers = self.workers.load();
        workers.len() < most || empty_slot(&workers, now).is_some()
    }

    /// Marks a worker as leaving: it gets no new turns, and is [`Worker::gone`] once its requests have ended. Returns
    /// its previous state; `None` if it is already leaving.
    pub fn leave(&self, worker: &Worker) -> Option<AdminState> {
        let before = worker.set_admin_state(AdminState::Leaving);
        self.changed.send_replace(());
        before
    }

    /// Returns a receiver of notifications that a worker joins or is to leave.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the workers that were not removed.
    #[must_use]
    pub fn present(&self) -> Vec<Arc<Worker>> {
        let workers = self.workers.load();
        let present = workers
            .iter()
            .filter(|worker| worker.admin_state() != AdminState::Gone);
        present.map(Arc::clone).collect()
    }

    /// Sets a newly ready worker's utilisation to the mean of the other ready ones, until it has served turns.
    pub fn begins(&self, worker: &Worker, now: Millis, window: Millis) {
        let workers = self.workers.load();
        let others = workers
            .iter()
            .filter(|other| other.id != worker.id && other.is_ready());
        let others = others.map(|other| other.with_load(|load| load.utilisation));
        worker.begins_as(Utilisation::beside(window, now, others));
    }

    /// Returns all workers by slot, including removed ones. Not to be held across an await.
    #[must_use]
    pub fn workers(&self) -> Guard<Arc<Vec<Arc<Worker>>>> {
        self.workers.load()
    }

    /// Returns whether every worker is ready, including removed ones.
    #[must_use]
    pub fn are_all_ready(&self) -> bool {
        self.workers().iter().all(|worker| worker.is_ready())
    }

    /// Returns the worker of this name, unless removed.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Worker>> {
        let workers = self.workers.load();
        workers
            .iter()
            .find(|worker| worker.name() == name && worker.admin_state() != AdminState::Gone)
            .map(Arc::clone)
    }

    /// Returns whether any worker may get turns.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        self.workers.load().iter().any(|worker| worker.is_ready())
    }

    /// Returns whether workers serve different models, so that the model of a request decides which workers may get it.
    /// A worker whose models are unknown may differ from one whose models are known. Workers that are down count, since
    /// no other worker may have their models.
    #[must_use]
    pub fn models_differ(&self) -> bool {
        let workers = self.workers.load();
        let mut present = workers
            .iter()
            .filter(|worker| worker.admin_state() != AdminState::Gone);
        let Some(first) = present.next() else {
            return false;
        };
        let names = first.facts.model_names();
        present.any(|worker| worker.facts.model_names() != names)
    }
}

impl Addresses for Fleet {
    fn is_worker(&self, host: &str, port: Option<u16>) -> bool {
        self.workers
            .load()
            .iter()
            .any(|worker| worker.has_address(host, port))
    }

    fn is_host(&self, host: &str) -> bool {
        self.workers.load().iter().any(|worker| worker.has_host(host))
    }
}

fn empty_slot(workers: &[Arc<Worker>], now: Millis) -> Option<usize> {
    workers.iter().position(|worker| {
        // A request that selected the worker just before its removal may still be on it.
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
        assert_eq!((fleet.leave(&a), fleet.leave(&a)), (Some(AdminState::None), None));
        assert_eq!(
            join(&fleet, &config, "a", 0.0),
            Err(JoinError::Leaving),
            "it is there yet"
        );
        a.gone(Millis(5_000.0));
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
    fn a_worker_is_silent_since_its_last_response_bytes_while_it_has_requests() {
        let (config, fleet) = (config(), Fleet::new(Vec::new()));
        join(&fleet, &config, "a", 0.0).unwrap();
        let worker = fleet.find("a").unwrap();
        assert_eq!(
            worker.silent_for(Millis(9_000.0)),
            Millis::ZERO,
            "it has no request"
        );
        worker.sent(Millis(9_500.0), None);
        assert_eq!(worker.silent_for(Millis(12_000.0)), Millis(3_000.0));
        worker.count_bytes(1);
        assert_eq!(worker.silent_for(Millis(13_000.0)), Millis::ZERO);
        assert_eq!(worker.silent_for(Millis(20_000.0)), Millis(7_000.0));
        worker.ended(Millis(20_000.0), None);
        assert_eq!(worker.silent_for(Millis(21_000.0)), Millis::ZERO);
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
        fleet.workers()[7].gone(Millis(0.0));
        assert_eq!(
            join(&fleet, &config, "one more", 20_000.0),
            Ok(0),
            "all of them are one here"
        );
    }

    /// Returns a fleet of workers with these addresses and models. An empty list of models stands for unknown ones.
    fn fleet(workers: &[(&str, &[&str])]) -> Fleet {
        let config = config();
        let worker = |(slot, (url, models)): (usize, &(&str, &[&str]))| {
            let spec = config::Worker {
                url: url.parse().unwrap(),
                models: models.iter().map(|name| (*name).to_owned()).collect(),
                ..config.workers[0].clone()
            };
            Arc::new(Worker::new(WorkerId(slot as u32), spec, &config, Millis::ZERO))
        };
        Fleet::new(workers.iter().enumerate().map(worker).collect())
    }

    #[test]
    fn models_differ_unless_all_workers_are_known_to_serve_the_same() {
        let differ = |lists: &[&[&str]]| {
            let workers: Vec<_> = lists.iter().map(|models| ("http://w:1", *models)).collect();
            fleet(&workers).models_differ()
        };
        let none: &[&str] = &[];
        let same: [&[&[&str]]; 5] = [
            &[],
            &[&["a"]],
            &[none],
            &[&["a", "b"], &["b", "a"]],
            &[none, none],
        ];
        for same in same {
            assert!(!differ(same), "{same:?}");
        }
        let different: [&[&[&str]]; 4] = [
            &[&["a"], &["b"]],
            &[&["a"], &["a", "b"]],
            &[&["a"], none],
            &[none, none, &["a"]],
        ];
        for different in different {
            assert!(differ(different), "{different:?}");
        }
        let fleet = fleet(&[("http://w:1", &["a"]), ("http://w:2", &["b"])]);
        fleet.workers()[1].gone(Millis(0.0));
        assert!(!fleet.models_differ(), "a removed worker does not count");
    }

    #[test]
    fn a_workers_address_is_recognised_however_it_is_written() {
        let fleet = fleet(&[
            ("http://Vllm-0.svc:8000", &[]),
            ("https://[fd00::1]", &[]),
            ("http://10.0.0.1", &[]),
        ]);
        for (host, port, is_worker) in [
            ("vllm-0.SVC", Some(8000), true),
            ("vllm-0.svc", Some(8001), false),
            ("fd00::1", Some(443), true),
            ("fd00::1", None, true),
            ("fd00::1", Some(80), false),
            ("10.0.0.1", Some(80), true),
            ("10.0.0.2", Some(80), false),
            ("localhost", Some(8000), true),
            ("127.0.0.1", Some(8000), true),
            ("localhost", Some(3000), false),
            ("0.0.0.0", Some(9999), true),
            ("", Some(8000), false),
        ] {
            assert_eq!(fleet.is_worker(host, port), is_worker, "{host} {port:?}");
        }
        assert!(fleet.is_host("VLLM-0.svc") && fleet.is_host("fd00::1") && !fleet.is_host("localhost"));
    }
}

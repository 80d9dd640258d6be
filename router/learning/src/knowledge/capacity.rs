//! Capacities of workers' caches. `upkeep/capacity.rs` queries them.

use policy::ids::WorkerId;
use policy::units::Tokens;

use super::{Knowledge, usable};

impl Knowledge {
    /// Starts learning a worker's capacity from its responses.
    pub fn learn_capacity(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.learn_capacity(worker));
    }

    /// Sets the capacity that a worker reported. Returns whether it differs from the one in force.
    pub fn set_reported_capacity(&self, worker: WorkerId, capacity: Tokens, block_size: u32) -> bool {
        let usable = usable(capacity, block_size);
        self.update(worker, |residency| {
            let is_new = residency.learns_capacity(worker) || residency.capacity_of(worker) != usable;
            residency.set_reported_capacity(worker, usable);
            is_new
        })
    }

    /// Sets the capacity that an earlier process learned, unless a capacity is known from elsewhere. Returns whether it
    /// was set.
    pub fn restore_capacity(&self, worker: WorkerId, learned: Tokens) -> bool {
        self.update(worker, |residency| residency.restore_capacity(worker, learned))
    }

    /// Returns whether responses correct the capacity, because neither the worker nor the configuration states it.
    pub fn learns_capacity(&self, worker: WorkerId) -> bool {
        self.residency.lock().learns_capacity(worker)
    }

    /// Returns a worker's capacity: configured, reported or learned.
    pub fn capacity(&self, worker: WorkerId) -> Tokens {
        self.residency.lock().capacity_of(worker)
    }
}

//! Capacities of workers' caches. `upkeep/capacity.rs` asks for them.

use policy::ids::WorkerId;
use policy::units::Tokens;

use super::{Knowledge, usable};

impl Knowledge {
    /// Learns a worker's capacity from its answers.
    pub fn learn_capacity(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.learn_capacity(worker));
    }

    /// A worker stated its capacity. Returns whether it differs from the one in force.
    pub fn capacity_told(&self, worker: WorkerId, capacity: Tokens, block_size: u32) -> bool {
        let usable = usable(capacity, block_size);
        self.update(worker, |residency| {
            let is_new = residency.learns_capacity(worker) || residency.capacity_of(worker) != usable;
            residency.capacity_told(worker, usable);
            is_new
        })
    }

    /// A worker's capacity: configured, told or learned.
    #[must_use]
    pub fn capacity(&self, worker: WorkerId) -> Tokens {
        self.residency.lock().capacity_of(worker)
    }
}

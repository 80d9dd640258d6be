//! How much workers' caches hold: see `upkeep/capacity.rs`.

use policy::ids::WorkerId;
use policy::units::Tokens;

use super::{Knowledge, usable};

impl Knowledge {
    /// Nobody has said what a worker's capacity is: its answers show it.
    pub fn learn_capacity(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.learn_capacity(worker));
    }

    /// A worker said what its capacity is. Returns whether that was news.
    pub fn capacity_told(&self, worker: WorkerId, capacity: Tokens, block_size: u32) -> bool {
        let usable = usable(capacity, block_size);
        self.update(worker, |residency| {
            let is_new = residency.learns_capacity(worker) || residency.capacity_of(worker) != usable;
            residency.capacity_told(worker, usable);
            is_new
        })
    }

    /// Tokens that a worker's mirror has room for, as they are written, told or learned.
    #[must_use]
    pub fn capacity(&self, worker: WorkerId) -> Tokens {
        self.residency.lock().capacity_of(worker)
    }
}

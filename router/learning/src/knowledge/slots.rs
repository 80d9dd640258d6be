//! Per-worker values by slot, which can grow while requests read them.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use policy::ids::WorkerId;

/// One value per worker. Readers take no lock; a writer copies the list, which happens when a worker is added.
#[derive(Debug)]
pub(super) struct Slots<T>(ArcSwap<Vec<Arc<T>>>);

impl<T> Slots<T> {
    pub(super) fn new(values: impl Iterator<Item = T>) -> Self {
        Self(ArcSwap::from_pointee(values.map(Arc::new).collect()))
    }

    pub(super) fn read(&self) -> Guard<Arc<Vec<Arc<T>>>> {
        self.0.load()
    }

    pub(super) fn get(&self, worker: WorkerId) -> Option<Arc<T>> {
        self.0.load().get(worker.index()).cloned()
    }

    /// Replaces the value of a slot. New slots before it are filled with values of `value` as well.
    pub(super) fn set(&self, worker: WorkerId, value: impl Fn() -> T) {
        self.0.rcu(|before| {
            let mut slots = Vec::clone(before);
            if slots.len() <= worker.index() {
                slots.resize_with(worker.index() + 1, || Arc::new(value()));
            }
            slots[worker.index()] = Arc::new(value());
            slots
        });
    }
}

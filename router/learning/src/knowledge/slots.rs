//! What is kept for each worker, by slot. A worker may come while requests read of the others.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use policy::ids::WorkerId;

/// One value a worker. Readers take no lock; whoever sets one copies the list, which happens when a worker comes.
#[derive(Debug)]
pub(super) struct Slots<T>(ArcSwap<Vec<Arc<T>>>);

impl<T> Slots<T> {
    pub(super) fn new(values: impl Iterator<Item = T>) -> Self {
        Self(ArcSwap::from_pointee(values.map(Arc::new).collect()))
    }

    /// All of them now.
    pub(super) fn read(&self) -> Guard<Arc<Vec<Arc<T>>>> {
        self.0.load()
    }

    pub(super) fn get(&self, worker: WorkerId) -> Option<Arc<T>> {
        self.0.load().get(worker.index()).cloned()
    }

    /// A slot has a new holder. Slots before it that nobody holds yet are filled alike.
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

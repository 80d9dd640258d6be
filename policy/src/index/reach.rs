//! The answer of a lookup, owned by the caller and reused.

use crate::ids::WorkerId;

/// How many leading keys of the chain asked for each worker holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    depths: Vec<u32>,
    deepest: u32,
}

impl Reach {
    /// An empty answer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leading keys resident on `worker`; 0 if none.
    #[must_use]
    pub fn of(&self, worker: WorkerId) -> u32 {
        self.depths.get(worker.index()).copied().unwrap_or(0)
    }

    /// Leading keys resident on anyone.
    #[must_use]
    pub fn deepest(&self) -> u32 {
        self.deepest
    }

    /// Leading keys by worker slot; slots past the end hold nothing.
    #[must_use]
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// The workers that hold anything of the chain, with how many leading keys.
    pub fn holders(&self) -> impl Iterator<Item = (WorkerId, u32)> + '_ {
        let slots = (0..).zip(&self.depths);
        slots
            .filter(|(_, depth)| **depth > 0)
            .map(|(slot, depth)| (WorkerId(slot), *depth))
    }

    pub(super) fn clear(&mut self) {
        self.depths.fill(0);
        self.deepest = 0;
    }

    pub(super) fn raise(&mut self, worker: WorkerId, depth: u32) {
        if self.depths.len() <= worker.index() {
            self.depths.resize(worker.index() + 1, 0);
        }
        let slot = &mut self.depths[worker.index()];
        *slot = (*slot).max(depth);
        self.deepest = self.deepest.max(depth);
    }
}

//! Per worker: the count of entries, and the runs that it holds any of.

use super::Writer;
use crate::index::holders::{self, Holders};
use crate::index::run::View;

#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) entries: u64,
    /// Number of runs that the worker holds any of.
    pub(super) runs: u32,
    /// Those runs, and some formerly held; pruned when the latter are the majority.
    pub(super) list: Vec<u32>,
}

impl Worker {
    fn list_bytes(&self) -> u64 {
        (self.list.capacity() * size_of::<u32>()) as u64
    }
}

impl Writer {
    pub(super) fn members_bytes(&self) -> u64 {
        self.lists + (self.workers.capacity() * size_of::<Worker>()) as u64
    }

    pub(super) fn change_list<T>(&mut self, worker: u32, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let state = self.workers.get_mut(worker as usize)?;
        self.lists -= state.list_bytes();
        let result = change(state);
        self.lists += state.list_bytes();
        Some(result)
    }

    pub(super) fn join(&mut self, worker: u32, run: u32) {
        let crowded = self.change_list(worker, |state| {
            if state.list.len() == state.list.capacity() {
                // Doubling at once could take a twentieth of the budget.
                state.list.reserve_exact(state.list.len() / 8 + 16);
            }
            state.list.push(run);
            state.runs += 1;
            state.list.len() > 2 * state.runs as usize + 16
        });
        if crowded == Some(true) {
            self.prune(worker);
        }
    }

    pub(super) fn leave(&mut self, worker: u32) {
        self.change_list(worker, |state| {
            state.runs -= 1;
            if state.runs == 0 {
                state.list = Vec::new();
            }
        });
    }

    /// Removes from a worker's list the runs it no longer holds, and duplicates.
    pub(super) fn prune(&mut self, worker: u32) {
        let shared = std::sync::Arc::clone(&self.shared);
        let holds = |run: &u32| {
            let view = View::own(shared.words.line(*run));
            holders::reach_of(&shared.words, &view, worker) > 0
        };
        self.change_list(worker, |state| {
            state.list.sort_unstable();
            state.list.dedup();
            state.list.retain(holds);
            state.list.shrink_to(state.list.len() + state.list.len() / 4 + 16);
        });
    }

    pub(super) fn gain(&mut self, worker: u32, keys: u32) {
        self.stats.entries += u64::from(keys);
        self.gained += u64::from(keys);
        if let Some(state) = self.workers.get_mut(worker as usize) {
            state.entries += u64::from(keys);
        }
    }

    pub(super) fn lose(&mut self, worker: u32, keys: u32) {
        self.stats.entries -= u64::from(keys);
        if let Some(state) = self.workers.get_mut(worker as usize) {
            state.entries -= u64::from(keys);
        }
    }

    pub(super) fn join_all(&mut self, holders: &Holders, run: u32) {
        for worker in holders
            .full()
            .chain(holders.partials.iter().map(|(worker, _)| *worker))
        {
            self.join(worker, run);
        }
    }
}

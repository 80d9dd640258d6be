//! Caches that were emptied while no router listened.
//!
//! A snapshot says what a worker held when it was taken. Where the worker publishes events, the history that is replayed
//! after a start tells of what happened since: a clear, or a new process, whose first batch is younger than the
//! snapshot. Both carry the time at which the worker made them. Replay and snapshot are read side by side, so whichever
//! comes second finds the other.
//!
//! The two times are of two clocks. Where they differ by more than the time between snapshot and clear, the clear is
//! missed, as before, until reports show it; or the snapshot is not believed, and is learned again.

use std::sync::atomic::{AtomicU64, Ordering};

use policy::ids::WorkerId;

/// Times in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct Emptied {
    /// When each worker's cache was last emptied, by its own word; 0 if it has not said so.
    at: Vec<AtomicU64>,
    /// When the snapshot was taken that was read; `u64::MAX` if none was.
    snapshot: AtomicU64,
}

impl Emptied {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            at: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            snapshot: AtomicU64::new(u64::MAX),
        }
    }

    /// A worker's cache was emptied then. Returns whether a snapshot from before that was read.
    pub(super) fn worker(&self, worker: WorkerId, at_ms: u64) -> bool {
        if let Some(at) = self.at.get(worker.index()) {
            at.fetch_max(at_ms, Ordering::SeqCst);
        }
        self.snapshot.load(Ordering::SeqCst) < at_ms
    }

    /// A snapshot of this time is about to be restored.
    pub(super) fn restoring(&self, taken_ms: u64) {
        self.snapshot.store(taken_ms, Ordering::SeqCst);
    }

    /// Whether the worker's cache was emptied after that.
    pub(super) fn since(&self, worker: WorkerId, taken_ms: u64) -> bool {
        let at = self.at.get(worker.index());
        at.is_some_and(|at| at.load(Ordering::SeqCst) > taken_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whichever_comes_second_finds_the_other() {
        let (worker, other) = (WorkerId(0), WorkerId(1));
        let emptied = Emptied::new(2);
        assert!(!emptied.worker(worker, 500), "nothing was restored yet");
        emptied.restoring(400);
        assert!(emptied.since(worker, 400) && !emptied.since(worker, 500) && !emptied.since(other, 0));
        assert!(emptied.worker(other, 401) && !emptied.worker(other, 400));
        assert!(!emptied.since(WorkerId(9), 0) && emptied.worker(WorkerId(9), 500));
    }
}

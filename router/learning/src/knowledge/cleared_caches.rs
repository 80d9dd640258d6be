//! Detects caches that were cleared while no router was running (docs/evidence.md, "Over a restart of the router").
//!
//! Where the worker publishes events, the history replayed after a start shows what happened since the snapshot: a
//! clear, or a new process, whose first batch is younger. Replay and restore run concurrently, and whichever is second
//! sees the result of the first. A history may be replayed more than once, so an event that was already seen is
//! ignored. Once a worker's events are live, clears from before this router's start are ignored too: the mirror has
//! since learned from responses, and older entries are corrected by reports.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use policy::ids::WorkerId;

use super::Slots;

/// Clear times in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct ClearedCaches {
    workers: Slots<ClearedCache>,
    /// Time at which the restored snapshot was taken; `u64::MAX` without one.
    snapshot: AtomicU64,
    started: u64,
}

#[derive(Debug, Default)]
struct ClearedCache {
    /// Time at which the cache was last cleared, by the worker's clock; 0 if unknown.
    at: AtomicU64,
    /// Whether the history was replayed; later events arrive live.
    heard: AtomicBool,
}

impl ClearedCaches {
    pub(super) fn new(workers: usize, started: u64) -> Self {
        Self {
            workers: Slots::new((0..workers).map(|_| ClearedCache::default())),
            snapshot: AtomicU64::new(u64::MAX),
            started,
        }
    }

    pub(super) fn admit(&self, worker: WorkerId) {
        self.workers.set(worker, ClearedCache::default);
    }

    /// Records a clear at `at_ms`. Returns whether a mirror restored from a snapshot must be discarded.
    pub(super) fn worker(&self, worker: WorkerId, at_ms: u64) -> bool {
        let Some(worker) = self.workers.get(worker) else {
            return false;
        };
        let before = worker.at.fetch_max(at_ms, Ordering::SeqCst);
        let unheard = at_ms <= self.started || !worker.heard.load(Ordering::SeqCst);
        self.snapshot.load(Ordering::SeqCst) < at_ms && before < at_ms && unheard
    }

    pub(super) fn heard(&self, worker: WorkerId) {
        if let Some(worker) = self.workers.get(worker) {
            worker.heard.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn restoring(&self, taken_ms: u64) {
        self.snapshot.store(taken_ms, Ordering::SeqCst);
    }

    pub(super) fn since(&self, worker: WorkerId, taken_ms: u64) -> bool {
        let worker = self.workers.get(worker);
        worker.is_some_and(|worker| worker.at.load(Ordering::SeqCst) > taken_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whichever_comes_second_finds_the_other() {
        let (worker, other) = (WorkerId(0), WorkerId(1));
        let emptied = ClearedCaches::new(2, 600);
        assert!(!emptied.worker(worker, 500), "nothing was restored yet");
        emptied.restoring(400);
        assert!(emptied.since(worker, 400) && !emptied.since(worker, 500) && !emptied.since(other, 0));
        assert!(!emptied.worker(other, 400) && emptied.worker(other, 401));
        assert!(!emptied.since(WorkerId(9), 0) && !emptied.worker(WorkerId(9), 500));
    }

    #[test]
    fn a_history_that_is_read_again_empties_nothing_again() {
        let worker = WorkerId(0);
        let emptied = ClearedCaches::new(1, 600);
        emptied.restoring(400);
        assert!(emptied.worker(worker, 500), "cleared while no router listened");
        emptied.heard(worker);
        // Live events, then the whole history again after an unanswered replay.
        emptied.worker(worker, 900);
        for at in [0, 450, 500, 900] {
            assert!(!emptied.worker(worker, at), "{at}");
        }
        assert!(!emptied.worker(worker, 1000), "the mirror has learned since");
    }

    #[test]
    fn a_worker_that_begins_after_the_router_is_believed_to_be_empty() {
        let emptied = ClearedCaches::new(1, 600);
        emptied.restoring(400);
        assert!(emptied.worker(WorkerId(0), 700));
    }
}

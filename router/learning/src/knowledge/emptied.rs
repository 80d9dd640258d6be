//! Caches that were emptied while no router listened.
//!
//! A snapshot says what a worker held when it was taken. Where the worker publishes events, the history that is replayed
//! after a start tells of what happened since: a clear, or a new process, whose first batch is younger than the
//! snapshot. Both carry the time at which the worker made them. Replay and snapshot are read side by side, so whichever
//! comes second finds the other.
//!
//! A history may be read more than once: who was silent when asked is asked from the beginning later on. So what was heard
//! of once, live or replayed, is not heeded again; and once a worker's events have come, no clear since this router's
//! start is: the mirror has been taught by answers since, and whatever it holds of before is found out by reports.
//!
//! The times are of two clocks. Where they differ by more than the time between snapshot and clear, the clear is missed,
//! as before, until reports show it; or the snapshot is not believed, and is learned again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use policy::ids::WorkerId;

use super::Slots;

/// Times in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct Emptied {
    workers: Slots<Worker>,
    /// When the snapshot was taken that was read; `u64::MAX` if none was.
    snapshot: AtomicU64,
    /// When this router started.
    started: u64,
}

#[derive(Debug, Default)]
struct Worker {
    /// When its cache was last emptied, by its own word; 0 if it has not said so.
    at: AtomicU64,
    /// Its history was read once: from then on, what happens is heard live.
    heard: AtomicBool,
}

impl Emptied {
    pub(super) fn new(workers: usize, started: u64) -> Self {
        Self {
            workers: Slots::new((0..workers).map(|_| Worker::default())),
            snapshot: AtomicU64::new(u64::MAX),
            started,
        }
    }

    /// A slot has a new holder, which has said nothing yet.
    pub(super) fn admit(&self, worker: WorkerId) {
        self.workers.set(worker, Worker::default);
    }

    /// A worker's cache was emptied then. Returns whether that is news to a mirror that was read from a snapshot.
    pub(super) fn worker(&self, worker: WorkerId, at_ms: u64) -> bool {
        let Some(worker) = self.workers.get(worker) else {
            return false;
        };
        let before = worker.at.fetch_max(at_ms, Ordering::SeqCst);
        let unheard = at_ms <= self.started || !worker.heard.load(Ordering::SeqCst);
        self.snapshot.load(Ordering::SeqCst) < at_ms && before < at_ms && unheard
    }

    /// A worker's events are coming: what it had to say of before was said.
    pub(super) fn heard(&self, worker: WorkerId) {
        if let Some(worker) = self.workers.get(worker) {
            worker.heard.store(true, Ordering::SeqCst);
        }
    }

    /// A snapshot of this time is about to be restored.
    pub(super) fn restoring(&self, taken_ms: u64) {
        self.snapshot.store(taken_ms, Ordering::SeqCst);
    }

    /// Whether the worker's cache was emptied after that.
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
        let emptied = Emptied::new(2, 600);
        assert!(!emptied.worker(worker, 500), "nothing was restored yet");
        emptied.restoring(400);
        assert!(emptied.since(worker, 400) && !emptied.since(worker, 500) && !emptied.since(other, 0));
        assert!(!emptied.worker(other, 400) && emptied.worker(other, 401));
        assert!(!emptied.since(WorkerId(9), 0) && !emptied.worker(WorkerId(9), 500));
    }

    #[test]
    fn a_history_that_is_read_again_empties_nothing_again() {
        let worker = WorkerId(0);
        let emptied = Emptied::new(1, 600);
        emptied.restoring(400);
        assert!(emptied.worker(worker, 500), "cleared while no router listened");
        emptied.heard(worker);
        // Live, and then all of it once more after a silent replay.
        emptied.worker(worker, 900);
        for at in [0, 450, 500, 900] {
            assert!(!emptied.worker(worker, at), "{at}");
        }
        assert!(!emptied.worker(worker, 1000), "the mirror has learned since");
    }

    #[test]
    fn a_worker_that_begins_after_the_router_is_believed_to_be_empty() {
        let emptied = Emptied::new(1, 600);
        emptied.restoring(400);
        assert!(emptied.worker(WorkerId(0), 700));
    }
}

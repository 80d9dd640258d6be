//! A waker that records its wake-ups, so that rarely ready futures are not polled with their task.
//!
//! The task of a stream is woken for each token. Polling its rarely ready futures (a deadline, the drain) each time
//! would cost tens of nanoseconds each, so they have a waker of their own and are polled only after it was woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

/// A waker that wakes its task and records that it did.
#[derive(Debug)]
pub struct RareWaker {
    rung: Arc<WakeFlag>,
    waker: Waker,
    task: Option<Waker>,
}

#[derive(Debug)]
struct WakeFlag {
    has: AtomicBool,
    /// Waker of the task, kept after a wake-up, so that repeated polls by one task store nothing.
    task: Mutex<Option<Waker>>,
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has.store(true, Ordering::Release);
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Default for RareWaker {
    /// Returns a waker that counts as woken, because nothing has been polled with it yet.
    fn default() -> Self {
        let rung = Arc::new(WakeFlag {
            has: AtomicBool::new(true),
            task: Mutex::default(),
        });
        Self {
            waker: Waker::from(Arc::clone(&rung)),
            rung,
            task: None,
        }
    }
}

impl RareWaker {
    /// Returns whether the waker was woken since the last call, and registers the calling task for the next wake-up.
    pub fn was_woken(&mut self, cx: &Context<'_>) -> bool {
        // The task is registered before the flag is read: a wake-up in between is either seen here or wakes the task.
        // The lock orders the two.
        if self.task.as_ref().is_none_or(|task| !task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
            self.rung.task.lock().clone_from(&self.task);
        }
        self.rung.has.load(Ordering::Acquire) && self.rung.has.swap(false, Ordering::AcqRel)
    }

    /// Returns the waker to poll the rare future with.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wake_up_wakes_the_same_task() {
        let (mut waker, woken) = (RareWaker::default(), Arc::new(Woken::default()));
        let task = Waker::from(Arc::clone(&woken));
        assert!(
            waker.was_woken(&Context::from_waker(&task)),
            "nothing was polled yet"
        );
        for rings in 1..4 {
            assert!(!waker.was_woken(&Context::from_waker(&task)));
            waker.waker().wake_by_ref();
            assert_eq!(woken.0.load(Ordering::Relaxed), rings);
            assert!(waker.was_woken(&Context::from_waker(&task)));
        }
    }

    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

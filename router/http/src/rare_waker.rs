//! A waker that records its wake-ups, so that rarely ready futures are not polled with their task.
//!
//! A woken task polls everything that it waits for, and the task of a stream is woken for each token. Polling its other
//! futures (a deadline, the drain, a check for clients that stop reading) each time would cost tens of nanoseconds per
//! future and the memory they touch. Such futures get a waker of their own and are polled only after it was woken.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// A waker that wakes its task and records that it did.
#[derive(Debug)]
pub struct RareWaker {
    rung: Arc<Woken>,
    waker: Waker,
    /// The waker of the task that polled last.
    task: Option<Waker>,
}

#[derive(Debug)]
struct Woken {
    has: AtomicBool,
    /// Kept after a wake-up, so that repeated polls by one task store nothing.
    task: Mutex<Option<Waker>>,
}

impl Wake for Woken {
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
    /// A bell that counts as woken, because nothing has been polled with its waker yet.
    fn default() -> Self {
        let rung = Arc::new(Woken {
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
    pub fn has_rung(&mut self, cx: &Context<'_>) -> bool {
        // The task is registered before the flag is read: a wake-up in between is either seen here or wakes the task.
        // The lock orders the two.
        if self.task.as_ref().is_none_or(|task| !task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
            self.rung.task.lock().clone_from(&self.task);
        }
        self.rung.has.load(Ordering::Acquire) && self.rung.has.swap(false, Ordering::AcqRel)
    }

    /// Returns the waker to poll the rare future with.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// Polls `future` only after its own waker was woken, however often the task is woken by others.
pub async fn rarely<F: Future>(future: F) -> F::Output {
    let (mut future, mut bell) = (pin!(future), RareWaker::default());
    poll_fn(move |cx| {
        if bell.has_rung(cx) {
            future.as_mut().poll(&mut Context::from_waker(bell.waker()))
        } else {
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_rare_future_is_polled_only_after_its_own_wake_up() {
        let (tell, mut told) = oneshot::channel::<u32>();
        let polls = Cell::new(0);
        let mut rare = pin!(rarely(poll_fn(|cx| {
            polls.set(polls.get() + 1);
            told.poll_unpin(cx)
        })));
        for _ in 0..100 {
            assert!(
                poll_fn(|cx| Poll::Ready(rare.as_mut().poll(cx)))
                    .await
                    .is_pending()
            );
        }
        assert_eq!(polls.get(), 1);
        tell.send(7).unwrap();
        assert_eq!((rare.await, polls.get()), (Ok(7), 2));
    }

    #[tokio::test]
    async fn the_task_that_polled_last_is_woken() {
        let (tell, told) = oneshot::channel::<u32>();
        let mut rare = Box::pin(rarely(told));
        assert!(
            rare.as_mut().now_or_never().is_none(),
            "polled by somebody who is gone"
        );
        let waiting = tokio::spawn(rare);
        tokio::task::yield_now().await;
        tell.send(7).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn every_wake_up_wakes_the_same_task() {
        let (mut bell, woken) = (RareWaker::default(), Arc::new(Woken::default()));
        let task = Waker::from(Arc::clone(&woken));
        assert!(
            bell.has_rung(&Context::from_waker(&task)),
            "nobody was polled yet"
        );
        for rings in 1..4 {
            assert!(!bell.has_rung(&Context::from_waker(&task)));
            bell.waker().wake_by_ref();
            assert_eq!(woken.0.load(Ordering::Relaxed), rings);
            assert!(bell.has_rung(&Context::from_waker(&task)));
        }
    }

    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_wakes_a_rare_future() {
        let (pause, begun) = (Duration::from_secs(9), tokio::time::Instant::now());
        rarely(tokio::time::sleep(pause)).await;
        assert!(
            (pause..2 * pause).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }
}

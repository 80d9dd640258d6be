//! Futures that are hardly ever ready, beside one that is all the time.
//!
//! A task that is woken polls everything it waits for, and the task of a stream is woken for each token. What it waits for
//! besides (a deadline, the drain, a look at who does not read) would be asked in vain as often, at some tens of nanoseconds
//! each and the memory that they touch. So these are given a waker of their own, a bell, and are only polled when it rang.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Wakes its task, and knows afterwards that it was it.
#[derive(Debug)]
pub struct Bell {
    rung: Arc<Rung>,
    waker: Waker,
    /// The task that is woken, as it was said last.
    task: Option<Waker>,
}

#[derive(Debug)]
struct Rung {
    has: AtomicBool,
    /// It stays here when it was woken, so that a task that asks again and again has nothing to write.
    task: Mutex<Option<Waker>>,
}

impl Wake for Rung {
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

impl Default for Bell {
    /// One that has rung: nobody has been polled with it.
    fn default() -> Self {
        let rung = Arc::new(Rung {
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

impl Bell {
    /// Whether it has rung since it was asked last. When it rings next, the task that asks is woken.
    pub fn has_rung(&mut self, cx: &Context<'_>) -> bool {
        // In this order: what rings in between is seen here or wakes the task. The lock is what orders it.
        if self.task.as_ref().is_none_or(|task| !task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
            self.rung.task.lock().clone_from(&self.task);
        }
        self.rung.has.load(Ordering::Acquire) && self.rung.has.swap(false, Ordering::AcqRel)
    }

    /// What rings it.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// A future that is polled only when it has asked for it, however often its task is woken by others.
pub async fn rarely<F: Future>(future: F) -> F::Output {
    let (mut future, mut bell) = (pin!(future), Bell::default());
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
    async fn it_is_polled_when_it_asks_for_it_and_at_no_other_time() {
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
    async fn whoever_polls_it_last_is_woken() {
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
    async fn it_wakes_the_same_task_however_often_it_rings() {
        let (mut bell, woken) = (Bell::default(), Arc::new(Woken::default()));
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
    async fn a_timer_rings_it() {
        let (pause, begun) = (Duration::from_secs(9), tokio::time::Instant::now());
        rarely(tokio::time::sleep(pause)).await;
        assert!(
            (pause..2 * pause).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }
}

//! The timer by which the pool of connections closes those that have been unused for too long.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use hyper_util::rt::TokioTimer;

use crate::idle::Idle;

/// Additional time between two checks of the pool while the router is idle. An expired connection is never used anyway.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct PoolTimer {
    pub(super) idle: Arc<Idle>,
    pub(super) timer: TokioTimer,
}

impl Timer for PoolTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.timer.sleep(duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.timer.sleep_until(deadline)
    }

    /// Called after each check of the pool.
    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        let more = if self.idle.is_idle() { IDLE } else { Duration::ZERO };
        self.timer.reset(sleep, deadline + more);
    }

    fn now(&self) -> Instant {
        self.timer.now()
    }
}

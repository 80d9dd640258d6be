//! Detects whether the router is idle. Background tasks wake the CPU less often while it is.

use std::sync::atomic::{AtomicU64, Ordering};

use policy::units::Millis;
use tokio::sync::watch;

/// Time without requests after which the router is idle. What is learned still changes quickly until then.
const AFTER: Millis = Millis(300_000.0);

/// A router is idle until its first request, and again from [`AFTER`] its last one on.
#[derive(Debug)]
pub struct Idle {
    is_idle: watch::Sender<bool>,
    /// Time of the last request, as the bits of its milliseconds.
    last: AtomicU64,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            is_idle: watch::Sender::new(true),
            last: AtomicU64::new(0),
        }
    }
}

impl Idle {
    pub fn is_idle(&self) -> bool {
        *self.is_idle.borrow()
    }

    /// Waits until the router is not idle.
    pub async fn ends(&self) {
        // The sender is in `self`, so the channel is open.
        let _ = self.is_idle.subscribe().wait_for(|is_idle| !is_idle).await;
    }

    /// Records that a request begins, or that something is learned from one.
    pub fn requested(&self, now: Millis) {
        self.last.store(now.0.to_bits(), Ordering::Relaxed);
        if self.is_idle() {
            self.is_idle.send_replace(false);
        }
    }

    /// Checks whether the router has become idle. To be called regularly.
    pub fn check(&self, now: Millis, in_flight: usize) {
        let last = Millis(f64::from_bits(self.last.load(Ordering::Relaxed)));
        if in_flight > 0 {
            self.requested(now);
        } else if now.saturating_sub(last) >= AFTER {
            self.is_idle.send_replace(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_router_is_idle_until_its_first_request_and_some_time_after_its_last() {
        let (idle, after) = (Idle::default(), |ms| Millis(ms) + AFTER);
        idle.check(Millis(10.0), 0);
        assert!(idle.is_idle());
        let request = async { idle.requested(Millis(20.0)) };
        tokio::join!(idle.ends(), request);
        idle.check(after(19.0), 0);
        assert!(!idle.is_idle(), "not long enough");
        idle.check(after(21.0), 1);
        assert!(!idle.is_idle(), "a request is in flight");
        idle.check(after(22.0), 0);
        assert!(!idle.is_idle(), "it has just ended");
        idle.check(after(21.0) + AFTER, 0);
        assert!(idle.is_idle());
    }
}

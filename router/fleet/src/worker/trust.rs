//! Breaker and slow start of a worker.

use std::sync::atomic::Ordering;

use policy::units::Millis;

use super::Worker;
use crate::breaker::{Breaker, BreakerPass, BreakerState};
use crate::rotation::Condition;

#[derive(Debug)]
pub(super) struct Trust {
    pub(super) breaker: Breaker,
    /// When it last became ready.
    pub(super) since: Option<Millis>,
    pub(super) slow_start: Millis,
}

impl Trust {
    /// Returns the progress of the slow start, from 0 to 1.
    fn started(&self, now: Millis) -> f64 {
        match self.since {
            Some(since) if self.slow_start > Millis::ZERO => {
                ((now - since).0 / self.slow_start.0).clamp(0.0, 1.0)
            }
            _ => 1.0,
        }
    }
}

impl Worker {
    /// Returns breaker state and slow start.
    pub fn condition(&self, now: Millis) -> Condition {
        let late = self.late.load(Ordering::Relaxed);
        if !self.is_watched.load(Ordering::Acquire) {
            return Condition {
                late,
                ..Condition::WELL
            };
        }
        let trust = self.trust.lock();
        Condition {
            breaker: trust.breaker.standing(now),
            failing: trust.breaker.failing(),
            started: trust.started(now),
            late,
        }
    }

    /// Returns when it last became ready.
    pub fn ready_since(&self) -> Option<Millis> {
        self.trust.lock().since
    }

    /// Admits a request if the breaker does, or `regardless` of it where no other worker remains.
    #[must_use]
    pub fn admit(&self, now: Millis, regardless: bool) -> Option<BreakerPass> {
        if !self.is_watched.load(Ordering::Acquire) {
            return Some(BreakerPass::Ordinary);
        }
        let pass = self.trust.lock().breaker.admit(now);
        pass.or(regardless.then_some(BreakerPass::Ordinary))
    }

    /// Applies a change to the breaker and updates `is_watched`.
    pub(crate) fn with_breaker<T>(&self, now: Millis, tell: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut trust = self.trust.lock();
        let told = tell(&mut trust.breaker);
        let watched = trust.breaker.standing(now) != BreakerState::Closed || trust.started(now) < 1.0;
        self.is_watched.store(watched, Ordering::Release);
        told
    }

    pub(crate) fn starts_anew(&self, now: Millis) {
        let mut trust = self.trust.lock();
        trust.since = Some(now);
        self.is_watched.store(true, Ordering::Release);
    }
}

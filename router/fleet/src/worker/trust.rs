//! Breaker, pause and slow start of a worker.

use std::sync::atomic::Ordering;

use policy::units::Millis;
use tracing::warn;

use super::Worker;
use crate::breaker::{Breaker, BreakerPass, BreakerState, Outcomes};
use crate::pause::Pause;
use crate::rotation::Condition;

#[derive(Debug)]
pub(super) struct Trust {
    pub(super) breaker: Breaker,
    /// Pause after a refusal for lack of room.
    pub(super) pause: Pause,
    /// Time at which the worker last became ready.
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
    /// Returns the worker's condition, for any request.
    pub fn condition(&self, now: Millis) -> Condition {
        self.condition_for(now, None)
    }

    /// Returns the worker's condition for a request, whose `source` [identifies it](Breaker::failed).
    pub fn condition_for(&self, now: Millis, source: Option<u64>) -> Condition {
        let late = self.late.load(Ordering::Relaxed);
        if !self.is_watched.load(Ordering::Acquire) {
            return Condition {
                late,
                ..Condition::WELL
            };
        }
        let trust = self.trust.lock();
        Condition {
            breaker: trust.breaker.state(now),
            failed_share: trust.breaker.failed_share(),
            started: trust.started(now),
            late,
            is_avoided: trust.pause.is_on(now)
                || source.is_some_and(|source| trust.breaker.has_failed(now, source)),
        }
    }

    /// Returns when the worker last became ready.
    pub fn ready_since(&self) -> Option<Millis> {
        self.trust.lock().since
    }

    /// Admits a request if the breaker does, or, if `regardless`, even if the breaker does not, because no other worker
    /// remains.
    #[must_use]
    pub fn admit(&self, now: Millis, regardless: bool) -> Option<BreakerPass> {
        if !self.is_watched.load(Ordering::Acquire) {
            return Some(BreakerPass::Ordinary);
        }
        let pass = self.trust.lock().breaker.admit(now);
        pass.or(regardless.then_some(BreakerPass::Ordinary))
    }

    /// Returns the recent outcomes of the worker's requests.
    pub fn outcomes(&self, now: Millis) -> Outcomes {
        self.trust.lock().breaker.outcomes(now)
    }

    /// Opens the breaker after failures that are significantly more than those of the others. Returns whether it did.
    pub fn open_unless_alike(&self, now: Millis, others: Outcomes) -> bool {
        let opened = self.with_breaker(now, |breaker| breaker.open_unless_alike(now, others));
        if opened {
            warn!(
                worker = self.name(),
                "breaker opened: the worker fails its requests"
            );
        }
        opened
    }

    /// Applies a change to the breaker and updates `is_watched`.
    pub(crate) fn with_breaker<T>(&self, now: Millis, tell: impl FnOnce(&mut Breaker) -> T) -> T {
        self.with_trust(now, |trust| tell(&mut trust.breaker))
    }

    fn with_trust<T>(&self, now: Millis, tell: impl FnOnce(&mut Trust) -> T) -> T {
        let mut trust = self.trust.lock();
        let told = tell(&mut trust);
        let watched = trust.breaker.state(now) != BreakerState::Closed
            || trust.started(now) < 1.0
            || trust.pause.is_on(now)
            || trust.breaker.has_failures(now);
        self.is_watched.store(watched, Ordering::Release);
        told
    }

    /// Begins a pause, because the worker declined a request.
    pub(crate) fn declined(&self, now: Millis, after: Option<Millis>) {
        self.with_trust(now, |trust| trust.pause.declined(now, after));
    }

    /// Ends the pause, because the worker has made room.
    pub(crate) fn made_room(&self, now: Millis) {
        if self.is_watched.load(Ordering::Acquire) {
            self.with_trust(now, |trust| trust.pause.made_room());
        }
    }

    pub(crate) fn starts_anew(&self, now: Millis) {
        let mut trust = self.trust.lock();
        trust.since = Some(now);
        self.is_watched.store(true, Ordering::Release);
    }
}

//! The schedule of a query.

use policy::admission::Bucket;
use policy::units::Millis;

use crate::health::ProbeFailure;

/// Number of doubts in a row that are followed at once, and their number per second after that: names that no engine
/// has must not make the router query engines at any rate.
const DOUBTS: f64 = 4.0;

/// The schedule of one query: an interval after an answer, growing pauses after failures, at once on a doubt.
#[derive(Debug, Default)]
pub struct Schedule {
    /// Time of the next query; `None` while paused.
    next: Option<Millis>,
    /// Number of queries sent.
    sent: u64,
    /// Number of failures in a row.
    failures: u32,
    failing: Option<ProbeFailure>,
    doubts: Option<Bucket>,
}

impl Schedule {
    /// Makes the query due.
    pub fn begin(&mut self, now: Millis) {
        self.next = Some(now);
        self.failures = 0;
    }

    /// Stops the query until [`Schedule::begin`].
    pub fn pause(&mut self) {
        self.next = None;
    }

    /// Returns whether the query is due.
    #[must_use]
    pub fn is_due(&self, now: Millis) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Returns when the query is due; `None` while paused.
    #[must_use]
    pub fn next(&self) -> Option<Millis> {
        self.next
    }

    /// Returns the error, and the time since which the query fails.
    #[must_use]
    pub fn failing(&self) -> Option<ProbeFailure> {
        self.failing.clone()
    }

    /// Returns the number of queries sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Records that the query was sent. A later doubt is not settled by its answer.
    pub fn asked(&mut self) {
        self.sent += 1;
        // Far off until the outcome is recorded, so that a doubt in between shows.
        if let Some(next) = &mut self.next {
            *next = Millis(f64::INFINITY);
        }
    }

    /// Records an answer. Returns the failure that the answer ends.
    pub fn answered(&mut self, now: Millis, interval: Millis) -> Option<ProbeFailure> {
        self.failures = 0;
        self.again_in(now, interval);
        self.failing.take()
    }

    /// Records a failure. Returns whether it is the first since an answer.
    pub fn failed(&mut self, now: Millis, error: String, [shortest, longest]: [Millis; 2]) -> bool {
        let since = self.failing.as_ref().map_or(now, |failure| failure.since);
        let is_first = self.failing.replace(ProbeFailure { error, since }).is_none();
        let pause = Millis(shortest.0 * f64::from(1_u32 << self.failures.min(16)));
        self.failures = self.failures.saturating_add(1);
        self.again_in(now, pause.min(longest));
        is_first
    }

    /// Makes the query due at once, or as soon as the allowance of doubts permits. Returns the number of the answer
    /// that settles the doubt; `None` while paused.
    pub fn doubt(&mut self, now: Millis) -> Option<u64> {
        let next = self.next?;
        if next > now {
            let doubts = self
                .doubts
                .get_or_insert_with(|| Bucket::new(DOUBTS, DOUBTS, now));
            let at = match doubts.take(now, 1.0) {
                Ok(()) => now,
                Err(wait) => now + wait,
            };
            self.next = Some(next.min(at));
        }
        Some(self.sent + 1)
    }

    /// Schedules the next query, unless a doubt or a restart while the last one was in flight has made it due earlier.
    fn again_in(&mut self, now: Millis, pause: Millis) {
        if let Some(next) = &mut self.next {
            *next = next.min(now + pause);
        }
    }
}

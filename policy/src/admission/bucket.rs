//! A token bucket that a correction can overdraw.
//!
//! A bucket holds at most `burst` units and gains `rate` of them per second. A request takes its estimated units if the
//! bucket holds as many; one for more than the burst needs a full bucket, and overdraws it. So over any time t at most
//! `max(burst, largest request) + rate·t` estimated units are admitted. After the response, [`Bucket::correct`] takes
//! or returns the difference, so the next requests of the same key pay for the error of an estimate. A correction
//! relies on a worker's report, so its debt is at most what the bucket gains in an hour.

use crate::units::Millis;

/// Upper bound on the time for which a correction can leave a bucket below zero.
const LONGEST_DEBT: Millis = Millis(3_600_000.0);

/// A token bucket. Units are the caller's: requests, or tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    rate_per_ms: f64,
    burst: f64,
    level: f64,
    at: Millis,
}

impl Bucket {
    /// Creates a full bucket. A rate or burst that is not positive is replaced by the smallest positive number.
    pub fn new(rate_per_s: f64, burst: f64, now: Millis) -> Self {
        let burst = burst.max(f64::MIN_POSITIVE);
        Self {
            rate_per_ms: (rate_per_s / 1e3).max(f64::MIN_POSITIVE),
            burst,
            level: burst,
            at: now,
        }
    }

    /// Returns the bucket with another rate and burst; what was used stays used.
    #[must_use]
    pub fn reshaped(mut self, rate_per_s: f64, burst: f64, now: Millis) -> Self {
        let used = self.burst - self.level_at(now);
        let fresh = Self::new(rate_per_s, burst, now);
        self = fresh;
        self.level = fresh.burst - used;
        self
    }

    /// Takes `units` units. Fails with the time until they are available.
    pub fn take(&mut self, now: Millis, units: f64) -> Result<(), Millis> {
        self.refill(now);
        let needed = units.min(self.burst);
        if self.level + self.slack() < needed {
            return Err(Millis((needed - self.level) / self.rate_per_ms));
        }
        self.level -= units;
        Ok(())
    }

    /// Takes units used beyond the estimate, up to [`LONGEST_DEBT`]; returns unused ones if `units` is negative.
    pub fn correct(&mut self, now: Millis, units: f64) {
        self.refill(now);
        let floor = self.level.min(-self.rate_per_ms * LONGEST_DEBT.0);
        self.level = (self.level - units).max(floor).min(self.burst);
    }

    /// Fills the bucket.
    pub fn fill(&mut self, now: Millis) {
        self.refill(now);
        self.level = self.burst;
    }

    /// Returns the balance; negative if the bucket is overdrawn.
    pub fn balance(&self, now: Millis) -> f64 {
        self.level_at(now)
    }

    /// Returns the capacity.
    pub fn burst(&self) -> f64 {
        self.burst
    }

    /// Returns the balance, or zero if it is negative.
    pub fn remaining(&self, now: Millis) -> f64 {
        self.level_at(now).max(0.0)
    }

    /// Returns the time until the bucket is full.
    pub fn until_full(&self, now: Millis) -> Millis {
        Millis(((self.burst - self.level_at(now)) / self.rate_per_ms).max(0.0))
    }

    fn level_at(&self, now: Millis) -> f64 {
        let gained = now.saturating_sub(self.at).0 * self.rate_per_ms;
        (self.level + gained).min(self.burst)
    }

    fn refill(&mut self, now: Millis) {
        self.level = self.level_at(now);
        self.at = self.at.max(now);
    }

    /// Returns a tolerance for rounding: a caller that waits exactly as long as reported is admitted.
    fn slack(&self) -> f64 {
        self.burst * 1e-9
    }
}

//! A token bucket that may be overdrawn by what could not be known.
//!
//! A bucket holds at most `burst` units and gains `rate` of them per second. A request takes its estimated units if the
//! bucket holds as many; when the request has been answered, [`Bucket::correct`] takes or gives back the difference,
//! which may leave the bucket below zero. So over any time t no more than `burst + rate·t` units are *estimated* in, and
//! the error of an estimate is paid by its own key's next requests. A correction is somebody else's word: it never leaves the
//! bucket further below zero than it fills in an hour, so that no word locks a key out for longer. What the key
//! itself has asked for is not bounded so.
//!
//! A request for more than the burst would wait for ever: it needs a full bucket instead, and overdraws it.

use crate::units::Millis;

/// The longest time for which a correction can leave a bucket below zero.
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
    /// A full bucket. A rate or a burst that is not positive is taken for the smallest that is.
    #[must_use]
    pub fn new(rate_per_s: f64, burst: f64, now: Millis) -> Self {
        let burst = burst.max(f64::MIN_POSITIVE);
        Self {
            rate_per_ms: (rate_per_s / 1e3).max(f64::MIN_POSITIVE),
            burst,
            level: burst,
            at: now,
        }
    }

    /// The same bucket with another rate and burst; what was used stays used.
    #[must_use]
    pub fn reshaped(mut self, rate_per_s: f64, burst: f64, now: Millis) -> Self {
        let used = self.burst - self.level_at(now);
        let fresh = Self::new(rate_per_s, burst, now);
        self = fresh;
        self.level = fresh.burst - used;
        self
    }

    /// Takes so many units.
    ///
    /// # Errors
    /// If they are not there: how long until they are.
    pub fn take(&mut self, now: Millis, units: f64) -> Result<(), Millis> {
        self.refill(now);
        let needed = units.min(self.burst);
        if self.level + self.slack() < needed {
            return Err(Millis((needed - self.level) / self.rate_per_ms));
        }
        self.level -= units;
        Ok(())
    }

    /// Takes units that were used without having been asked for, as far as [`LONGEST_DEBT`] allows; gives back those that were
    /// not, if `units` is negative.
    pub fn correct(&mut self, now: Millis, units: f64) {
        self.refill(now);
        let floor = self.level.min(-self.rate_per_ms * LONGEST_DEBT.0);
        self.level = (self.level - units).max(floor).min(self.burst);
    }

    /// Fills it, whatever was used.
    pub fn fill(&mut self, now: Millis) {
        self.refill(now);
        self.level = self.burst;
    }

    /// What it holds; below zero if it is overdrawn.
    #[must_use]
    pub fn balance(&self, now: Millis) -> f64 {
        self.level_at(now)
    }

    /// The most that it holds.
    #[must_use]
    pub fn burst(&self) -> f64 {
        self.burst
    }

    /// What it holds; never below zero.
    #[must_use]
    pub fn remaining(&self, now: Millis) -> f64 {
        self.level_at(now).max(0.0)
    }

    /// Time until it is full again.
    #[must_use]
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

    /// What rounding may have cost: whoever waits exactly as long as it was told gets in.
    fn slack(&self) -> f64 {
        self.burst * 1e-9
    }
}

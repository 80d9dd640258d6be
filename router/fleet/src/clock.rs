//! The router's clock: milliseconds since it started.
//!
//! `policy` has no clock and is passed readings of this one. It runs on tokio's time, so tests can pause it.

use std::time::{SystemTime, UNIX_EPOCH};

use policy::units::Millis;
use tokio::time::Instant;

/// A monotonic clock whose origin is its own creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    /// The origin by the system clock, in milliseconds since 1970.
    unix_ms: f64,
}

impl Clock {
    /// Creates a clock that reads zero now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
            unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64() * 1e3),
        }
    }

    /// Returns the milliseconds since the origin.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(self.origin.elapsed().as_secs_f64() * 1e3)
    }

    /// Converts a reading to milliseconds since 1970, for numbers that other programs compare.
    #[must_use]
    pub fn unix_ms(&self, at: Millis) -> f64 {
        self.unix_ms + at.0
    }

    /// Converts milliseconds since 1970 to a reading; negative before the origin.
    #[must_use]
    pub fn reading(&self, unix_ms: f64) -> Millis {
        Millis(unix_ms - self.unix_ms)
    }
}

/// Converts milliseconds to the standard type; never negative, never more than a year.
#[must_use]
pub fn duration(millis: Millis) -> std::time::Duration {
    const YEAR_MS: f64 = 365.0 * 86_400_000.0;
    std::time::Duration::from_secs_f64(millis.0.clamp(0.0, YEAR_MS) / 1e3)
}

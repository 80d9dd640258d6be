//! The router's clock: milliseconds since it started.
//!
//! `policy` has no clock and is handed this one's readings. It runs on tokio's time, so tests can pause it.

use policy::units::Millis;
use tokio::time::Instant;

/// A monotonic clock whose origin is its own creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that reads zero now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Milliseconds since the origin.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(self.origin.elapsed().as_secs_f64() * 1e3)
    }
}

/// A duration in milliseconds as the runtime's own type; never negative, never more than a year.
#[must_use]
pub fn duration(millis: Millis) -> std::time::Duration {
    const YEAR_MS: f64 = 365.0 * 86_400_000.0;
    std::time::Duration::from_secs_f64(millis.0.clamp(0.0, YEAR_MS) / 1e3)
}

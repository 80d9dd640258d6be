//! Rate limit of once a minute for log messages.

use std::sync::atomic::{AtomicU64, Ordering};

use policy::units::Millis;

/// Least time between two messages.
const PAUSE_MS: u64 = 60_000;

/// Time of the last message in milliseconds, plus one; 0 for never.
#[derive(Debug, Default)]
pub struct LogRateLimit(AtomicU64);

impl LogRateLimit {
    /// Returns whether a message is due, and if so records it.
    pub fn is_due(&self, now: Millis) -> bool {
        let now = now.0.max(0.0) as u64 + 1;
        let is_due = |last: u64| (last == 0 || now >= last.saturating_add(PAUSE_MS)).then_some(now);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_due)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_once_a_minute() {
        let seldom = LogRateLimit::default();
        let due: Vec<bool> = [0.0, 1.0, 59_999.0, 60_000.0, 60_001.0, 120_000.0]
            .map(|ms| seldom.is_due(Millis(ms)))
            .to_vec();
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}

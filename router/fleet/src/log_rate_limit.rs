//! Rate limit of once a minute for log messages.

use std::sync::atomic::{AtomicU64, Ordering};

use policy::units::Millis;

/// Least time between two messages.
const PAUSE_MS: u64 = 60_000;

/// Time of the last message in milliseconds, plus one; 0 for never.
#[derive(Debug, Default)]
pub struct LogRateLimit(AtomicU64);

impl LogRateLimit {
    /// Returns whether a message is due. If so, records it as logged.
    pub fn is_due(&self, now: Millis) -> bool {
        let now = now.0.max(0.0) as u64 + 1;
        let is_due = |last: u64| (last == 0 || now >= last.saturating_add(PAUSE_MS)).then_some(now);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_due)
            .is_ok()
    }
}

/// A rate limit that counts the events between two messages.
#[derive(Debug, Default)]
pub struct CountedLog {
    limit: LogRateLimit,
    held_back: AtomicU64,
}

impl CountedLog {
    /// Records an event. Returns the number of events held back since the last message, if a message is due.
    pub fn count(&self, now: Millis) -> Option<u64> {
        if self.limit.is_due(now) {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Returns the number of events held back, if there are any and a message is due.
    pub fn flush(&self, now: Millis) -> Option<u64> {
        if self.held_back.load(Ordering::Relaxed) == 0 || !self.limit.is_due(now) {
            return None;
        }
        Some(self.held_back.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_between_two_messages_are_counted() {
        let log = CountedLog::default();
        let counted = [0.0, 1.0, 2.0, 60_000.0, 60_001.0].map(|ms| log.count(Millis(ms)));
        assert_eq!(counted, [Some(0), None, None, Some(2), None]);
        let flushed = [60_002.0, 120_000.0, 120_001.0, 180_000.0].map(|ms| log.flush(Millis(ms)));
        assert_eq!(flushed, [None, Some(1), None, None]);
    }

    #[test]
    fn it_is_due_once_a_minute() {
        let seldom = LogRateLimit::default();
        let due: Vec<bool> = [0.0, 1.0, 59_999.0, 60_000.0, 60_001.0, 120_000.0]
            .map(|ms| seldom.is_due(Millis(ms)))
            .to_vec();
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}

//! The requests that failed recently on one worker.

use policy::units::Millis;

/// Number of requests kept: more than open a breaker, and few enough to search.
const KEPT: usize = 16;
/// Time for which a failed request is kept.
const MEMORY: Millis = Millis(60_000.0);

/// The last failed requests, identified by their prompt and client.
#[derive(Clone, Debug, Default)]
pub(super) struct FailedRequests {
    /// Failed requests with their times, the newest last.
    failed: Vec<(u64, Millis)>,
}

impl FailedRequests {
    /// Records a failed request. Returns whether it is new.
    pub(super) fn add(&mut self, now: Millis, source: u64) -> bool {
        let known = self.has(now, source);
        self.failed
            .retain(|(other, at)| *other != source && (now - *at) < MEMORY);
        if self.failed.len() >= KEPT {
            self.failed.remove(0);
        }
        self.failed.push((source, now));
        !known
    }

    /// Returns whether a request has failed recently.
    pub(super) fn has(&self, now: Millis, source: u64) -> bool {
        self.failed
            .iter()
            .any(|(other, at)| *other == source && (now - *at) < MEMORY)
    }

    /// Returns whether any request has failed recently.
    pub(super) fn any(&self, now: Millis) -> bool {
        self.failed.last().is_some_and(|(_, at)| (now - *at) < MEMORY)
    }
}

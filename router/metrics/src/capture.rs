//! Implements the counters of the crate `telemetry` for captures.

use telemetry::capture::CaptureObserver;

use super::Metrics;
use super::labelled::{Counter, Labelled};

/// Counters of a capture in a file.
#[derive(Clone, Debug)]
pub struct CaptureCounters {
    turns: Labelled<Counter>,
    restarts: Counter,
}

impl CaptureObserver for CaptureCounters {
    fn count(&self, outcome: &str, turns: u64) {
        self.turns.add(&[outcome], turns);
    }

    fn restarted(&self) {
        self.restarts.inc();
    }
}

impl Metrics {
    /// Returns the counters of a capture in a file.
    pub fn capture(&self) -> CaptureCounters {
        CaptureCounters {
            turns: self.captured(),
            restarts: self.task_restarts("capture"),
        }
    }
}

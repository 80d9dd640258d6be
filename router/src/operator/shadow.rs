//! A policy that scores the live traffic and steers none of it.
//!
//! It is asked with the very snapshot and turn of each choice, so the two differ by their settings alone. What it says of a
//! turn that it would have sent elsewhere is a prediction from the state that the policy in force has made: it shows where
//! the two disagree, not how the fleet would be if the other had ruled for long. For that there is the preview.

use parking_lot::Mutex;
use policy::route::{self, Decision, Settings, Snapshot, Turn};
use schemars::JsonSchema;
use serde::Serialize;

/// It, and what it has seen.
#[derive(Debug)]
pub struct Shadow {
    /// The policy and its weights.
    pub settings: Settings,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
    tally: Mutex<Tally>,
}

/// What it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Tally {
    /// Turns that it was asked about.
    pub turns: u64,
    /// Of these, turns that it would have sent to another worker.
    pub elsewhere: u64,
    /// Of those, turns that it would have sent where less TTFT is predicted.
    pub faster: u64,
    /// Predicted TTFT there less that where they went, in ms, over all turns.
    pub predicted_change_ms: f64,
}

impl Shadow {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            since_unix_ms: super::unix_ms(),
            tally: Mutex::default(),
        }
    }

    /// A choice was made of this.
    pub fn see(&self, snapshot: &Snapshot<'_>, turn: &Turn<'_>, made: &Decision) {
        let snapshot = Snapshot {
            settings: &self.settings,
            ..*snapshot
        };
        let Some(other) = route::decide(&snapshot, turn) else {
            return;
        };
        let change = (other.chosen().predicted_ttft() - made.chosen().predicted_ttft()).0;
        let mut tally = self.tally.lock();
        tally.turns += 1;
        if other.chosen != made.chosen {
            tally.elsewhere += 1;
            tally.faster += u64::from(change < 0.0);
            tally.predicted_change_ms += change;
        }
    }

    /// What it has seen.
    #[must_use]
    pub fn tally(&self) -> Tally {
        *self.tally.lock()
    }
}

//! Evaluates a policy on live traffic without affecting it.
//!
//! The result shows where the policies disagree, not how the fleet would behave under the other one; the preview does.

use parking_lot::Mutex;
use policy::route::{self, Decision, Settings, Snapshot, Turn};
use schemars::JsonSchema;
use serde::Serialize;

/// A shadow policy, and its results.
#[derive(Debug)]
pub struct Shadow {
    /// Policy and weights.
    pub settings: Settings,
    /// When it was started, in milliseconds since 1970.
    pub since_unix_ms: u64,
    tally: Mutex<Tally>,
}

/// Results of a shadow policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Tally {
    /// Turns evaluated.
    pub turns: u64,
    /// Turns that it would have sent to another worker.
    pub elsewhere: u64,
    /// Of those, turns for which it predicted a shorter TTFT there.
    pub faster: u64,
    /// Sum over all turns of the predicted TTFT there less that of the policy in force, in ms.
    pub predicted_change_ms: f64,
}

impl Shadow {
    /// Continues a shadow policy of an earlier process, without its results.
    pub fn continued(settings: Settings, since_unix_ms: u64) -> Self {
        Self {
            settings,
            since_unix_ms,
            tally: Mutex::default(),
        }
    }

    /// Creates a shadow policy without results.
    pub fn new(settings: Settings) -> Self {
        Self::continued(settings, super::unix_ms())
    }

    /// Evaluates the policy on a decision.
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

    /// Returns the results.
    pub fn tally(&self) -> Tally {
        *self.tally.lock()
    }
}

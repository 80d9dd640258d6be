//! Evaluates a policy on live traffic without affecting it.
//!
//! The result shows where the policies disagree, not how the fleet would behave under the shadow policy, which a
//! preview shows.

use parking_lot::Mutex;
use policy::route::{self, Decision, Settings, Snapshot, Turn};
use schemars::JsonSchema;
use serde::Serialize;

/// A shadow policy, and its results.
#[derive(Debug)]
pub struct Shadow {
    pub settings: Settings,
    /// Time at which the shadow policy was started, in milliseconds since 1970.
    pub since_unix_ms: u64,
    tally: Mutex<Tally>,
}

/// Results of a shadow policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Tally {
    /// Number of turns evaluated.
    pub turns: u64,
    /// Number of turns that the shadow policy would have sent to another worker.
    pub elsewhere: u64,
    /// Number of those turns for which it predicted a shorter time to first token there.
    pub faster: u64,
    /// Sum over those turns of the difference in predicted time to first token, in milliseconds; negative if the shadow
    /// policy's workers are faster.
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

    /// Compares the policy's decision about a turn with the one that was made, and counts it.
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

    pub fn tally(&self) -> Tally {
        *self.tally.lock()
    }
}

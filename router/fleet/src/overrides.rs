//! Operator overrides of a worker's state, kept apart from observed health.

use std::sync::atomic::{AtomicU8, Ordering};

use policy::cost::PrefillCost;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;

/// Administrative state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdminState {
    /// There is no override.
    None,
    /// The worker gets only turns that no other worker can answer.
    Cordoned,
    /// The worker gets no new turns, and finishes those it has.
    Draining,
    /// The worker is leaving the fleet: like draining, and removed once its turns have ended.
    Leaving,
    /// The worker is removed. Its slot may be reused some seconds later.
    Gone,
}

impl AdminState {
    /// Returns whether the worker is leaving or removed.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Leaving | Self::Gone)
    }
}

/// An [`AdminState`] that every routing decision reads.
#[derive(Debug, Default)]
pub(super) struct AtomicAdminState(AtomicU8);

impl AtomicAdminState {
    pub(super) fn get(&self) -> AdminState {
        Self::of(self.0.load(Ordering::Acquire))
    }

    /// Sets the state and returns the previous one; `None` if the worker is leaving, which only removal ends.
    pub(super) fn set(&self, hold: AdminState) -> Option<AdminState> {
        let may = |before: u8| {
            let stays = !Self::of(before).is_final() || hold == AdminState::Gone;
            stays.then_some(hold as u8)
        };
        let before = self.0.try_update(Ordering::AcqRel, Ordering::Acquire, may);
        before.ok().map(Self::of)
    }

    fn of(number: u8) -> AdminState {
        match number {
            0 => AdminState::None,
            1 => AdminState::Cordoned,
            2 => AdminState::Draining,
            3 => AdminState::Leaving,
            _ => AdminState::Gone,
        }
    }
}

/// A cost that an operator measured and sent to the running router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub cost: PrefillCost,
    /// Time of the measurement, in seconds since 1970.
    pub at_unix_s: u64,
    /// Share of the variance that the cost explains.
    pub r_squared: f64,
}

/// A value of α set by an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PinnedAlpha {
    /// Value of α, in milliseconds per uncached token.
    pub alpha_ms_per_token: f64,
    /// Time at which the value expires, by the router's clock; `None` for never.
    pub until: Option<Millis>,
}

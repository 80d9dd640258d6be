//! What somebody has said of a worker, beside what it shows by itself.

use std::sync::atomic::{AtomicU8, Ordering};

use policy::cost::PrefillCost;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;

/// Whether somebody keeps work from a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Nobody does.
    None,
    /// It gets no turns but those that only it can answer.
    Cordoned,
    /// It gets none at all, and ends what it has.
    Draining,
    /// It is to leave the fleet for good: as draining, and when it has nothing left it is gone.
    Leaving,
    /// It has left: its slot is empty.
    Gone,
}

impl Hold {
    /// Whether it is on its way out of the fleet, or out of it.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Leaving | Self::Gone)
    }
}

/// A hold that every choice reads.
#[derive(Debug, Default)]
pub(super) struct AtomicHold(AtomicU8);

impl AtomicHold {
    pub(super) fn get(&self) -> Hold {
        Self::of(self.0.load(Ordering::Acquire))
    }

    /// Says so, and returns what was said before; `None` if the worker is leaving, which nothing but going ends.
    pub(super) fn set(&self, hold: Hold) -> Option<Hold> {
        let may = |before: u8| {
            let stays = !Self::of(before).is_final() || hold == Hold::Gone;
            stays.then_some(hold as u8)
        };
        let before = self.0.try_update(Ordering::AcqRel, Ordering::Acquire, may);
        before.ok().map(Self::of)
    }

    fn of(number: u8) -> Hold {
        match number {
            0 => Hold::None,
            1 => Hold::Cordoned,
            2 => Hold::Draining,
            3 => Hold::Leaving,
            _ => Hold::Gone,
        }
    }
}

/// A cost that somebody has measured and told a router that runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The cost.
    pub cost: PrefillCost,
    /// When, in seconds since 1970.
    pub at_unix_s: u64,
    /// Share of the variance that it explains.
    pub r_squared: f64,
}

/// An α that somebody has set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PinnedAlpha {
    /// The α, in ms per uncached token.
    pub alpha_ms_per_token: f64,
    /// By the router's clock; `None` for good.
    pub until: Option<Millis>,
}

//! What somebody has said of a worker, beside what it shows by itself.

use std::sync::atomic::{AtomicU8, Ordering};

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
}

/// A hold that every choice reads.
#[derive(Debug, Default)]
pub(super) struct AtomicHold(AtomicU8);

impl AtomicHold {
    pub(super) fn get(&self) -> Hold {
        Self::of(self.0.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, hold: Hold) -> Hold {
        Self::of(self.0.swap(hold as u8, Ordering::AcqRel))
    }

    fn of(number: u8) -> Hold {
        match number {
            0 => Hold::None,
            1 => Hold::Cordoned,
            _ => Hold::Draining,
        }
    }
}

/// An α that somebody has set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PinnedAlpha {
    /// The α, in ms per uncached token.
    pub alpha_ms_per_token: f64,
    /// By the router's clock; `None` for good.
    pub until: Option<Millis>,
}

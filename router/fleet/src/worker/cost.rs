//! The prefill cost of a worker: learned, measured, or with an α set by an operator.

use std::sync::atomic::Ordering;

use policy::cost::PrefillCost;
use policy::units::Millis;

use super::Worker;
use crate::overrides::{Measured, PinnedAlpha};

impl Worker {
    pub fn cost(&self) -> PrefillCost {
        self.load.lock().cost
    }

    /// Sets the learned prefill cost, and reprices the queued work.
    pub fn set_cost(&self, cost: PrefillCost) {
        let pinned = self.pinned.lock();
        self.take_cost(cost, pinned.as_ref());
    }

    /// Sets the learned time to first token beside queue and prefill.
    pub fn set_overhead(&self, overhead: Millis) {
        self.load.lock().overhead = overhead;
    }

    fn take_cost(&self, learned: PrefillCost, pinned: Option<&PinnedAlpha>) {
        let mut load = self.load.lock();
        load.learned = learned;
        let cost = PrefillCost {
            alpha_ms_per_token: pinned.map_or(learned.alpha_ms_per_token, |pinned| pinned.alpha_ms_per_token),
            ..learned
        };
        if cost != load.cost {
            let factor = cost.times_as_long_as(&load.cost, load.utilisation.mean_work());
            load.pending.repriced(factor);
            load.cost = cost;
        }
    }

    /// Sets a measured prefill cost.
    pub fn calibrated(&self, measured: Measured) {
        *self.measured.lock() = Some(measured);
        self.set_cost(measured.cost);
    }

    /// Returns the cost measured since the router's start.
    pub fn calibration(&self) -> Option<Measured> {
        *self.measured.lock()
    }

    /// Overrides α until the pin expires, or removes the override. Returns the previous override.
    pub fn pin_alpha(&self, pin: Option<PinnedAlpha>) -> Option<PinnedAlpha> {
        self.replace_pin(&mut self.pinned.lock(), pin)
    }

    /// Removes an override of α that has expired, and returns it.
    pub fn unpin_due(&self, now: Millis) -> Option<PinnedAlpha> {
        if !self.is_pinned.load(Ordering::Acquire) {
            return None;
        }
        // Checked and removed under one lock, since an operator may set another one meanwhile.
        let mut pinned = self.pinned.lock();
        let until = pinned.and_then(|pinned| pinned.until)?;
        if until > now {
            return None;
        }
        self.replace_pin(&mut pinned, None)
    }

    fn replace_pin(&self, pinned: &mut Option<PinnedAlpha>, pin: Option<PinnedAlpha>) -> Option<PinnedAlpha> {
        let learned = self.load.lock().learned;
        self.take_cost(learned, pin.as_ref());
        self.is_pinned.store(pin.is_some(), Ordering::Release);
        std::mem::replace(pinned, pin)
    }

    /// Returns the override of α.
    pub fn pinned_alpha(&self) -> Option<PinnedAlpha> {
        if !self.is_pinned.load(Ordering::Acquire) {
            return None;
        }
        *self.pinned.lock()
    }
}

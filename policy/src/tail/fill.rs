//! Cache fill rate: the lifetime of an unused copy and the tokens that a turn stores.

use std::collections::VecDeque;

use crate::units::{Millis, Tokens};

const MEMORY: usize = 2_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Fill {
    /// Capacity of all caches, in tokens.
    pub(super) room: f64,
    stored: VecDeque<(Millis, u64)>,
    sum: u64,
}

impl Fill {
    pub(super) fn prompt(&mut self, now: Millis, uncached: Tokens) {
        self.stored.push_back((now, uncached.0));
        self.sum += uncached.0;
        if self.stored.len() > MEMORY
            && let Some((_, oldest)) = self.stored.pop_front()
        {
            self.sum -= oldest;
        }
    }

    pub(super) fn response(&mut self, response: Tokens) {
        if let Some((_, last)) = self.stored.back_mut() {
            *last += response.0;
            self.sum += response.0;
        }
    }

    /// Returns how long an unused copy stays in an LRU cache: the time in which the fleet stores what all caches hold.
    pub(super) fn lifetime(&self) -> Option<Millis> {
        let (&(first, _), &(last, _)) = (self.stored.front()?, self.stored.back()?);
        let span = last.saturating_sub(first).0.max(1.0);
        Some(Millis((self.room * span / (self.sum.max(1) as f64)).max(1_000.0)))
    }

    /// Returns the mean number of tokens that a turn stores: uncached prompt and response.
    pub(super) fn mean_stored(&self) -> f64 {
        self.sum as f64 / self.stored.len().max(1) as f64
    }
}

//! How fast caches fill: how long an unused copy stays, and how much room a turn takes.

use std::collections::VecDeque;

use crate::units::{Millis, Tokens};

/// Turns that are remembered.
const MEMORY: usize = 2_000;

/// What was stored lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Fill {
    /// Tokens of all caches.
    pub(super) room: f64,
    stored: VecDeque<(Millis, u64)>,
    sum: u64,
}

impl Fill {
    /// A prompt was computed, of which so many tokens were not cached.
    pub(super) fn prompt(&mut self, now: Millis, uncached: Tokens) {
        self.stored.push_back((now, uncached.0));
        self.sum += uncached.0;
        if self.stored.len() > MEMORY
            && let Some((_, oldest)) = self.stored.pop_front()
        {
            self.sum -= oldest;
        }
    }

    /// An answer joined the cache.
    pub(super) fn response(&mut self, response: Tokens) {
        if let Some((_, last)) = self.stored.back_mut() {
            *last += response.0;
            self.sum += response.0;
        }
    }

    /// How long an unused copy stays in an LRU cache: the time in which as much is stored as all caches hold.
    pub(super) fn lifetime(&self) -> Option<Millis> {
        let (&(first, _), &(last, _)) = (self.stored.front()?, self.stored.back()?);
        let span = last.saturating_sub(first).0.max(1.0);
        Some(Millis((self.room * span / (self.sum.max(1) as f64)).max(1_000.0)))
    }

    /// Tokens that a turn stores: what of its prompt was not cached, and its answer.
    pub(super) fn mean_stored(&self) -> f64 {
        self.sum as f64 / self.stored.len().max(1) as f64
    }
}

//! Tail-Optimized Belady: the hindsight optimum for TEL (paper, Theorem 1).
//!
//! No conversation keeps more than its budget with the *true* next prompt, `(L + Q − ξ)⁺`, nothing if it never returns;
//! beyond that the one whose next turn is furthest goes first. Within budgets every token saves one token of excess, so
//! this is Belady's problem again, with smaller items.
//!
//! Under optional caching a conversation is capped as soon as it was served. Under forced caching the turn just served
//! stays whole, so capping waits: free tokens are trimmed when room is needed, oldest conversation first, then furthest
//! first. Both are checked against an exact dynamic programme (`policy/tests/cache_theory.rs`).

use super::belady::Belady;
use super::{CacheConfig, CachePolicy, Future, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// Capped furthest in future.
#[derive(Clone, Debug)]
pub struct ToBelady {
    inner: Belady,
}

impl ToBelady {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig) -> Self {
        Self {
            inner: Belady::new(config),
        }
    }
}

impl CachePolicy for ToBelady {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.inner.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        let Belady { config, .. } = self.inner;
        let slot = self.inner.touch(turn);
        let Belady { lengths, horizon, .. } = &mut self.inner;
        if let Some(slot) = slot {
            let budget = match turn.future {
                Future::Next { prompt, .. } => config.budget(turn.length, prompt),
                Future::Unknown => config.budget(turn.length, config.next_prompt),
                Future::Last => 0,
            };
            if config.forced {
                lengths.set_budget(slot, budget);
                horizon.trim_free(lengths, slot);
            } else {
                horizon.cut(lengths, slot, budget);
            }
        }
        horizon.evict(lengths, slot.filter(|_| config.forced));
    }

    fn used(&self) -> Tokens {
        self.inner.used()
    }

    fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.inner.dump()
    }

    fn check(&self) -> Result<(), String> {
        self.inner.check_both()
    }
}

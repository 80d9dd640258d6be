//! Tail-Optimized Belady: the hindsight optimum for TEL (paper, Theorem 1).
//!
//! No conversation keeps more than its budget with the *true* next prompt, `(L + Q − ξ)⁺`, or anything if it never
//! returns; beyond that the furthest next turn is evicted first. Within budgets every token saves one token of excess,
//! so this is Belady's problem with smaller items. Under optional caching a conversation is capped as soon as it was
//! served; under forced caching free tokens are trimmed only when room is needed, oldest conversation first. Both are
//! checked against an exact dynamic programme (`research/tests/cache_theory.rs`).

use std::collections::BTreeSet;

use super::belady::Belady;
use super::lengths::SlotId;
use super::{CacheConfig, CachePolicy, Future, Served, residency_of};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Furthest in future, within TEL-safe budgets.
#[derive(Clone, Debug)]
pub struct ToBelady {
    inner: Belady,
    capped: Capped,
}

/// The conversations with tokens past the budget, by age, under forced caching.
#[derive(Clone, Debug, Default)]
struct Capped {
    order: BTreeSet<(u64, SlotId)>,
    states: Vec<(u64, u64)>,
    served: u64,
}

impl Capped {
    fn note(&mut self, slot: SlotId, budget: u64) {
        if self.states.len() <= slot as usize {
            self.states.resize(slot as usize + 1, (0, 0));
        }
        self.served += 1;
        let before = std::mem::replace(&mut self.states[slot as usize], (self.served, budget));
        self.order.remove(&(before.0, slot));
        self.order.insert((self.served, slot));
    }

    fn trim(&mut self, inner: &mut Belady, spared: SlotId) {
        while !inner.lengths.fits() {
            let Some(&(served, slot)) = self.order.first().filter(|(_, slot)| *slot != spared) else {
                return;
            };
            let (resident, budget) = (inner.lengths.resident_at(slot), self.states[slot as usize].1);
            let keep = resident.saturating_sub(inner.lengths.excess()).max(budget);
            if keep < resident {
                inner.horizon.cut(&mut inner.lengths, slot, keep);
            }
            if keep <= budget {
                // Nothing free is left, or the conversation has been evicted.
                self.order.remove(&(served, slot));
            }
        }
    }
}

impl ToBelady {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig) -> Self {
        Self {
            inner: Belady::new(config),
            capped: Capped::default(),
        }
    }
}

impl CachePolicy for ToBelady {
    residency_of!(inner);

    fn served(&mut self, turn: &Served) {
        let Belady { config, .. } = self.inner;
        let slot = self.inner.touch(turn);
        if let Some(slot) = slot {
            let budget = match turn.future {
                Future::Next { prompt, .. } => config.budget(turn.length, prompt),
                Future::Unknown => config.budget(turn.length, config.next_prompt),
                Future::Last => 0,
            };
            if config.forced {
                self.capped.note(slot, budget);
                self.capped.trim(&mut self.inner, slot);
            } else {
                let Belady { lengths, horizon, .. } = &mut self.inner;
                horizon.cut(lengths, slot, budget);
            }
        }
        let Belady { lengths, horizon, .. } = &mut self.inner;
        horizon.evict(lengths, slot.filter(|_| config.forced));
    }

    fn check(&self) -> Result<(), String> {
        self.inner.check_both()
    }
}

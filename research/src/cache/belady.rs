//! Belady's optimum for the mean: the conversation whose next turn is furthest in the future is evicted first.
//!
//! Every token saves the same time when its conversation returns, so only the time of return matters (Belady 1966; the
//! paper's Theorem 1 at ξ = 0). Conversations that never return are evicted first, from the oldest. Next turns are in
//! an ordered set, O(log n) per turn: a heap with lazy deletion would grow with the trace, since the entry that a turn
//! makes stale is the nearest one, which never comes to the top.

use std::collections::BTreeSet;

use super::lengths::{Lengths, SlotId};
use super::{CacheConfig, CachePolicy, Future, Served, residency_of};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Evicts the conversation whose next turn is furthest in the future.
#[derive(Clone, Debug)]
pub struct Belady {
    pub(super) lengths: Lengths,
    pub(super) config: CacheConfig,
    pub(super) horizon: Horizon,
}

/// Resident conversations by the position of their next turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Horizon {
    order: BTreeSet<(u64, SlotId)>,
    positions: Vec<u64>,
    served: u64,
}

impl Horizon {
    pub(super) fn set(&mut self, slot: SlotId, future: Future) {
        self.forget(slot);
        let position = match future {
            Future::Next { position, .. } => position,
            // Later than any turn; among those that never return, the oldest is evicted first.
            Future::Last | Future::Unknown => u64::MAX - self.served,
        };
        self.served += 1;
        let at = slot as usize;
        if self.positions.len() <= at {
            self.positions.resize(at + 1, u64::MAX);
        }
        self.positions[at] = position;
        self.order.insert((position, slot));
    }

    fn forget(&mut self, slot: SlotId) {
        if let Some(&position) = self.positions.get(slot as usize) {
            self.order.remove(&(position, slot));
        }
    }

    pub(super) fn evict(&mut self, lengths: &mut Lengths, spared: Option<SlotId>) {
        while !lengths.fits() {
            let victim = self
                .order
                .iter()
                .rev()
                .map(|entry| entry.1)
                .find(|slot| Some(*slot) != spared);
            let Some(slot) = victim.or(spared) else { return };
            if lengths.resident_at(slot) <= lengths.excess() {
                self.forget(slot);
            }
            lengths.cut_excess(slot, 0);
        }
    }

    pub(super) fn cut(&mut self, lengths: &mut Lengths, slot: SlotId, keep: u64) {
        if keep == 0 {
            self.forget(slot);
        }
        lengths.cut(slot, keep);
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}

impl Belady {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig) -> Self {
        Self {
            lengths: Lengths::new(&config),
            config,
            horizon: Horizon::default(),
        }
    }

    /// Makes a conversation resident and the youngest. `None` if the turn has no full block.
    pub(super) fn touch(&mut self, turn: &Served) -> Option<SlotId> {
        let before = self.lengths.slot(turn.conversation);
        let slot = self.lengths.touch(turn.conversation, turn.length);
        match (before, slot) {
            (Some(gone), None) => self.horizon.forget(gone),
            (_, Some(slot)) => self.horizon.set(slot, turn.future),
            (None, None) => {}
        }
        slot
    }

    pub(super) fn check_both(&self) -> Result<(), String> {
        self.lengths.check()?;
        let (resident, known) = (self.lengths.len(), self.horizon.len());
        if resident == known {
            Ok(())
        } else {
            Err(format!("{resident} resident, {known} with a next turn"))
        }
    }
}

impl CachePolicy for Belady {
    residency_of!(lengths);

    fn served(&mut self, turn: &Served) {
        let slot = self.touch(turn);
        self.horizon
            .evict(&mut self.lengths, slot.filter(|_| self.config.forced));
    }

    fn check(&self) -> Result<(), String> {
        self.check_both()
    }
}

//! Conversations ordered by a rank that is fixed while they are untouched.

use std::collections::BTreeSet;

use super::CacheConfig;
use super::lengths::{Lengths, SlotId};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// A real number as an integer of the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u64);

impl Rank {
    pub(super) fn of(value: f64) -> Self {
        let bits = value.to_bits();
        Self(if bits >> 63 == 1 { !bits } else { bits | (1 << 63) })
    }
}

/// Resident conversations by rank, least first; ties by age, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    pub(super) lengths: Lengths,
    order: BTreeSet<(Rank, u64, SlotId)>,
    states: Vec<(Rank, u64)>,
    served: u64,
}

impl Ranked {
    pub(super) fn new(config: &CacheConfig) -> Self {
        Self {
            lengths: Lengths::new(config),
            order: BTreeSet::new(),
            states: Vec::new(),
            served: 0,
        }
    }

    pub(super) fn touch(&mut self, id: ConversationId, length: Tokens, rank: f64) -> Option<SlotId> {
        if let Some(slot) = self.lengths.slot(id) {
            self.delist(slot);
        }
        let slot = self.lengths.touch(id, length)?;
        self.served += 1;
        if self.states.len() <= slot as usize {
            self.states.resize(slot as usize + 1, (Rank(0), 0));
        }
        self.states[slot as usize] = (Rank::of(rank), self.served);
        self.order.insert((Rank::of(rank), self.served, slot));
        Some(slot)
    }

    pub(super) fn rerank(&mut self, rank: impl Fn(SlotId) -> f64) {
        let entries = std::mem::take(&mut self.order).into_iter();
        self.order = entries
            .map(|(_, served, slot)| {
                let rank = Rank::of(rank(slot));
                self.states[slot as usize].0 = rank;
                (rank, served, slot)
            })
            .collect();
    }

    /// Returns the conversation of least rank, and the spared one last.
    pub(super) fn victim(&self, spared: Option<SlotId>) -> Option<SlotId> {
        self.order
            .iter()
            .map(|entry| entry.2)
            .find(|slot| Some(*slot) != spared)
            .or(spared)
    }

    pub(super) fn cut(&mut self, slot: SlotId, keep: u64) {
        if keep == 0 {
            self.delist(slot);
        }
        self.lengths.cut(slot, keep);
    }

    fn delist(&mut self, slot: SlotId) {
        let (rank, served) = self.states[slot as usize];
        self.order.remove(&(rank, served, slot));
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.lengths.check()?;
        let (resident, ranked) = (self.lengths.len(), self.order.len());
        if resident == ranked {
            Ok(())
        } else {
            Err(format!("{resident} resident, {ranked} ranked"))
        }
    }
}

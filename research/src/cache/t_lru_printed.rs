//! Algorithm 1 of the paper to the letter: one unit per conversation per overflow, and `≥`.
//!
//! ```text
//! if Σ X > C: foreach i: if X_i ≥ L_i + Q̂_i − ξ: X_i ← X_i − 1; if Σ X ≤ C: return
//! while Σ X > C: X_j ← X_j − 1 for j with the oldest last turn among X_j ≥ 1
//! ```
//! The order of `foreach` is not specified; oldest first here. Kept for comparison only: [`super::t_lru`] explains why
//! both details are wrong. A pass costs one step per token trimmed, not per conversation cut.

use std::collections::BTreeSet;

use super::lengths::{Lengths, SlotId};
use super::{CacheConfig, CachePolicy, Served, residency_of};
use policy::ids::ConversationId;
use policy::units::Tokens;

/// Tail-Optimized LRU as printed.
#[derive(Clone, Debug)]
pub struct TLruPrinted {
    lengths: Lengths,
    config: CacheConfig,
    order: BTreeSet<(u64, SlotId)>,
    candidates: BTreeSet<(u64, SlotId)>,
    /// By slot: the number of the conversation's last turn, and the number of tokens below which the conversation is no
    /// candidate.
    states: Vec<(u64, u64)>,
    served: u64,
}

impl TLruPrinted {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig) -> Self {
        Self {
            lengths: Lengths::new(&config),
            config,
            order: BTreeSet::new(),
            candidates: BTreeSet::new(),
            states: Vec::new(),
            served: 0,
        }
    }

    fn enlist(&mut self, slot: SlotId, length: Tokens) {
        let unit = self.config.block();
        let least = self.config.budget(length, self.config.next_prompt).max(unit);
        if self.states.len() <= slot as usize {
            self.states.resize(slot as usize + 1, (0, 0));
        }
        self.delist(slot);
        self.states[slot as usize] = (self.served, least);
        self.order.insert((self.served, slot));
        if self.lengths.resident_at(slot) >= least {
            self.candidates.insert((self.served, slot));
        }
    }

    fn delist(&mut self, slot: SlotId) {
        let entry = (self.states[slot as usize].0, slot);
        self.order.remove(&entry);
        self.candidates.remove(&entry);
    }

    fn shave(&mut self, spared: Option<SlotId>) {
        let unit = self.config.block();
        let mut after = None;
        while !self.lengths.fits() {
            let next = match after {
                None => self.candidates.first(),
                Some(last) => self
                    .candidates
                    .range((std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded))
                    .next(),
            };
            let Some(&(at, slot)) = next.filter(|(_, slot)| Some(*slot) != spared) else {
                return;
            };
            after = Some((at, slot));
            let keep = self.lengths.resident_at(slot).saturating_sub(unit);
            self.cut(at, slot, keep);
        }
    }

    fn cut(&mut self, at: u64, slot: SlotId, keep: u64) {
        self.lengths.cut(slot, keep);
        if keep < self.states[slot as usize].1 {
            self.candidates.remove(&(at, slot));
        }
        if keep == 0 {
            self.order.remove(&(at, slot));
        }
    }
}

impl CachePolicy for TLruPrinted {
    residency_of!(lengths);

    fn served(&mut self, turn: &Served) {
        self.served += 1;
        let before = self.lengths.slot(turn.conversation);
        match (before, self.lengths.touch(turn.conversation, turn.length)) {
            (_, Some(slot)) => {
                self.enlist(slot, turn.length);
                self.shave(self.config.forced.then_some(slot));
            }
            (Some(gone), None) => self.delist(gone),
            (None, None) => {}
        }
        while !self.lengths.fits() {
            let Some(&(at, slot)) = self.order.first() else {
                return;
            };
            let keep = self
                .lengths
                .resident_at(slot)
                .saturating_sub(self.lengths.excess());
            self.cut(at, slot, keep);
        }
    }

    fn check(&self) -> Result<(), String> {
        self.lengths.check()?;
        let (resident, listed) = (self.lengths.len(), self.order.len());
        if resident != listed {
            return Err(format!("{resident} resident, {listed} listed"));
        }
        match self.candidates.difference(&self.order).next() {
            Some((_, slot)) => Err(format!("slot {slot} is empty and a candidate")),
            None => Ok(()),
        }
    }
}

//! Resident prefixes by length, by recency, with a cursor at the oldest free token.
//!
//! One doubly linked list threaded through one slab: a turn's conversation moves to the young end, victims come off the
//! old one. Free tokens need no list of their own. They are trimmed oldest conversation first, and a conversation's
//! budget changes only when it becomes the youngest; so whatever is older than the last one trimmed has none left, and
//! a cursor into the recency list knows where the next ones are. It passes a conversation once per turn of that
//! conversation: O(1) amortised. A second list through the free ones was tried first, and cost more.
//!
//! A conversation without resident tokens has no slot: memory follows the cache, not the trace.

use rustc_hash::FxHashMap;

use super::CacheConfig;
use crate::ids::ConversationId;
use crate::units::Tokens;

/// A slot's number. Stable while its conversation has resident tokens.
pub(super) type SlotId = u32;

const NIL: SlotId = u32::MAX;

#[derive(Clone, Debug)]
struct Slot {
    id: ConversationId,
    resident: u64,
    budget: u64,
    older: SlotId,
    younger: SlotId,
}

impl Slot {
    fn has_free(&self) -> bool {
        self.resident > self.budget
    }
}

/// The shared core of the length-based policies.
#[derive(Clone, Debug)]
pub(super) struct Lengths {
    capacity: u64,
    block: u64,
    used: u64,
    slots: Vec<Slot>,
    vacant: Vec<SlotId>,
    by_id: FxHashMap<ConversationId, SlotId>,
    oldest: SlotId,
    youngest: SlotId,
    /// Nothing older has free tokens; `NIL` when nobody has.
    cursor: SlotId,
}

impl Lengths {
    pub(super) fn new(config: &CacheConfig) -> Self {
        Self {
            capacity: config.capacity.0,
            block: u64::from(config.block_tokens.max(1)),
            used: 0,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_id: FxHashMap::default(),
            oldest: NIL,
            youngest: NIL,
            cursor: NIL,
        }
    }

    pub(super) fn resident(&self, id: ConversationId) -> Tokens {
        Tokens(
            self.by_id
                .get(&id)
                .map_or(0, |&slot| self.slots[slot as usize].resident),
        )
    }

    pub(super) fn slot(&self, id: ConversationId) -> Option<SlotId> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The oldest conversation, and its resident tokens.
    pub(super) fn oldest(&self) -> Option<(SlotId, u64)> {
        (self.oldest != NIL).then(|| (self.oldest, self.slots[self.oldest as usize].resident))
    }

    /// The oldest conversation with free tokens, and its budget.
    pub(super) fn oldest_free(&mut self) -> Option<(SlotId, u64)> {
        while self.cursor != NIL {
            let slot = &self.slots[self.cursor as usize];
            if slot.has_free() {
                return Some((self.cursor, slot.budget));
            }
            self.cursor = slot.younger;
        }
        None
    }

    pub(super) fn id_at(&self, slot: SlotId) -> ConversationId {
        self.slots[slot as usize].id
    }

    pub(super) fn resident_at(&self, slot: SlotId) -> u64 {
        self.slots[slot as usize].resident
    }

    pub(super) fn used(&self) -> Tokens {
        Tokens(self.used)
    }

    /// Tokens that must go, in whole blocks.
    pub(super) fn excess(&self) -> u64 {
        super::round_up(self.used.saturating_sub(self.capacity), self.block)
    }

    pub(super) fn fits(&self) -> bool {
        self.used <= self.capacity
    }

    /// Makes the conversation wholly resident, youngest, and without free tokens. `None` when it has no full block.
    pub(super) fn touch(&mut self, id: ConversationId, length: Tokens) -> Option<SlotId> {
        let resident = if self.block == 1 {
            length.0
        } else {
            length.0 - length.0 % self.block
        };
        let known = self.by_id.get(&id).copied();
        if resident == 0 {
            if let Some(slot) = known {
                self.cut(slot, 0);
            }
            return None;
        }
        let slot = match known {
            Some(slot) => {
                self.used -= self.slots[slot as usize].resident;
                self.unlink(slot);
                slot
            }
            None => self.allocate(id),
        };
        self.used += resident;
        let entry = &mut self.slots[slot as usize];
        entry.resident = resident;
        entry.budget = u64::MAX;
        self.link(slot);
        Some(slot)
    }

    /// Says that what is past `budget` is free. Only for the youngest slot, touched last.
    pub(super) fn set_budget(&mut self, slot: SlotId, budget: u64) {
        debug_assert_eq!(
            slot, self.youngest,
            "a budget is set when its conversation is served"
        );
        let entry = &mut self.slots[slot as usize];
        entry.budget = budget;
        if entry.has_free() && self.cursor == NIL {
            self.cursor = slot;
        }
    }

    /// Keeps at most the first `keep` tokens. The slot is gone when nothing is left.
    pub(super) fn cut(&mut self, slot: SlotId, keep: u64) {
        let entry = &mut self.slots[slot as usize];
        if keep >= entry.resident {
            return;
        }
        self.used -= entry.resident - keep;
        entry.resident = keep;
        if keep == 0 {
            self.release(slot);
        }
    }

    /// Takes what is missing from the slot's end, but leaves `keep` tokens.
    pub(super) fn cut_excess(&mut self, slot: SlotId, keep: u64) {
        let resident = self.slots[slot as usize].resident;
        self.cut(slot, resident.saturating_sub(self.excess()).max(keep));
    }

    /// Trims free tokens, oldest conversation first, until the cache fits or only `spared` has any.
    pub(super) fn trim_free(&mut self, spared: Option<SlotId>) {
        while !self.fits() {
            // Only the conversation just served is ever spared, and it is the youngest.
            let Some((slot, budget)) = self.oldest_free().filter(|(slot, _)| Some(*slot) != spared) else {
                return;
            };
            self.cut_excess(slot, budget);
        }
    }

    /// Trims every free token but those of `spared`, whether the room is needed or not.
    pub(super) fn trim_all_free(&mut self, spared: Option<SlotId>) {
        while let Some((slot, budget)) = self.oldest_free().filter(|(slot, _)| Some(*slot) != spared) {
            self.cut(slot, budget);
        }
    }

    /// Evicts from the end of the oldest conversation, then the next, until the cache fits. The youngest goes last,
    /// which under forced caching is all the protection that it needs.
    pub(super) fn evict_oldest(&mut self) {
        while !self.fits() {
            let slot = self.oldest;
            if slot == NIL {
                return;
            }
            self.cut_excess(slot, 0);
        }
    }

    pub(super) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        let mut all = Vec::with_capacity(self.by_id.len());
        let mut slot = self.oldest;
        while slot != NIL {
            let entry = &self.slots[slot as usize];
            all.push((entry.id, Tokens(entry.resident)));
            slot = entry.younger;
        }
        all
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let all = self.dump();
        let sum: u64 = all.iter().map(|(_, tokens)| tokens.0).sum();
        if sum != self.used {
            return Err(format!("{sum} tokens are resident, {} are counted", self.used));
        }
        if !self.fits() {
            return Err(format!("{} tokens in a cache of {}", self.used, self.capacity));
        }
        if all.len() != self.by_id.len() || all.len() + self.vacant.len() != self.slots.len() {
            return Err(format!(
                "{} listed, {} indexed, {} slots",
                all.len(),
                self.by_id.len(),
                self.slots.len()
            ));
        }
        for (id, &slot) in &self.by_id {
            let entry = &self.slots[slot as usize];
            let whole = entry.resident > 0 && entry.resident.is_multiple_of(self.block);
            if entry.id != *id || !whole {
                return Err(format!("slot {slot} of conversation {} is inconsistent", id.0));
            }
        }
        self.check_cursor()
    }

    fn check_cursor(&self) -> Result<(), String> {
        let mut slot = self.oldest;
        while slot != NIL && slot != self.cursor {
            let entry = &self.slots[slot as usize];
            if entry.has_free() {
                return Err(format!(
                    "free tokens of conversation {} are behind the cursor",
                    entry.id.0
                ));
            }
            slot = entry.younger;
        }
        if slot == self.cursor {
            Ok(())
        } else {
            Err("the cursor is nowhere".to_owned())
        }
    }

    fn allocate(&mut self, id: ConversationId) -> SlotId {
        let fresh = Slot {
            id,
            resident: 0,
            budget: u64::MAX,
            older: NIL,
            younger: NIL,
        };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = fresh;
                slot
            }
            None => {
                self.slots.push(fresh);
                (self.slots.len() - 1) as SlotId
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    fn release(&mut self, slot: SlotId) {
        self.unlink(slot);
        self.by_id.remove(&self.slots[slot as usize].id);
        self.vacant.push(slot);
    }

    fn link(&mut self, slot: SlotId) {
        let older = self.youngest;
        let entry = &mut self.slots[slot as usize];
        (entry.older, entry.younger) = (older, NIL);
        match older {
            NIL => self.oldest = slot,
            _ => self.slots[older as usize].younger = slot,
        }
        self.youngest = slot;
    }

    fn unlink(&mut self, slot: SlotId) {
        let Slot { older, younger, .. } = self.slots[slot as usize];
        if self.cursor == slot {
            self.cursor = younger;
        }
        match older {
            NIL => self.oldest = younger,
            _ => self.slots[older as usize].younger = younger,
        }
        match younger {
            NIL => self.youngest = older,
            _ => self.slots[younger as usize].older = older,
        }
    }
}

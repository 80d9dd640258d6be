//! Resident prefixes by length, in two orders: by recency, and by recency among those with free tokens.
//!
//! Both orders are doubly linked lists threaded through one slab, so that everything a turn does is O(1): its
//! conversation moves to the young end of both, and victims come off the old ends. A trim that cuts into a
//! conversation either satisfies the cache or takes the conversation off the list, so trims are paid by turns.
//!
//! A conversation without resident tokens has no slot: memory follows the cache, not the trace.

use rustc_hash::FxHashMap;

use super::CacheConfig;
use crate::ids::ConversationId;
use crate::units::Tokens;

/// A slot's number. Stable while its conversation has resident tokens.
pub(super) type SlotId = u32;

const NIL: SlotId = u32::MAX;

/// The two orders.
#[derive(Clone, Copy)]
enum Order {
    Recency = 0,
    Free = 1,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: SlotId,
    younger: SlotId,
}

const UNLINKED: Link = Link {
    older: NIL,
    younger: NIL,
};

#[derive(Clone, Debug)]
struct Slot {
    id: ConversationId,
    resident: u64,
    budget: u64,
    links: [Link; 2],
    has_free: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: SlotId,
    youngest: SlotId,
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
    ends: [Ends; 2],
}

impl Lengths {
    pub(super) fn new(config: &CacheConfig) -> Self {
        let nobody = Ends {
            oldest: NIL,
            youngest: NIL,
        };
        Self {
            capacity: config.capacity.0,
            block: u64::from(config.block_tokens.max(1)),
            used: 0,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_id: FxHashMap::default(),
            ends: [nobody; 2],
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

    /// The oldest conversation with free tokens, and its budget.
    pub(super) fn oldest_free(&self) -> Option<(SlotId, u64)> {
        let slot = self.ends[Order::Free as usize].oldest;
        (slot != NIL).then(|| (slot, self.slots[slot as usize].budget))
    }

    pub(super) fn resident_at(&self, slot: SlotId) -> u64 {
        self.slots[slot as usize].resident
    }

    pub(super) fn used(&self) -> Tokens {
        Tokens(self.used)
    }

    /// Tokens that must go, in whole blocks.
    pub(super) fn excess(&self) -> u64 {
        self.used.saturating_sub(self.capacity).div_ceil(self.block) * self.block
    }

    pub(super) fn fits(&self) -> bool {
        self.used <= self.capacity
    }

    /// Makes the conversation wholly resident, youngest, and without free tokens. `None` when it has no full block.
    pub(super) fn touch(&mut self, id: ConversationId, length: Tokens) -> Option<SlotId> {
        let resident = length.0 - length.0 % self.block;
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
                self.unlink(slot, Order::Recency);
                self.drop_free_mark(slot);
                slot
            }
            None => self.allocate(id),
        };
        self.used += resident;
        let entry = &mut self.slots[slot as usize];
        entry.resident = resident;
        entry.budget = u64::MAX;
        self.link(slot, Order::Recency);
        Some(slot)
    }

    /// Marks what is past `budget` as free. Only for the slot touched last: it joins the young end.
    pub(super) fn set_budget(&mut self, slot: SlotId, budget: u64) {
        self.drop_free_mark(slot);
        let entry = &mut self.slots[slot as usize];
        entry.budget = budget;
        if entry.resident > budget {
            entry.has_free = true;
            self.link(slot, Order::Free);
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
        if keep <= entry.budget {
            self.drop_free_mark(slot);
        }
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
            let slot = self.ends[Order::Free as usize].oldest;
            // Only the conversation just served is ever spared, and it is the youngest.
            if slot == NIL || Some(slot) == spared {
                return;
            }
            self.cut_excess(slot, self.slots[slot as usize].budget);
        }
    }

    /// Trims every free token but those of `spared`, whether the room is needed or not.
    pub(super) fn trim_all_free(&mut self, spared: Option<SlotId>) {
        loop {
            let slot = self.ends[Order::Free as usize].oldest;
            if slot == NIL || Some(slot) == spared {
                return;
            }
            self.cut(slot, self.slots[slot as usize].budget);
        }
    }

    /// One pass over the conversations with free tokens, oldest first, one block from each, until the cache fits.
    pub(super) fn shave_free(&mut self, spared: Option<SlotId>) {
        let mut slot = self.ends[Order::Free as usize].oldest;
        while slot != NIL && Some(slot) != spared && !self.fits() {
            let entry = &self.slots[slot as usize];
            let (next, keep) = (
                entry.links[Order::Free as usize].younger,
                entry.resident.saturating_sub(self.block),
            );
            self.cut(slot, keep);
            slot = next;
        }
    }

    /// Evicts from the end of the oldest conversation, then the next, until the cache fits. The youngest goes last,
    /// which under forced caching is all the protection that it needs.
    pub(super) fn evict_oldest(&mut self) {
        while !self.fits() {
            let slot = self.ends[Order::Recency as usize].oldest;
            if slot == NIL {
                return;
            }
            self.cut_excess(slot, 0);
        }
    }

    pub(super) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        let mut all = Vec::with_capacity(self.by_id.len());
        let mut slot = self.ends[Order::Recency as usize].oldest;
        while slot != NIL {
            let entry = &self.slots[slot as usize];
            all.push((entry.id, Tokens(entry.resident)));
            slot = entry.links[Order::Recency as usize].younger;
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
            let wrong = entry.id != *id || entry.resident == 0 || !entry.resident.is_multiple_of(self.block);
            if wrong || entry.has_free != (entry.resident > entry.budget) {
                return Err(format!("slot {slot} of conversation {} is inconsistent", id.0));
            }
        }
        Ok(())
    }

    fn allocate(&mut self, id: ConversationId) -> SlotId {
        let fresh = Slot {
            id,
            resident: 0,
            budget: u64::MAX,
            links: [UNLINKED; 2],
            has_free: false,
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
        self.unlink(slot, Order::Recency);
        self.by_id.remove(&self.slots[slot as usize].id);
        self.vacant.push(slot);
    }

    fn drop_free_mark(&mut self, slot: SlotId) {
        if std::mem::take(&mut self.slots[slot as usize].has_free) {
            self.unlink(slot, Order::Free);
        }
    }

    fn link(&mut self, slot: SlotId, order: Order) {
        let at = order as usize;
        let older = self.ends[at].youngest;
        self.slots[slot as usize].links[at] = Link { older, younger: NIL };
        match older {
            NIL => self.ends[at].oldest = slot,
            _ => self.slots[older as usize].links[at].younger = slot,
        }
        self.ends[at].youngest = slot;
    }

    fn unlink(&mut self, slot: SlotId, order: Order) {
        let at = order as usize;
        let Link { older, younger } = std::mem::replace(&mut self.slots[slot as usize].links[at], UNLINKED);
        match older {
            NIL => self.ends[at].oldest = younger,
            _ => self.slots[older as usize].links[at].younger = younger,
        }
        match younger {
            NIL => self.ends[at].youngest = older,
            _ => self.slots[younger as usize].links[at].older = older,
        }
    }
}

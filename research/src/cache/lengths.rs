//! Resident prefixes by length, in stable slots, for the policies that rank conversations by something other than
//! recency: their orders and tables are indexed by slot. The LRU family has [`super::recency`]. A conversation without
//! resident tokens has no slot, so memory is bounded by the cache, not the trace.

use rustc_hash::FxHashMap;

use super::CacheConfig;
use policy::ids::ConversationId;
use policy::units::Tokens;

/// A slot's number. Stable while its conversation has resident tokens.
pub(super) type SlotId = u32;

#[derive(Clone, Debug)]
struct Slot {
    id: ConversationId,
    resident: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Lengths {
    capacity: u64,
    block: u64,
    used: u64,
    slots: Vec<Slot>,
    vacant: Vec<SlotId>,
    by_id: FxHashMap<ConversationId, SlotId>,
}

impl Lengths {
    pub(super) fn new(config: &CacheConfig) -> Self {
        Self {
            capacity: config.capacity.0,
            block: config.block(),
            used: 0,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_id: FxHashMap::default(),
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

    pub(super) fn id_at(&self, slot: SlotId) -> ConversationId {
        self.slots[slot as usize].id
    }

    pub(super) fn resident_at(&self, slot: SlotId) -> u64 {
        self.slots[slot as usize].resident
    }

    pub(super) fn used(&self) -> Tokens {
        Tokens(self.used)
    }

    pub(super) fn excess(&self) -> u64 {
        super::round_up(self.used.saturating_sub(self.capacity), self.block)
    }

    pub(super) fn fits(&self) -> bool {
        self.used <= self.capacity
    }

    /// Makes the conversation wholly resident. `None` if it has no full block.
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
                slot
            }
            None => self.allocate(id),
        };
        self.used += resident;
        self.slots[slot as usize].resident = resident;
        Some(slot)
    }

    /// Keeps at most the first `keep` tokens. Without tokens the slot is freed.
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

    /// Evicts the excess from the slot's end, but leaves `keep` tokens.
    pub(super) fn cut_excess(&mut self, slot: SlotId, keep: u64) {
        let resident = self.slots[slot as usize].resident;
        self.cut(slot, resident.saturating_sub(self.excess()).max(keep));
    }

    pub(super) fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        let entry = |(id, slot): (&ConversationId, &SlotId)| (*id, Tokens(self.resident_at(*slot)));
        self.by_id.iter().map(entry).collect()
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
        if all.len() + self.vacant.len() != self.slots.len() {
            let (indexed, vacant, slots) = (all.len(), self.vacant.len(), self.slots.len());
            return Err(format!("{indexed} indexed, {vacant} vacant, {slots} slots"));
        }
        for (id, &slot) in &self.by_id {
            let entry = &self.slots[slot as usize];
            let whole = entry.resident > 0 && entry.resident.is_multiple_of(self.block);
            if entry.id != *id || !whole {
                return Err(format!("slot {slot} of conversation {} is inconsistent", id.0));
            }
        }
        Ok(())
    }

    fn allocate(&mut self, id: ConversationId) -> SlotId {
        let fresh = Slot { id, resident: 0 };
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
        self.by_id.remove(&self.slots[slot as usize].id);
        self.vacant.push(slot);
    }
}

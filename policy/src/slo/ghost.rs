//! Caches of lengths under budgets: what a worker would hold if it had been told something else.
//!
//! T-LRU with a budget per turn: tokens past the budget a conversation was served with go first, oldest served first;
//! then the least recently used, from the end. They hold no tokens, only how many there would be, so nine of them run
//! beside the real thing.
//!
//! All of them serve the same turns, so they share one table and one order of ages, and a turn is one lookup for all. What
//! an arm holds of a conversation only shrinks until that is served again, so where the next to go stands moves one way:
//! two places per arm, O(1) per turn. Rejected: an ordered map for each arm, which was a twentieth of what a request cost.

use rustc_hash::FxHashMap;

/// Conversations that are tracked at most; more are thinned out by the caller's sampling.
pub(super) const MAX_CONVERSATIONS: usize = 4096;

/// No conversation.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Entry<const ARMS: usize> {
    conversation: u64,
    /// Served just before it, and just after.
    older: u32,
    newer: u32,
    resident: [u64; ARMS],
    budget: [u64; ARMS],
}

/// One cache of lengths per arm; tokens in and out.
#[derive(Clone, Debug)]
pub struct Ghosts<const ARMS: usize> {
    capacity: u64,
    used: [u64; ARMS],
    by_conversation: FxHashMap<u64, u32>,
    entries: Vec<Entry<ARMS>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    /// Whatever was served before this holds nothing.
    holding: [u32; ARMS],
    /// Whatever was served before this holds no more than its budget.
    beyond: [u32; ARMS],
}

impl<const ARMS: usize> Ghosts<ARMS> {
    /// Empty ones, each with room for so many tokens.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: [0; ARMS],
            by_conversation: FxHashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
            holding: [NONE; ARMS],
            beyond: [NONE; ARMS],
        }
    }

    /// Tokens of a conversation that each arm holds.
    #[must_use]
    pub fn resident(&self, conversation: u64) -> [u64; ARMS] {
        let slot = self.by_conversation.get(&conversation);
        slot.map_or([0; ARMS], |&slot| self.at(slot).resident)
    }

    /// Tokens that each arm holds in all; never more than the capacity.
    #[must_use]
    pub fn used(&self) -> [u64; ARMS] {
        self.used
    }

    /// A conversation was served to this `length`; what lies past an arm's budget may go first there.
    pub fn served(&mut self, conversation: u64, length: u64, budget: [u64; ARMS]) {
        self.forget(conversation);
        let entry = Entry {
            conversation,
            older: self.newest,
            newer: NONE,
            resident: [length; ARMS],
            budget,
        };
        let slot = self.store(entry);
        for arm in 0..ARMS {
            self.used[arm] += length;
            self.evict(arm);
        }
        // Who holds nothing anywhere, or is one too many.
        while self.oldest != slot
            && (self.by_conversation.len() > MAX_CONVERSATIONS
                || self.at(self.oldest).resident.iter().all(|&held| held == 0))
        {
            self.forget(self.at(self.oldest).conversation);
        }
    }

    /// Each arm goes on from what another one holds.
    pub fn remap(&mut self, from: &[usize; ARMS]) {
        for entry in &mut self.entries {
            entry.resident = from.map(|from| entry.resident[from]);
            entry.budget = from.map(|from| entry.budget[from]);
        }
        self.used = from.map(|from| self.used[from]);
        self.holding = from.map(|from| self.holding[from]);
        self.beyond = from.map(|from| self.beyond[from]);
    }

    /// Puts a conversation at the fresh end.
    fn store(&mut self, entry: Entry<ARMS>) -> u32 {
        let (conversation, older) = (entry.conversation, entry.older);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.by_conversation.insert(conversation, slot);
        if older == NONE {
            self.oldest = slot;
        } else {
            self.at_mut(older).newer = slot;
        }
        self.newest = slot;
        for place in self.holding.iter_mut().chain(&mut self.beyond) {
            if *place == NONE {
                *place = slot;
            }
        }
        slot
    }

    /// A conversation is gone.
    fn forget(&mut self, conversation: u64) {
        let Some(slot) = self.by_conversation.remove(&conversation) else {
            return;
        };
        let Entry {
            older,
            newer,
            resident,
            ..
        } = *self.at(slot);
        for (used, held) in self.used.iter_mut().zip(resident) {
            *used -= held;
        }
        for place in self.holding.iter_mut().chain(&mut self.beyond) {
            if *place == slot {
                *place = newer;
            }
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.at_mut(older).newer = newer;
        }
        if newer == NONE {
            self.newest = older;
        } else {
            self.at_mut(newer).older = older;
        }
        self.free.push(slot);
    }

    /// Trims an arm's conversations as far as needed.
    fn evict(&mut self, arm: usize) {
        while self.used[arm] > self.capacity && self.beyond[arm] != NONE {
            let budget = self.at(self.beyond[arm]).budget[arm];
            self.beyond[arm] = self.trim(arm, self.beyond[arm], budget);
        }
        while self.used[arm] > self.capacity && self.holding[arm] != NONE {
            self.holding[arm] = self.trim(arm, self.holding[arm], 0);
        }
    }

    /// Takes from a conversation what it holds past `floor`, as far as needed. Returns who is next.
    fn trim(&mut self, arm: usize, slot: u32, floor: u64) -> u32 {
        let over = self.used[arm].saturating_sub(self.capacity);
        let entry = self.at_mut(slot);
        let past = entry.resident[arm].saturating_sub(floor);
        let goes = over.min(past);
        entry.resident[arm] -= goes;
        let next = if goes == past { entry.newer } else { slot };
        self.used[arm] -= goes;
        next
    }

    fn at(&self, slot: u32) -> &Entry<ARMS> {
        &self.entries[slot as usize]
    }

    fn at_mut(&mut self, slot: u32) -> &mut Entry<ARMS> {
        &mut self.entries[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_lies_past_a_budget_goes_first_and_only_as_far_as_needed() {
        let mut ghosts = Ghosts::new(100);
        ghosts.served(1, 40, [40]);
        ghosts.served(2, 50, [20]);
        ghosts.served(3, 30, [30]);
        assert_eq!([1, 2, 3].map(|id| ghosts.resident(id)), [[40], [30], [30]]);
        ghosts.served(4, 25, [25]);
        assert_eq!(
            [1, 2, 3, 4].map(|id| ghosts.resident(id)),
            [[25], [20], [30], [25]]
        );
    }

    #[test]
    fn a_conversation_longer_than_the_cache_is_cut_to_it() {
        let mut ghosts = Ghosts::new(100);
        ghosts.served(1, 250, [250, 0]);
        assert_eq!((ghosts.resident(1), ghosts.used()), ([100; 2], [100; 2]));
    }

    #[test]
    fn more_conversations_than_are_tracked_leave_the_newest() {
        let mut ghosts = Ghosts::new(u64::MAX);
        let more = 10;
        for id in 0..MAX_CONVERSATIONS as u64 + more {
            ghosts.served(id, 2, [2]);
        }
        assert_eq!(ghosts.used(), [2 * MAX_CONVERSATIONS as u64]);
        assert_eq!([more - 1, more].map(|id| ghosts.resident(id)), [[0], [2]]);
        assert!(ghosts.entries.len() <= MAX_CONVERSATIONS + 1);
    }

    #[test]
    fn a_conversation_that_no_arm_holds_takes_no_place() {
        let mut ghosts = Ghosts::new(100);
        for id in 0..1000 {
            ghosts.served(id, 60, [60, 0]);
        }
        assert!(ghosts.entries.len() < 5, "{}", ghosts.entries.len());
    }

    proptest! {
        /// Beside twins that are lists and scan them, one for each arm; now and then arms go on from each other.
        #[test]
        fn they_hold_what_their_naive_twins_hold(
            turns in prop::collection::vec((0u64..12, 1u64..60, 0u64..60, 0u8..20), 1..200),
        ) {
            let mut ghosts = Ghosts::new(150);
            let mut twins: [Vec<(u64, u64, u64)>; 3] = Default::default();
            for (id, length, budget, remapped) in turns {
                if remapped == 0 {
                    ghosts.remap(&[1, 1, 0]);
                    twins = [1, 1, 0].map(|from: usize| twins[from].clone());
                }
                let budgets = [budget, budget / 2, 60];
                ghosts.served(id, length, budgets);
                for (arm, twin) in twins.iter_mut().enumerate() {
                    twin.retain(|entry| entry.0 != id);
                    twin.push((id, length, budgets[arm]));
                    let mut over = twin.iter().map(|entry| entry.1).sum::<u64>().saturating_sub(150);
                    for floored in [true, false] {
                        for entry in twin.iter_mut() {
                            let goes = over.min(entry.1.saturating_sub(if floored { entry.2 } else { 0 }));
                            entry.1 -= goes;
                            over -= goes;
                        }
                    }
                    twin.retain(|entry| entry.1 > 0);
                    for entry in twin.iter() {
                        prop_assert_eq!(ghosts.resident(entry.0)[arm], entry.1);
                    }
                    prop_assert_eq!(ghosts.used()[arm], twin.iter().map(|entry| entry.1).sum::<u64>());
                }
            }
        }
    }
}

//! A cache of lengths under budgets: what a worker would hold if it had been told something else.
//!
//! T-LRU with a budget per turn: tokens past the budget a conversation was served with go first, oldest served first;
//! then the least recently used, from the end. It holds no tokens, only how many there would be, so a dozen of them
//! run beside the real thing. An ordered map each, O(log n) per turn, off any request's path.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// Conversations that one ghost tracks at most; more are thinned out by the caller's sampling.
pub(super) const MAX_CONVERSATIONS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry {
    stamp: u64,
    resident: u64,
    budget: u64,
}

/// A cache of lengths; tokens in and out.
#[derive(Clone, Debug)]
pub struct Ghost {
    capacity: u64,
    used: u64,
    clock: u64,
    entries: FxHashMap<u64, Entry>,
    /// Stamps of all conversations, and of those that hold more than their budget.
    by_age: BTreeMap<u64, u64>,
    free: BTreeMap<u64, u64>,
}

impl Ghost {
    /// An empty one.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            clock: 0,
            entries: FxHashMap::default(),
            by_age: BTreeMap::new(),
            free: BTreeMap::new(),
        }
    }

    /// Tokens of a conversation that it holds.
    #[must_use]
    pub fn resident(&self, conversation: u64) -> u64 {
        self.entries.get(&conversation).map_or(0, |entry| entry.resident)
    }

    /// Tokens that it holds in all; never more than its capacity.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Conversations and what it holds of them, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.entries.iter().map(|(id, entry)| (*id, entry.resident))
    }

    /// A conversation was served to this `length`; what lies past `budget` may go first.
    pub fn served(&mut self, conversation: u64, length: u64, budget: u64) {
        self.forget(conversation);
        self.clock += 1;
        let stamp = self.clock;
        let entry = Entry {
            stamp,
            resident: length,
            budget,
        };
        self.entries.insert(conversation, entry);
        self.by_age.insert(stamp, conversation);
        if length > budget {
            self.free.insert(stamp, conversation);
        }
        self.used += length;
        while self.used > self.capacity {
            self.evict_one();
        }
        if self.entries.len() > MAX_CONVERSATIONS
            && let Some((_, &oldest)) = self.by_age.first_key_value()
        {
            self.forget(oldest);
        }
    }

    /// A conversation is gone.
    pub fn forget(&mut self, conversation: u64) {
        if let Some(entry) = self.entries.remove(&conversation) {
            self.by_age.remove(&entry.stamp);
            self.free.remove(&entry.stamp);
            self.used -= entry.resident;
        }
    }

    /// Trims one conversation as far as needed.
    fn evict_one(&mut self) {
        let over = self.used.saturating_sub(self.capacity);
        let (conversation, floored) = match (self.free.first_key_value(), self.by_age.first_key_value()) {
            (Some((_, id)), _) => (*id, true),
            (None, Some((_, id))) => (*id, false),
            (None, None) => {
                self.used = 0;
                return;
            }
        };
        let Some(entry) = self.entries.get_mut(&conversation) else {
            return;
        };
        let floor = if floored {
            entry.budget.min(entry.resident)
        } else {
            0
        };
        let goes = over.min(entry.resident - floor);
        entry.resident -= goes;
        self.used -= goes;
        let (stamp, left) = (entry.stamp, entry.resident);
        if left <= entry.budget {
            self.free.remove(&stamp);
        }
        if left == 0 {
            self.forget(conversation);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_lies_past_a_budget_goes_first_and_only_as_far_as_needed() {
        let mut ghost = Ghost::new(100);
        ghost.served(1, 40, 40);
        ghost.served(2, 50, 20);
        ghost.served(3, 30, 30);
        assert_eq!([1, 2, 3].map(|id| ghost.resident(id)), [40, 30, 30]);
        ghost.served(4, 25, 25);
        assert_eq!([1, 2, 3, 4].map(|id| ghost.resident(id)), [25, 20, 30, 25]);
    }

    #[test]
    fn a_conversation_longer_than_the_cache_is_cut_to_it() {
        let mut ghost = Ghost::new(100);
        ghost.served(1, 250, 250);
        assert_eq!((ghost.resident(1), ghost.used()), (100, 100));
    }

    proptest! {
        /// Beside a twin that is a list and scans it.
        #[test]
        fn it_holds_what_its_naive_twin_holds(turns in prop::collection::vec((0u64..12, 1u64..60, 0u64..60), 1..200)) {
            let mut ghost = Ghost::new(150);
            let mut twin: Vec<(u64, u64, u64)> = Vec::new();
            for (id, length, budget) in turns {
                ghost.served(id, length, budget);
                twin.retain(|entry| entry.0 != id);
                twin.push((id, length, budget));
                let mut over = twin.iter().map(|entry| entry.1).sum::<u64>().saturating_sub(150);
                for floored in [true, false] {
                    for entry in &mut twin {
                        let goes = over.min(entry.1.saturating_sub(if floored { entry.2 } else { 0 }));
                        entry.1 -= goes;
                        over -= goes;
                    }
                }
                twin.retain(|entry| entry.1 > 0);
                for entry in &twin {
                    prop_assert_eq!(ghost.resident(entry.0), entry.1);
                }
                prop_assert_eq!(ghost.used(), twin.iter().map(|entry| entry.1).sum::<u64>());
            }
        }
    }
}

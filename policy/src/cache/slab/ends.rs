//! The sorted ends of chains, for the orders other than LRU.

use super::{Band, History, Nodes, Order, Ranked};

impl Nodes {
    pub(in crate::cache) fn ordered(order: Order) -> Self {
        Self {
            order,
            ..Self::default()
        }
    }

    pub(in crate::cache) fn order(&self) -> Order {
        self.order
    }

    pub(in crate::cache) fn set_order(&mut self, order: Order) {
        self.order = order;
        self.ends.clear();
        if order != Order::Lru {
            let ends: Vec<u32> = self
                .in_band(Band::Lru)
                .filter(|&slot| self.is_leaf(slot))
                .collect();
            self.ends = ends.into_iter().map(|slot| self.ranked(slot)).collect();
        }
    }

    pub(super) fn ranked(&self, slot: u32) -> Ranked {
        let History { stored, uses } = self.histories[slot as usize];
        (self.order.rank(uses, stored, self.released(slot)), slot)
    }

    /// Resets a node and its descendants, all pinned, as if stored now, in the same order as before.
    pub(in crate::cache) fn begin_anew(&mut self, top: u32) {
        let mut slots = self.subtree(top);
        slots.sort_unstable_by_key(|&slot| self.histories[slot as usize].stored);
        for slot in slots {
            let stored = self.stores;
            self.stores += 1;
            self.histories[slot as usize] = History { stored, uses: 1 };
        }
    }

    /// Records whether a node of the LRU list is childless and stays in the list.
    pub(super) fn set_end(&mut self, slot: u32, is: bool) {
        if self.order != Order::Lru {
            let ranked = self.ranked(slot);
            if is {
                self.ends.insert(ranked);
            } else {
                self.ends.remove(&ranked);
            }
        }
    }

    /// Returns the LRU list in the order of eviction once the evict-first band is empty.
    #[cfg(test)]
    pub(in crate::cache) fn last_to_go(&self) -> Vec<u32> {
        if self.order == Order::Lru {
            return self.in_band(Band::Lru).collect();
        }
        // Blockers of a node are below it and in this list too.
        let mut below: rustc_hash::FxHashMap<u32, u32> = self
            .in_band(Band::Lru)
            .map(|slot| (slot, self.get(slot).blockers))
            .collect();
        let free = below.iter().filter(|&(_, &blockers)| blockers == 0);
        let mut ends: std::collections::BTreeSet<Ranked> = free.map(|(&slot, _)| self.ranked(slot)).collect();
        let mut order = Vec::with_capacity(below.len());
        while let Some((_, slot)) = ends.pop_first() {
            order.push(slot);
            let parent = self.get(slot).parent;
            if let Some(blockers) = below.get_mut(&parent) {
                *blockers -= 1;
                if *blockers == 0 {
                    ends.insert(self.ranked(parent));
                }
            }
        }
        order
    }
}

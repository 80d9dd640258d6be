//! The ends of chains, sorted, for the orders that no list keeps by itself.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::{Band, History, Nodes, Order, Ranked};

impl Nodes {
    /// No nodes, to go in this order.
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

    /// A node and all below it, which are pinned, count as stored now, in the order in which they were.
    pub(in crate::cache) fn begin_anew(&mut self, top: u32) {
        let mut slots = self.subtree(top);
        slots.sort_unstable_by_key(|&slot| self.histories[slot as usize].stored);
        for slot in slots {
            let stored = self.stores;
            self.stores += 1;
            self.histories[slot as usize] = History { stored, uses: 1 };
        }
    }

    /// A node that stands in the LRU list has nothing below it any more, or is about to leave the list.
    pub(super) fn is_end(&mut self, slot: u32, is: bool) {
        if self.order != Order::Lru {
            let ranked = self.ranked(slot);
            if is {
                self.ends.insert(ranked);
            } else {
                self.ends.remove(&ranked);
            }
        }
    }

    /// The LRU list in the order in which it would be evicted once the evict-first band is empty.
    pub(in crate::cache) fn last_to_go(&self) -> Vec<u32> {
        if self.order == Order::Lru {
            return self.in_band(Band::Lru).collect();
        }
        // What blocks a node is below it and in this list too.
        let mut below: FxHashMap<u32, u32> = self
            .in_band(Band::Lru)
            .map(|slot| (slot, self.get(slot).blockers))
            .collect();
        let free = below.iter().filter(|&(_, &blockers)| blockers == 0);
        let mut ends: BTreeSet<Ranked> = free.map(|(&slot, _)| self.ranked(slot)).collect();
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

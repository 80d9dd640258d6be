//! The invariants between operations.

use rustc_hash::FxHashMap;

use super::{Band, NONE, Nodes, Order};

impl Nodes {
    /// Checks links, counts and order; returns tokens used and pinned as counted from the nodes.
    pub(in crate::cache) fn invariants(&self) -> Result<(u64, u64), String> {
        if self.len() + self.free.len() != self.slots.len() || self.slots.len() != self.histories.len() {
            return Err(format!(
                "{} named + {} free of {}",
                self.len(),
                self.free.len(),
                self.slots.len()
            ));
        }
        let order: Vec<u32> = self
            .in_band(Band::EvictFirst)
            .chain(self.in_band(Band::Lru))
            .collect();
        let place: FxHashMap<u32, usize> = order.iter().enumerate().map(|(at, &slot)| (slot, at)).collect();
        if place.len() != order.len() {
            return Err("a node stands in the lists twice".to_owned());
        }
        let (mut used, mut pinned, mut evict_first, mut children) = (0, 0, 0, 0);
        for slot in self.all() {
            let node = self.get(slot);
            let tokens = u64::from(node.tokens);
            used += tokens;
            pinned += if node.pins > 0 { tokens } else { 0 };
            evict_first += if node.band == Band::EvictFirst { tokens } else { 0 };
            if self.find(node.hash) != Some(slot) || (node.pins > 0) != (node.band == Band::Held) {
                return Err(format!("{node:?} is named otherwise, or both held and in a band"));
            }
            if place.contains_key(&slot) == (node.pins > 0) {
                return Err(format!("{node:?} is pinned and listed, or neither"));
            }
            if node.pins == 0 && !node.ran {
                return Err(format!("{node:?} is there and nobody brought it"));
            }
            let mut blockers = 0;
            for child in self.children(slot) {
                children += 1;
                let below = self.get(child);
                blockers += u32::from(below.band != Band::EvictFirst);
                if below.parent != slot || self.find(below.hash) != Some(child) {
                    return Err(format!("{below:?} is a stranger below {node:?}"));
                }
                if node.pins == 0 && (below.pins > 0 || place.get(&child) > place.get(&slot)) {
                    return Err(format!("{node:?} would go before its child {below:?}"));
                }
            }
            let waits = node.marked && blockers > 0;
            if node.blockers != blockers
                || (node.pins == 0 && node.marked && !waits) != (node.band == Band::EvictFirst)
            {
                return Err(format!("{node:?} has {blockers} blockers"));
            }
        }
        self.check_ends()?;
        let roots = self.all().filter(|&slot| self.get(slot).parent == NONE).count();
        if children + roots != self.len() || evict_first != self.evict_first_tokens {
            return Err(format!("{children} children and {roots} roots of {}", self.len()));
        }
        Ok((used, pinned))
    }

    fn check_ends(&self) -> Result<(), String> {
        let mut ends: Vec<u32> = self.ends.iter().map(|&(_, slot)| slot).collect();
        let mut expected: Vec<u32> = self
            .in_band(Band::Lru)
            .filter(|&slot| self.order != Order::Lru && self.is_leaf(slot))
            .collect();
        ends.sort_unstable();
        expected.sort_unstable();
        if ends == expected && self.ends.iter().all(|&end| end == self.ranked(end.1)) {
            return Ok(());
        }
        Err(format!(
            "{:?} are sorted, {expected:?} are at the ends",
            self.ends
        ))
    }
}

//! Room for what comes: what goes for it, in the order of eviction.

use rustc_hash::FxHashMap;

use super::PrefixCache;
use super::piece::Change;
use crate::ids::PrefixHash;

/// Pieces that are looked up ahead of their turn.
pub(super) const AHEAD: usize = 16;

/// Looks pieces up that are about to be stored or dropped. The table of a large cache fits no processor's own; asked with
/// nothing in between, its misses overlap.
pub(super) fn warm(by_hash: &FxHashMap<PrefixHash, u32>, soon: impl Iterator<Item = PrefixHash>) {
    std::hint::black_box(soon.filter(|hash| by_hash.contains_key(hash)).count());
}

impl PrefixCache {
    /// Evicts until `tokens` more fit. Evicts nothing if they cannot.
    pub(super) fn make_room(&mut self, tokens: u64, changes: &mut Vec<Change>) -> bool {
        if self.pinned + tokens > self.capacity {
            return false;
        }
        while self.used + tokens > self.capacity {
            if !self.drop_next(changes) {
                return false;
            }
        }
        true
    }

    /// Drops what is the next to go, if there is anything.
    fn drop_next(&mut self, changes: &mut Vec<Change>) -> bool {
        if self.warm == 0 {
            self.warm = AHEAD;
            warm(
                &self.by_hash,
                self.nodes
                    .next_victims()
                    .take(AHEAD)
                    .map(|slot| self.nodes.get(slot).hash),
            );
        }
        self.warm -= 1;
        let victim = self.nodes.next_victim();
        if let Some(victim) = victim {
            self.drop_node(victim, changes);
        }
        victim.is_some()
    }

    pub(super) fn shrink(&mut self, changes: &mut Vec<Change>) {
        while self.used > self.capacity && self.drop_next(changes) {}
    }

    pub(super) fn drop_node(&mut self, slot: u32, changes: &mut Vec<Change>) {
        let node = self.nodes.get(slot);
        let (hash, tokens) = (node.hash, u64::from(node.tokens));
        self.by_hash.remove(&hash);
        self.nodes.remove_leaf(slot);
        self.used -= tokens;
        changes.push(Change::Removed { hash });
    }
}

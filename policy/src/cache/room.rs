//! Eviction to make room.

use super::PrefixCache;
use super::piece::Change;

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

    fn drop_next(&mut self, changes: &mut Vec<Change>) -> bool {
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
        self.nodes.remove_leaf(slot);
        self.used -= tokens;
        changes.push(Change::Removed { hash });
    }
}

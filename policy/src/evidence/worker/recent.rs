//! A bounded map without an order.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A map that forgets what was not put again for a while: the older half goes when the younger one is full. It costs
/// nothing per use, and nothing here depends on the exact order. What goes is not freed, as whoever writes holds a lock:
/// the younger half goes on in its memory.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    half: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            half: (most / 2).max(1),
        }
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    pub(super) fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.young.reserve(self.old.len());
        }
        self.young.insert(key, value);
    }

    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_map_keeps_what_is_used() {
        let mut recent = Recent::new(8);
        for at in 0..100_u32 {
            recent.put(0, 0);
            recent.put(at, at);
        }
        assert!(recent.get(0).is_some() && recent.get(99).is_some() && recent.get(50).is_none());
        assert!(recent.young.len() + recent.old.len() <= 8);
    }
}

//! A bounded map that forgets keys not used recently, without an exact order.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A map of two halves: when the younger is full, it replaces the older. A key stays if it was put or
/// [touched](Self::touch) fewer than half the bound of other keys ago. Memory is never freed: a writer may hold a lock.
#[derive(Debug)]
pub struct Recent<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    half: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    /// Creates a map for at most `most` keys (at least 2).
    pub fn new(most: usize) -> Self {
        Self {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            half: (most / 2).max(1),
        }
    }

    /// Returns the key's value. Does not count as a use.
    pub fn get(&self, key: K) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    /// Returns the key's value and marks it as used.
    pub fn touch(&mut self, key: K) -> Option<V> {
        if let Some(value) = self.young.get(&key) {
            return Some(*value);
        }
        let value = self.old.remove(&key)?;
        self.put(key, value);
        Some(value)
    }

    /// Returns the key's value, or inserts this one.
    pub fn touch_or_put(&mut self, key: K, value: V) -> V {
        self.touch(key).unwrap_or_else(|| {
            self.put(key, value);
            value
        })
    }

    /// Inserts a value.
    pub fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.young.reserve(self.old.len());
        }
        self.young.insert(key, value);
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn what_was_used_lately_is_found_and_what_was_not_for_long_is_gone(
            most in 2_usize..20, keys in prop::collection::vec(0_u8..30, 0..300),
        ) {
            let mut recent = Recent::new(most);
            let mut used: Vec<u8> = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let found = recent.touch(*key).is_some();
                // Number of other keys since its last use.
                let since = used.iter().rposition(|other| other == key).map(|last| {
                    let mut others = used[last + 1..].to_vec();
                    others.sort_unstable();
                    others.dedup();
                    others.len()
                });
                prop_assert!(since.is_some() || !found, "{at}: never seen");
                prop_assert!(found || since.is_none_or(|since| since >= most / 2), "{at}: {since:?}");
                if !found {
                    recent.put(*key, at);
                }
                used.push(*key);
                prop_assert!(recent.young.len() + recent.old.len() <= most.max(2));
            }
        }
    }
}

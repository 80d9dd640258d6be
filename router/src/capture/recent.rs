//! What was used lately, bounded: two tables of half the bound each. What is used moves to the young one; when that is full,
//! the old one is emptied, and they change places.
//!
//! So whatever is used again before half the bound of other keys is found, and whatever was not used for the whole bound is
//! gone. An exact order of use would cost a linked list, several cache misses for each key of each prompt.

use std::hash::Hash;
use std::mem;
use std::num::NonZeroUsize;

use rustc_hash::FxHashMap;

/// Values by key.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    half: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    /// Holds at most so many (2 at least).
    pub(super) fn new(most: NonZeroUsize) -> Self {
        Self {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            half: (most.get() / 2).max(1),
        }
    }

    /// The key's value, which counts as a use.
    pub(super) fn get(&mut self, key: K) -> Option<V> {
        if let Some(value) = self.young.get(&key) {
            return Some(*value);
        }
        let value = self.old.remove(&key)?;
        self.put(key, value);
        Some(value)
    }

    /// Remembers a value.
    pub(super) fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.half {
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, value);
    }

    /// The key's value, which is this one from now on if there was none.
    pub(super) fn get_or_put(&mut self, key: K, value: V) -> V {
        self.get(key).unwrap_or_else(|| {
            self.put(key, value);
            value
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_used_lately_is_found_and_what_was_not_for_long_is_gone(
            most in 2_usize..20, keys in prop::collection::vec(0_u8..30, 0..300),
        ) {
            let mut recent = Recent::new(NonZeroUsize::new(most).unwrap());
            let mut used: Vec<u8> = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let found = recent.get(*key).is_some();
                // Other keys since its last use.
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

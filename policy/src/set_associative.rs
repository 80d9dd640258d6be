//! A bounded map that touches one cache line per key.
//!
//! Each request looks up dozens of keys in tables that fit no processor's cache, and a hash map has two cache misses
//! per lookup. Here a key's hash selects a *set* of four ways in one line, and a full set evicts its least recently
//! used way: a set-associative cache (Smith, "Cache Memories", ACM Computing Surveys 14(3), 1982).
//!
//! Retention is probabilistic: of the keys used last, as many as the map is for, about one in seven is gone; of the
//! more recent half of them one in fifty. Where this matters, use [`Recent`](crate::recent::Recent).

/// Keys per set: as many as fit in a line.
const WAYS: usize = 4;
const FIRST_LOG2: u32 = 4;
/// Marks a vacant way. A key of this value is replaced by another.
const VACANT: u64 = 0;
/// 2⁶⁴ divided by the golden ratio: spreads keys that are small numbers.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Keys and their values, most recently used first, vacant ways last.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
    keys: [u64; WAYS],
    values: [u64; WAYS],
}

const _: () = assert!(size_of::<Set>() == 64);

impl Set {
    fn place(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|&other| other == key)
    }

    /// Makes the key in this way the most recently used, with this value. Those before it move by one.
    fn lead(&mut self, way: usize, key: u64, value: u64) {
        // Moves of single words: a rotation of a slice is a call for each array, on the path of every request.
        for at in (1..=way).rev() {
            self.keys[at] = self.keys[at - 1];
            self.values[at] = self.values[at - 1];
        }
        (self.keys[0], self.values[0]) = (key, value);
    }

    fn vacate(&mut self, way: usize) {
        self.keys[way] = VACANT;
        self.keys[way..].rotate_left(1);
        self.values[way..].rotate_left(1);
    }

    /// Returns keys and values, least recently used first.
    fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let ways = (0..WAYS).rev().map(|way| (self.keys[way], self.values[way]));
        ways.filter(|&(key, _)| key != VACANT)
    }
}

/// A bounded map of numbers to numbers. Its retention is described in the module's documentation.
#[derive(Debug)]
pub struct SetAssociativeMap {
    sets: Vec<Set>,
    most_sets: usize,
    len: usize,
}

impl SetAssociativeMap {
    /// Creates an empty map for about `most` keys. When full it takes 32 to 64 bytes per key.
    pub fn new(most: usize) -> Self {
        Self {
            sets: Vec::new(),
            most_sets: (most / 2).next_power_of_two().max(1 << FIRST_LOG2),
            len: 0,
        }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Prefetches the lines of these keys, so that their cache misses overlap.
    pub fn warm(&self, keys: impl Iterator<Item = u64>) {
        let seen = keys.fold(0, |seen, key| {
            seen ^ self.set(named(key)).map_or(0, |set| set.keys[0])
        });
        std::hint::black_box(seen);
    }

    /// Returns the key's value. Does not count as a use.
    pub fn get(&self, key: u64) -> Option<u64> {
        let key = named(key);
        let set = self.set(key)?;
        Some(set.values[set.place(key)?])
    }

    /// Returns whether the key has a value. Does not count as a use.
    pub fn contains(&self, key: u64) -> bool {
        self.get(key).is_some()
    }

    /// Returns the key's value and marks it as used.
    pub fn touch(&mut self, key: u64) -> Option<u64> {
        let key = named(key);
        let set = self.set_mut(key)?;
        let way = set.place(key)?;
        let value = set.values[way];
        set.lead(way, key, value);
        Some(value)
    }

    /// Inserts a value and returns the key's previous one.
    pub fn put(&mut self, key: u64, value: u64) -> Option<u64> {
        let mut last = None;
        self.update(key, |known| {
            last = known;
            value
        });
        last
    }

    /// Replaces the key's value by the result of `next`, and marks it as used.
    pub fn update(&mut self, key: u64, next: impl FnOnce(Option<u64>) -> u64) {
        let key = named(key);
        if let Some(set) = self.set_mut(key)
            && let Some(way) = set.place(key)
        {
            set.lead(way, key, next(Some(set.values[way])));
            return;
        }
        self.enter(key, next(None));
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: u64) -> Option<u64> {
        let key = named(key);
        let set = self.set_mut(key)?;
        let way = set.place(key)?;
        let value = set.values[way];
        set.vacate(way);
        self.len -= 1;
        Some(value)
    }

    /// Removes the entries for which `stays` returns `false`.
    pub fn retain(&mut self, mut stays: impl FnMut(u64, u64) -> bool) {
        for set in &mut self.sets {
            for way in (0..WAYS).rev() {
                let key = set.keys[way];
                if key != VACANT && !stays(key, set.values[way]) {
                    set.vacate(way);
                    self.len -= 1;
                }
            }
        }
    }

    /// Returns all keys and values, within a set the least recently used first, otherwise in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.sets.iter().flat_map(Set::entries)
    }

    fn enter(&mut self, key: u64, value: u64) {
        while self.is_full_for(key) && self.sets.len() < self.most_sets && self.len >= self.sets.len() {
            self.grow();
        }
        let Some(set) = self.set_mut(key) else { return };
        let had = set.keys[WAYS - 1];
        set.lead(WAYS - 1, key, value);
        self.len += usize::from(had == VACANT);
    }

    fn is_full_for(&self, key: u64) -> bool {
        self.set(key).is_none_or(|set| set.keys[WAYS - 1] != VACANT)
    }

    fn grow(&mut self) {
        let sets = (self.sets.len() * 2).max(1 << FIRST_LOG2);
        let old = std::mem::replace(&mut self.sets, vec![Set::default(); sets]);
        for (key, value) in old.iter().flat_map(Set::entries) {
            if let Some(set) = self.set_mut(key) {
                set.lead(WAYS - 1, key, value);
            }
        }
    }

    fn number(&self, key: u64) -> usize {
        let bits = self.sets.len().trailing_zeros();
        // Without sets the shift would be by the whole width.
        key.wrapping_mul(SPREAD)
            .checked_shr(u64::BITS - bits)
            .unwrap_or(0) as usize
    }

    fn set(&self, key: u64) -> Option<&Set> {
        self.sets.get(self.number(key))
    }

    fn set_mut(&mut self, key: u64) -> Option<&mut Set> {
        let number = self.number(key);
        self.sets.get_mut(number)
    }
}

fn named(key: u64) -> u64 {
    if key == VACANT { SPREAD } else { key }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Put,
        Update,
        Touch,
        Get,
        Remove,
        Retain,
    }

    fn ops() -> impl Strategy<Value = Vec<(Op, u64)>> {
        use Op::{Get, Put, Remove, Retain, Touch, Update};
        let op = prop_oneof![8 => Just(Put), 4 => Just(Update), 4 => Just(Touch), 4 => Just(Get), 2 => Just(Remove), 1 => Just(Retain)];
        prop::collection::vec((op, 1_u64..200), 0..600)
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_was_put_last_and_what_was_used_just_now_is_found(most in 1_usize..100, ops in ops()) {
            let mut ways = SetAssociativeMap::new(most);
            // Keys and values, most recently used first.
            let mut naive: Vec<(u64, u64)> = Vec::new();
            for (at, (op, key)) in (1..).zip(ops) {
                let known = naive.iter().position(|&(other, _)| other == key);
                let expected = known.map(|known| naive[known].1);
                let found = ways.get(key);
                prop_assert_eq!(ways.contains(key), found.is_some());
                prop_assert!(found.is_none() || found == expected, "{}: {:?}", key, found);
                // Even if all later keys share its set.
                prop_assert!(known.is_none_or(|known| known >= WAYS || found.is_some()), "{} is gone", key);
                match op {
                    Op::Put => {
                        prop_assert_eq!(ways.put(key, at), found);
                    }
                    Op::Update => {
                        ways.update(key, |known| { assert_eq!(known, found); at });
                    }
                    Op::Touch => {
                        prop_assert_eq!(ways.touch(key), found);
                    }
                    Op::Get => {}
                    Op::Remove => {
                        prop_assert_eq!(ways.remove(key), found);
                        prop_assert!(!ways.contains(key));
                    }
                    Op::Retain => {
                        ways.retain(|other, _| other % 3 != key % 3);
                        naive.retain(|(other, _)| other % 3 != key % 3);
                    }
                }
                if matches!(op, Op::Remove | Op::Retain) {
                    // What was evicted does not become recent by the removal of others.
                    naive.retain(|&(other, _)| ways.contains(other));
                }
                let kept = match op {
                    Op::Put | Op::Update => Some(at),
                    Op::Touch => found,
                    _ => None,
                };
                if kept.is_some() || matches!(op, Op::Remove) {
                    naive.retain(|&(other, _)| other != key);
                }
                if let Some(value) = kept {
                    naive.insert(0, (key, value));
                }
                let all: Vec<_> = ways.iter().collect();
                prop_assert_eq!(all.len(), ways.len());
                prop_assert_eq!(ways.is_empty(), all.is_empty());
                prop_assert!(all.iter().all(|&(key, value)| ways.get(key) == Some(value)));
                prop_assert!(ways.len() <= (4 * most).max(64));
            }
        }
    }

    /// Returns the share of the last `asked` of `keys` keys that is found.
    fn found(most: usize, keys: u64, asked: u64) -> f64 {
        let mut ways = SetAssociativeMap::new(most);
        for key in 1..=keys {
            ways.put(key.wrapping_mul(0xD6E8_FEB8_6659_FD93), key);
        }
        let is_found = |key: &u64| ways.contains(key.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        (keys - asked + 1..=keys).filter(is_found).count() as f64 / asked as f64
    }

    #[test]
    fn hardly_anything_is_forgotten_of_what_it_is_for() {
        // The worst case for its size: half as many sets as keys.
        let most = 1 << 14;
        let keys = most as u64;
        assert!(
            found(most, keys / 2, keys / 2) > 0.999,
            "before it has its full size"
        );
        assert!(found(most, 20 * keys, keys / 2) > 0.97);
        assert!(found(most, 20 * keys, keys) > 0.9);
        assert!(found(most, 20 * keys, 20 * keys) < 0.11, "it is bounded");
    }

    #[test]
    fn every_number_is_a_key() {
        let mut ways = SetAssociativeMap::new(10);
        for key in [0, 1, u64::MAX] {
            ways.warm([key].into_iter());
            assert_eq!(ways.put(key, key ^ 1), None);
            assert_eq!(ways.get(key), Some(key ^ 1));
        }
        assert_eq!(ways.len(), 3);
    }
}

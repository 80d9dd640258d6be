//! Finds prefixes that many conversations share, such as system prompts and tools, by counting.
//!
//! The first prompt of each conversation counts once for each of its leading keys. The longest prefix that enough
//! conversations began with is *shared*. It outlives any one conversation, so where evict-first marks fall on it, the
//! worker is asked to remove them.
//!
//! Most of a prompt is unique. Of the keys not counted before, only the first [`NEW_KEYS`] are counted, or as many as
//! were already known. A shared prefix is thus found whole after a few more conversations (logarithmic in its length).

use std::num::{NonZeroU32, NonZeroUsize};

use lru::LruCache;
use policy::ids::{PrefixHash, WorkerId};
use policy::set_associative::SetAssociativeMap;
use policy::units::Millis;

/// Largest number of a prompt's leading keys that are counted: more than a megabyte of a chat message.
const MAX_KEYS: usize = 256;
/// Number of keys counted of an unknown prefix: about 20 KB of a chat message, as much as most system prompts have.
const NEW_KEYS: usize = 32;
/// Number of keys whose count is kept.
const COUNTS: usize = 131_072;
/// Number of protected prefixes that are kept, over all workers.
const PROTECTED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Counts of conversations by their leading keys.
#[derive(Debug)]
pub struct SharedPrefixes {
    from: Option<NonZeroU32>,
    counts: SetAssociativeMap,
    protected: LruCache<(WorkerId, PrefixHash), Millis>,
}

impl SharedPrefixes {
    /// Creates an empty table. A prefix is shared from `from` conversations on; with `None`, never.
    pub fn new(from: Option<NonZeroU32>) -> Self {
        Self {
            from,
            counts: SetAssociativeMap::new(COUNTS),
            protected: LruCache::new(PROTECTED),
        }
    }

    /// Counts a conversation that begins with this prompt.
    pub fn begins(&mut self, keys: &[PrefixHash]) {
        if self.from.is_none() {
            return;
        }
        let keys = &keys[..keys.len().min(MAX_KEYS)];
        self.counts.warm(keys.iter().map(|key| key.0));
        let known = keys.iter().take_while(|key| self.counts.contains(key.0)).count();
        let counted = known + known.max(NEW_KEYS);
        // In reverse, so that a prompt's first keys are the most recently used.
        for key in keys[..keys.len().min(counted)].iter().rev() {
            self.counts.update(key.0, |count| count.unwrap_or(0) + 1);
        }
    }

    /// Returns the number of a prompt's leading keys that are shared.
    pub fn shared(&self, keys: &[PrefixHash]) -> usize {
        let Some(from) = self.from else { return 0 };
        let many = |key: &PrefixHash| {
            self.counts
                .get(key.0)
                .is_some_and(|count| count >= from.get().into())
        };
        // Counts only fall along a chain, so a binary search would work; shared prefixes are short.
        keys.iter().take(MAX_KEYS).take_while(|key| many(key)).count()
    }

    /// Forgets the prefixes that are protected on a worker.
    pub fn left(&mut self, worker: WorkerId) {
        let its: Vec<_> = self.protected.iter().map(|(&key, _)| key).collect();
        for key in its.into_iter().filter(|(on, _)| *on == worker) {
            self.protected.pop(&key);
        }
    }

    /// Returns whether the prefix with this last key is due to be protected on a worker. If so, records it as
    /// protected.
    pub fn is_due(&mut self, now: Millis, worker: WorkerId, last: PrefixHash, again_after: Millis) -> bool {
        let key = (worker, last);
        let fresh = |&at: &Millis| now.saturating_sub(at) < again_after;
        if self.protected.get(&key).is_some_and(fresh) {
            return false;
        }
        self.protected.put(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<PrefixHash> {
        let mut hash = 7u64;
        text.bytes()
            .map(|byte| {
                hash = hash.wrapping_mul(31).wrapping_add(byte.into());
                PrefixHash(hash)
            })
            .collect()
    }

    fn counted(shared: &SharedPrefixes, keys: impl IntoIterator<Item = PrefixHash>) -> usize {
        let is_known = |key: &PrefixHash| shared.counts.contains(key.0);
        keys.into_iter().filter(is_known).count()
    }

    #[test]
    fn what_enough_conversations_begin_with_is_shared() {
        let mut shared = SharedPrefixes::new(NonZeroU32::new(3));
        for prompt in ["sysA", "sysB", "sysB"] {
            shared.begins(&keys(prompt));
        }
        assert_eq!(shared.shared(&keys("sysC")), 3);
        assert_eq!(shared.shared(&keys("sysB")), 3);
        shared.begins(&keys("sysB"));
        assert_eq!(shared.shared(&keys("sysBye")), 4);
        assert_eq!(shared.shared(&keys("other")), 0);
    }

    #[test]
    fn a_long_beginning_is_found_whole_and_what_only_one_has_is_hardly_counted() {
        let mut shared = SharedPrefixes::new(NonZeroU32::new(3));
        let common = "s".repeat(200);
        let mut prompts = 0;
        while shared.shared(&keys(&common)) < common.len() {
            prompts += 1;
            assert!(prompts <= 3 + 3, "it doubles: 32, 64, 128, 200");
            shared.begins(&keys(&format!("{common}{}", "o".repeat(prompts))));
        }
        let own = keys(&"x".repeat(250));
        shared.begins(&own);
        assert_eq!(counted(&shared, own), NEW_KEYS);
    }

    #[test]
    fn never_is_never_and_the_table_is_bounded() {
        let mut never = SharedPrefixes::new(None);
        let mut shared = SharedPrefixes::new(NonZeroU32::new(2));
        for i in 0..4 * COUNTS as u64 {
            never.begins(&[PrefixHash(i)]);
            shared.begins(&[PrefixHash(i), PrefixHash(u64::MAX)]);
        }
        let all = || (0..4 * COUNTS as u64).map(PrefixHash);
        assert_eq!((counted(&never, all()), never.shared(&[PrefixHash(1)])), (0, 0));
        assert!((COUNTS..=2 * COUNTS).contains(&counted(&shared, all())));
        assert_eq!(shared.shared(&[PrefixHash(u64::MAX)]), 1);
    }

    #[test]
    fn a_beginning_is_protected_now_and_then_on_each_worker() {
        let mut shared = SharedPrefixes::new(NonZeroU32::new(2));
        let mut due =
            |now, worker| shared.is_due(Millis(now), WorkerId(worker), PrefixHash(1), Millis(100.0));
        let seen = [
            due(0.0, 0),
            due(10.0, 0),
            due(10.0, 1),
            due(99.0, 0),
            due(100.0, 0),
            due(101.0, 0),
        ];
        assert_eq!(seen, [true, false, true, false, true, false]);
    }
}

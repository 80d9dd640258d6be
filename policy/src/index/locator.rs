//! A map from key to position: which run, at which depth. Private to the writer; lookups do not use it.
//!
//! One 8-byte slot per key: 18 bits of the key's hash, 20 of its depth, 26 of its run, which has the key itself to
//! confirm a slot. Slots come in buckets of one cache line: seven slots and a control word, with a byte of each slot's
//! hash and a count of the keys that belong here but overflowed to a later bucket. A search ends at the first bucket
//! without overflow, and a removal needs no tombstone (Bronson and Shi's F14, 2019).
//!
//! Shards hold some thousands of keys at most, so no insert rebuilds more. They grow by a sixth, and shrink soon below
//! the size at which they grew. Depth counts from the prompt's start: a split renames only the shorter side's keys.

const TAG_SHIFT: u32 = 46;
const TAG_BITS: u32 = 64 - TAG_SHIFT;
const DEPTH_SHIFT: u32 = 26;
const RUN_MASK: u64 = (1 << DEPTH_SHIFT) - 1;
const DEPTH_MASK: u64 = (1 << (TAG_SHIFT - DEPTH_SHIFT)) - 1;
const SLOTS: usize = 7;
/// Keys per 64 buckets at which a shard grows, below which it shrinks, and after a shrink. The lower bound is just
/// under the load after growth, so that a temporarily fuller table does not stay large.
const MOST: usize = 320;
const FEWEST: usize = 272;
/// Lower bound for a shard with few buckets, which grows by more than a sixth.
const FEWEST_OF_FEW: usize = 160;
const SHRUNK: usize = 300;

const FIRST_BUCKETS: usize = 2;
/// Bucket count at which the sizes of growing shards diverge, so that they do not all grow at once.
const SPREAD_BUCKETS: usize = 48;

fn grown(buckets: usize, index: usize) -> usize {
    let next = (buckets + (buckets / 6).max(1)).max(FIRST_BUCKETS);
    if buckets < SPREAD_BUCKETS && next >= SPREAD_BUCKETS {
        SPREAD_BUCKETS + index % (SPREAD_BUCKETS / 6)
    } else {
        next
    }
}

/// A key's run, and its position in its prompt, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) run: u32,
    pub(super) depth: u32,
}

/// Seven slots and their control word: a byte per slot, 0 where it is vacant, then the overflow count.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    slots: [u64; SLOTS],
    control: u64,
}

const PASSED: u32 = 56;
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x0080_8080_8080_8080;

#[derive(Debug, Default)]
struct Shard {
    buckets: Box<[Bucket]>,
    used: usize,
}

#[derive(Debug)]
pub(super) struct Locator {
    shards: Box<[Shard]>,
    shard_bits: u32,
    buckets: usize,
}

fn pack(tag: u64, place: Place) -> u64 {
    tag << TAG_SHIFT | (u64::from(place.depth) & DEPTH_MASK) << DEPTH_SHIFT | u64::from(place.run) & RUN_MASK
}

fn unpack(slot: u64) -> Place {
    Place {
        run: (slot & RUN_MASK) as u32,
        depth: (slot >> DEPTH_SHIFT & DEPTH_MASK) as u32,
    }
}

/// Returns the control byte of a slot's hash: its low bits, since the high ones select the bucket.
#[inline]
fn mark(tag: u64) -> u64 {
    (tag & 0xFF).max(1)
}

/// Returns the slots of a set of highest bits, in order.
#[inline]
fn slots_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (bits != 0).then(|| bits.trailing_zeros() as usize / 8);
        bits &= bits.wrapping_sub(1);
        slot
    })
}

impl Bucket {
    /// Returns the slots whose byte is `mark`. A borrow may add a false one after the first; the caller compares slots.
    #[inline]
    fn marked(&self, mark: u64) -> u64 {
        let differing = self.control ^ (mark * EACH_BYTE);
        differing.wrapping_sub(EACH_BYTE) & !differing & HIGH_BITS
    }

    #[inline]
    fn vacant(&self) -> Option<usize> {
        slots_of(self.marked(0)).next()
    }

    #[inline]
    fn fill(&mut self, slot: usize, value: u64) {
        self.slots[slot] = value;
        self.control |= mark(value >> TAG_SHIFT) << (8 * slot);
    }

    #[inline]
    fn vacate(&mut self, slot: usize) {
        self.slots[slot] = 0;
        self.control &= !(0xFF << (8 * slot));
    }

    #[inline]
    fn passed(&self) -> u64 {
        self.control >> PASSED
    }

    /// Counts one more overflowed key. A saturated count stays so until a rebuild, which only lengthens searches.
    fn pass(&mut self) {
        if self.passed() < 0xFF {
            self.control += 1 << PASSED;
        }
    }

    fn unpass(&mut self) {
        if self.passed() < 0xFF {
            self.control -= 1 << PASSED;
        }
    }
}

impl Shard {
    /// Returns the home bucket of a tag. It depends on the tag alone: rebuilding a shard reads no keys.
    #[inline]
    fn home(&self, tag: u64) -> usize {
        ((tag * self.buckets.len() as u64) >> TAG_BITS) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// Returns the bucket and slot of the entry with this tag that satisfies `confirm`.
    #[inline]
    fn search(&self, tag: u64, confirm: impl Fn(u64) -> bool) -> Option<(usize, usize)> {
        let mut at = self.home(tag);
        // The bound terminates the search if all counts are saturated.
        for _ in 0..self.buckets.len() {
            let bucket = self.buckets.get(at)?;
            for slot in slots_of(bucket.marked(mark(tag))) {
                let value = bucket.slots[slot];
                if value >> TAG_SHIFT == tag && confirm(value) {
                    return Some((at, slot));
                }
            }
            if bucket.passed() == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Inserts a slot into the first bucket with room. There is always one: a shard grows before it is full.
    #[inline]
    fn put(&mut self, value: u64) {
        let mut at = self.home(value >> TAG_SHIFT);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(slot) = bucket.vacant() {
                bucket.fill(slot, value);
                return;
            }
            bucket.pass();
            at = self.after(at);
        }
    }

    #[inline]
    fn vacate(&mut self, tag: u64, bucket: usize, slot: usize) {
        self.buckets[bucket].vacate(slot);
        let mut at = self.home(tag);
        while at != bucket {
            self.buckets[at].unpass();
            at = self.after(at);
        }
        self.used -= 1;
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(
            &mut self.buckets,
            vec![Bucket::default(); buckets].into_boxed_slice(),
        );
        for slot in old
            .iter()
            .flat_map(|bucket| &bucket.slots)
            .filter(|slot| **slot != 0)
        {
            self.put(*slot);
        }
    }
}

impl Locator {
    /// Creates a locator for at most about `keys` keys; it works with more, but slower.
    pub(super) fn new(keys: u64) -> Self {
        let shard_bits = (keys / 16384).max(2).next_power_of_two().ilog2().min(20);
        let shards = (0..1usize << shard_bits).map(|_| Shard::default()).collect();
        Self {
            shards,
            shard_bits,
            buckets: 0,
        }
    }

    #[inline]
    fn split(&self, key: u64) -> (usize, u64) {
        let hash = (key ^ (key >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = hash ^ (hash >> 32);
        (
            (hash >> (64 - self.shard_bits)) as usize,
            hash << self.shard_bits >> TAG_SHIFT,
        )
    }

    /// Returns the place of `key`. `confirm` tells whether the key at a place is the one sought.
    pub(super) fn find(&self, key: u64, confirm: impl Fn(Place) -> bool) -> Option<Place> {
        let (shard, tag) = self.split(key);
        let shard = &self.shards[shard];
        let (bucket, slot) = shard.search(tag, |slot| confirm(unpack(slot)))?;
        Some(unpack(shard.buckets[bucket].slots[slot]))
    }

    /// Inserts a key. Returns `false` and changes nothing if it is known already.
    pub(super) fn insert(&mut self, key: u64, place: Place, confirm: impl Fn(Place) -> bool) -> bool {
        let (index, tag) = self.split(key);
        let shard = &mut self.shards[index];
        if shard.search(tag, |slot| confirm(unpack(slot))).is_some() {
            return false;
        }
        if shard.used * 64 >= shard.buckets.len() * MOST {
            let buckets = grown(shard.buckets.len(), index);
            self.buckets += buckets - shard.buckets.len();
            shard.resize(buckets);
        }
        shard.put(pack(tag, place));
        shard.used += 1;
        true
    }

    /// Prefetches the buckets of these keys, so that their cache misses overlap.
    pub(super) fn warm(&self, keys: impl Iterator<Item = u64>) {
        let seen = keys.fold(0, |seen, key| {
            let (shard, tag) = self.split(key);
            let shard = &self.shards[shard];
            seen ^ shard.buckets.get(shard.home(tag)).map_or(0, Bucket::passed)
        });
        std::hint::black_box(seen);
    }

    pub(super) fn rename(&mut self, key: u64, old: Place, run: u32) {
        let (shard, tag) = self.split(key);
        let shard = &mut self.shards[shard];
        if let Some((bucket, slot)) = shard.search(tag, |slot| slot == pack(tag, old)) {
            shard.buckets[bucket].slots[slot] = pack(tag, Place { run, ..old });
        }
    }

    pub(super) fn remove(&mut self, key: u64, place: Place) {
        let (index, tag) = self.split(key);
        let shard = &mut self.shards[index];
        let Some((bucket, slot)) = shard.search(tag, |slot| slot == pack(tag, place)) else {
            return;
        };
        shard.vacate(tag, bucket, slot);
        let buckets = shard.buckets.len();
        let fewest = if buckets < SPREAD_BUCKETS {
            FEWEST_OF_FEW
        } else {
            FEWEST
        };
        if buckets > FIRST_BUCKETS && shard.used * 64 < buckets * fewest {
            let fewer = (shard.used * 64 / SHRUNK).max(FIRST_BUCKETS);
            self.buckets -= buckets - fewer;
            shard.resize(fewer);
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.used as u64).sum()
    }

    /// Returns the bytes in use, including the allocator's 64 per aligned shard.
    pub(super) fn bytes(&self) -> u64 {
        (self.buckets * size_of::<Bucket>() + self.shards.len() * (size_of::<Shard>() + 64)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_where_every_count_has_reached_its_end() {
        let mut locator = Locator::new(0);
        for key in 1..=200 {
            let place = Place { run: 1, depth: 0 };
            assert!(locator.insert(key, place, |_| false));
        }
        for bucket in locator.shards.iter_mut().flat_map(|shard| &mut shard.buckets) {
            bucket.control |= 0xFF << PASSED;
        }
        assert_eq!(locator.find(1000, |_| false), None);
    }
}

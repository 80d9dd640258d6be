//! Key → where it is: which run, at which depth. The writer's own; lookups never come here.
//!
//! One 8-byte slot per key: 18 bits of the key's hash, 20 of its depth, 26 of its run. The key itself stands in the run
//! and is read only to confirm a slot whose 18 bits agree. Slots come in buckets of one cache line: seven slots, and a
//! count of the keys that belong here but had to go further. A search ends at the first bucket without such keys, a
//! removal empties one slot and lowers the counts it passed; nothing is shifted and no tombstone stays (the overflow
//! count of Bronson and Shi's F14, 2019). Compared to linear probing, a removal has half the mispredicted branches and
//! touches one line instead of two.
//!
//! Shards hold some thousands of keys at most and grow by a sixth, so that no insert rebuilds more than a shard.
//!
//! Depth counts from the prompt's start, not from the run's: splitting a run then renames only the shorter side's keys.

const TAG_SHIFT: u32 = 46;
const TAG_BITS: u32 = 64 - TAG_SHIFT;
const DEPTH_SHIFT: u32 = 26;
const RUN_MASK: u64 = (1 << DEPTH_SHIFT) - 1;
const DEPTH_MASK: u64 = (1 << (TAG_SHIFT - DEPTH_SHIFT)) - 1;
const SLOTS: usize = 7;
/// Keys in four buckets at which a shard grows, and below which it shrinks: close together, so that a table that was
/// fuller for a moment does not stay large.
const MOST_PER_FOUR: usize = 20;
const FEWEST_PER_FOUR: usize = 15;

/// Buckets of a shard's first allocation. Shards start at sizes spread over one step of growth, so that they never all
/// grow at once and the table's fullness is the same at any number of keys.
const FIRST_BUCKETS: usize = 48;

/// Where a key is: the run, and the key's position in its prompt, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) run: u32,
    pub(super) depth: u32,
}

/// Seven slots, 0 where vacant, and how many keys went past.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket([u64; SLOTS + 1]);

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

impl Bucket {
    /// A bit for each slot that is wanted. Without branches: which slot it is cannot be predicted.
    #[inline]
    fn which(&self, wanted: impl Fn(u64) -> bool) -> u32 {
        (0..SLOTS).fold(0, |bits, at| bits | u32::from(wanted(self.0[at])) << at)
    }

    fn passed(&self) -> u64 {
        self.0[SLOTS]
    }
}

impl Shard {
    /// A slot's home follows from its tag alone, so that a shard is rebuilt without its keys being read.
    #[inline]
    fn home(&self, tag: u64) -> usize {
        ((tag * self.buckets.len() as u64) >> TAG_BITS) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// The bucket and slot of a tag's entry that satisfies `confirm`.
    #[inline]
    fn search(&self, tag: u64, confirm: impl Fn(u64) -> bool) -> Option<(usize, usize)> {
        let mut at = self.home(tag);
        loop {
            let bucket = self.buckets.get(at)?;
            let mut candidates = bucket.which(|slot| slot >> TAG_SHIFT == tag && slot != 0);
            while candidates != 0 {
                let slot = candidates.trailing_zeros() as usize;
                if confirm(bucket.0[slot]) {
                    return Some((at, slot));
                }
                candidates &= candidates - 1;
            }
            if bucket.passed() == 0 {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Enters a slot in the first bucket with room. There is always one: a shard grows before it is full.
    fn put(&mut self, slot: u64) {
        let mut at = self.home(slot >> TAG_SHIFT);
        loop {
            let vacant = self.buckets[at].which(|slot| slot == 0);
            if vacant != 0 {
                self.buckets[at].0[vacant.trailing_zeros() as usize] = slot;
                return;
            }
            self.buckets[at].0[SLOTS] += 1;
            at = self.after(at);
        }
    }

    fn vacate(&mut self, tag: u64, (bucket, slot): (usize, usize)) {
        self.buckets[bucket].0[slot] = 0;
        let mut at = self.home(tag);
        while at != bucket {
            self.buckets[at].0[SLOTS] -= 1;
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
            .flat_map(|bucket| &bucket.0[..SLOTS])
            .filter(|slot| **slot != 0)
        {
            self.put(*slot);
        }
    }
}

impl Locator {
    /// For at most about `keys` keys (more only make it slower).
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

    /// The place of `key`, where `confirm` says whether the key at a place is indeed the one asked for.
    pub(super) fn find(&self, key: u64, confirm: impl Fn(Place) -> bool) -> Option<Place> {
        let (shard, tag) = self.split(key);
        let shard = &self.shards[shard];
        let (bucket, slot) = shard.search(tag, |slot| confirm(unpack(slot)))?;
        Some(unpack(shard.buckets[bucket].0[slot]))
    }

    /// Enters a key; `false`, and nothing changes, if it is known already.
    pub(super) fn insert(&mut self, key: u64, place: Place, confirm: impl Fn(Place) -> bool) -> bool {
        let (index, tag) = self.split(key);
        let shard = &mut self.shards[index];
        if shard.search(tag, |slot| confirm(unpack(slot))).is_some() {
            return false;
        }
        if shard.used * 4 >= shard.buckets.len() * MOST_PER_FOUR {
            let more = match shard.buckets.len() {
                0 => FIRST_BUCKETS + index % (FIRST_BUCKETS / 6),
                buckets => buckets / 6,
            };
            self.buckets += more;
            shard.resize(shard.buckets.len() + more);
        }
        shard.put(pack(tag, place));
        shard.used += 1;
        true
    }

    /// Brings the buckets of keys that are about to be used into the cache, all at once: the loads do not wait for one
    /// another, as those of one insert or removal after the other would.
    pub(super) fn warm(&self, keys: impl Iterator<Item = u64>) {
        let seen = keys.fold(0, |seen, key| {
            let (shard, tag) = self.split(key);
            let shard = &self.shards[shard];
            seen ^ shard.buckets.get(shard.home(tag)).map_or(0, Bucket::passed)
        });
        std::hint::black_box(seen);
    }

    /// Renames a key's run.
    pub(super) fn rename(&mut self, key: u64, old: Place, run: u32) {
        let (shard, tag) = self.split(key);
        let shard = &mut self.shards[shard];
        if let Some((bucket, slot)) = shard.search(tag, |slot| slot == pack(tag, old)) {
            shard.buckets[bucket].0[slot] = pack(tag, Place { run, ..old });
        }
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: u64, place: Place) {
        let (index, tag) = self.split(key);
        let shard = &mut self.shards[index];
        let Some(found) = shard.search(tag, |slot| slot == pack(tag, place)) else {
            return;
        };
        shard.vacate(tag, found);
        let buckets = shard.buckets.len();
        if buckets > FIRST_BUCKETS && shard.used * 4 < buckets * FEWEST_PER_FOUR {
            let fewer = (shard.used * 2 / 9).max(FIRST_BUCKETS);
            self.buckets -= buckets - fewer;
            shard.resize(fewer);
        }
    }

    /// Bytes, the allocator's own 64 per aligned shard included.
    pub(super) fn bytes(&self) -> u64 {
        (self.buckets * size_of::<Bucket>() + self.shards.len() * (size_of::<Shard>() + 64)) as u64
    }
}

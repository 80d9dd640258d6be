//! Key → where it is: which run, at which depth. The writer's own; lookups never come here.
//!
//! One 8-byte slot per key: 16 bits of the key's hash, 20 of its depth, 28 of its run. The key itself stands in the run
//! and is read only to confirm a slot whose 16 bits agree. Shards hold a few hundred keys and grow by a quarter, so the
//! table is never less than about two thirds full and no single insert rebuilds more than one shard.
//!
//! Depth counts from the prompt's start, not from the run's: splitting a run then renames only the shorter side's keys.

const TAG_SHIFT: u32 = 48;
const DEPTH_SHIFT: u32 = 28;
const RUN_MASK: u64 = (1 << DEPTH_SHIFT) - 1;
const DEPTH_MASK: u64 = (1 << (TAG_SHIFT - DEPTH_SHIFT)) - 1;

/// Where a key is: the run, and the key's position in its prompt, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) run: u32,
    pub(super) depth: u32,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Box<[u64]>,
    used: u32,
}

#[derive(Debug)]
pub(super) struct Locator {
    shards: Box<[Shard]>,
    shard_bits: u32,
    slots: u64,
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

impl Shard {
    /// A slot's home follows from its tag alone, so that slots move without their keys being read.
    fn home(&self, tag: u64) -> usize {
        ((tag * self.slots.len() as u64) >> 16) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn put(&mut self, slot: u64) {
        let mut at = self.home(slot >> TAG_SHIFT);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![0; slots].into_boxed_slice());
        old.iter()
            .filter(|slot| **slot != 0)
            .for_each(|slot| self.put(*slot));
    }

    fn position(&self, tag: u64, wanted: impl Fn(u64) -> bool) -> Option<usize> {
        if self.used == 0 {
            return None;
        }
        let mut at = self.home(tag);
        while self.slots[at] != 0 {
            if self.slots[at] >> TAG_SHIFT == tag && wanted(self.slots[at]) {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Empties a slot, pulling later ones back towards their homes.
    fn vacate(&mut self, mut hole: usize) {
        let len = self.slots.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + len - from };
        let mut next = hole;
        loop {
            next = self.after(next);
            let slot = self.slots[next];
            if slot == 0 {
                break;
            }
            if distance(self.home(slot >> TAG_SHIFT), next) >= distance(hole, next) {
                self.slots[hole] = slot;
                hole = next;
            }
        }
        self.slots[hole] = 0;
        self.used -= 1;
    }
}

impl Locator {
    /// For at most about `keys` keys (more only make it slower).
    pub(super) fn new(keys: u64) -> Self {
        let shard_bits = (keys / 512).max(2).next_power_of_two().ilog2().min(20);
        let shards = (0..1usize << shard_bits).map(|_| Shard::default()).collect();
        Self {
            shards,
            shard_bits,
            slots: 0,
        }
    }

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
        shard
            .position(tag, |slot| confirm(unpack(slot)))
            .map(|at| unpack(shard.slots[at]))
    }

    /// Enters a key; `false`, and nothing changes, if it is known already.
    pub(super) fn insert(&mut self, key: u64, place: Place, confirm: impl Fn(Place) -> bool) -> bool {
        let (index, tag) = self.split(key);
        let shard = &mut self.shards[index];
        if shard.position(tag, |slot| confirm(unpack(slot))).is_some() {
            return false;
        }
        if (shard.used as usize + 1) * 5 > shard.slots.len() * 4 {
            let more = shard.slots.len() / 4 + 8;
            self.slots += more as u64;
            shard.resize(shard.slots.len() + more);
        }
        shard.put(pack(tag, place));
        shard.used += 1;
        true
    }

    /// Renames a key's run.
    pub(super) fn rename(&mut self, key: u64, old: Place, run: u32) {
        let (shard, tag) = self.split(key);
        let shard = &mut self.shards[shard];
        if let Some(at) = shard.position(tag, |slot| slot == pack(tag, old)) {
            shard.slots[at] = pack(tag, Place { run, ..old });
        }
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: u64, place: Place) {
        let (index, tag) = self.split(key);
        let shard = &mut self.shards[index];
        let Some(at) = shard.position(tag, |slot| slot == pack(tag, place)) else {
            return;
        };
        shard.vacate(at);
        let slots = shard.slots.len();
        if slots > 16 && shard.used as usize * 2 < slots {
            let fewer = shard.used as usize * 3 / 2 + 8;
            self.slots -= slots.saturating_sub(fewer) as u64;
            shard.resize(fewer.min(slots));
        }
    }

    /// Bytes, the allocator's own 16 per shard included.
    pub(super) fn bytes(&self) -> u64 {
        self.slots * 8 + self.shards.len() as u64 * (size_of::<Shard>() as u64 + 16)
    }
}

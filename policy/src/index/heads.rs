//! A hash table from a run's first key to the run: the only search of a lookup, once per run.
//!
//! Open addressing in a table of (key, run) pairs, one per run. One writer, any number of readers. A hit needs no check
//! here, since the run's record confirms it. A miss is valid only if no entry moved meanwhile; nothing here waits.

use std::sync::OnceLock;

use crate::sync::{AtomicU32, AtomicU64, Ordering, SMALLEST_HEADS_LOG2, fence};

const LEVELS: usize = 22;
/// Upper bound on the entries that one step of a write adds, plus one.
const A_STEP: usize = 4;

struct Slot {
    key: AtomicU64,
    /// 0 marks a vacant slot.
    run: AtomicU64,
}

pub(super) struct Heads {
    /// Tables by size, each twice the one before. Outgrown ones stay for readers still using them.
    levels: [OnceLock<Box<[Slot]>>; LEVELS],
    level: AtomicU32,
    /// Odd while entries are being moved.
    version: AtomicU32,
    used: AtomicU32,
}

/// The error of a lookup that missed while entries were moving: the key may be present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moving;

fn spread(key: u64) -> u64 {
    (key ^ (key >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Heads {
    pub(super) fn new() -> Self {
        let heads = Self {
            levels: std::array::from_fn(|_| OnceLock::new()),
            level: AtomicU32::new(0),
            version: AtomicU32::new(0),
            used: AtomicU32::new(0),
        };
        heads.table_at(0);
        heads
    }

    fn table_at(&self, level: u32) -> &[Slot] {
        let level = (level as usize).min(LEVELS - 1);
        self.levels[level].get_or_init(|| {
            let slots = 1usize << (SMALLEST_HEADS_LOG2 as usize + level);
            (0..slots)
                .map(|_| Slot {
                    key: AtomicU64::new(0),
                    run: AtomicU64::new(0),
                })
                .collect()
        })
    }

    #[inline]
    fn table(&self) -> &[Slot] {
        let level = self.level.load(Ordering::Acquire) as usize;
        self.levels
            .get(level)
            .and_then(OnceLock::get)
            .map_or(&[], |table| table)
    }

    #[inline]
    fn home(table: &[Slot], key: u64) -> usize {
        (spread(key) >> (64 - table.len().trailing_zeros())) as usize
    }

    /// Returns the run that begins with `key`, if one did at some moment during the call.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Result<Option<u32>, Moving> {
        let version = self.version.load(Ordering::Acquire);
        let table = self.table();
        let mask = table.len().wrapping_sub(1);
        let mut at = Self::home(table, key);
        for _ in 0..table.len() {
            let Some(slot) = table.get(at) else { break };
            let run = slot.run.load(Ordering::Acquire);
            if run == 0 {
                break;
            }
            if slot.key.load(Ordering::Relaxed) == key {
                return Ok(Some(run as u32));
            }
            at = (at + 1) & mask;
        }
        fence(Ordering::Acquire);
        let unmoved = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        if unmoved { Ok(None) } else { Err(Moving) }
    }

    /// Returns the run that begins with `key`. For the writer, which sees no concurrent moves.
    pub(super) fn known(&self, key: u64) -> Option<u32> {
        let (_, slot) = Self::slot(self.table(), key);
        let run = slot.run.load(Ordering::Relaxed);
        (run != 0).then_some(run as u32)
    }

    /// Returns the slot of `key`, or the vacant slot where it belongs. The table is never full.
    fn slot(table: &[Slot], key: u64) -> (usize, &Slot) {
        let mask = table.len() - 1;
        let mut at = Self::home(table, key);
        loop {
            let slot = &table[at];
            if slot.run.load(Ordering::Relaxed) == 0 || slot.key.load(Ordering::Relaxed) == key {
                return (at, slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// Points `key` at `run`. This and the following methods are for the writer only.
    pub(super) fn set(&self, key: u64, run: u32) {
        let (_, slot) = Self::slot(self.table(), key);
        let new = slot.run.load(Ordering::Relaxed) == 0;
        slot.key.store(key, Ordering::Relaxed);
        slot.run.store(u64::from(run), Ordering::Release);
        if new {
            self.used.store(self.len() + 1, Ordering::Relaxed);
            if self.len() as usize * 8 > self.table().len() * 7 {
                self.grow();
            }
        }
    }

    /// Returns whether the table is nearly half full and should grow if its owner can afford [`Self::next_bytes`].
    pub(super) fn crowded(&self) -> bool {
        self.crowded_by(0)
    }

    pub(super) fn crowded_by(&self, more: u32) -> bool {
        (self.len() as usize + more as usize + A_STEP) * 2 > self.table().len()
    }

    pub(super) fn next_bytes(&self) -> u64 {
        2 * size_of_val::<[Slot]>(self.table()) as u64
    }

    pub(super) fn grow(&self) {
        let level = self.level.load(Ordering::Relaxed);
        if level as usize + 1 >= LEVELS {
            return;
        }
        let next = self.table_at(level + 1);
        for slot in self.table() {
            let run = slot.run.load(Ordering::Relaxed);
            if run != 0 {
                let key = slot.key.load(Ordering::Relaxed);
                let (_, target) = Self::slot(next, key);
                target.key.store(key, Ordering::Relaxed);
                target.run.store(run, Ordering::Relaxed);
            }
        }
        self.level.store(level + 1, Ordering::Release);
        self.version.fetch_add(2, Ordering::Release);
    }

    /// Removes `key` and moves later entries of its probe sequence back, so that no tombstone is needed.
    pub(super) fn remove(&self, key: u64) {
        let table = self.table();
        let mask = table.len() - 1;
        let (mut hole, slot) = Self::slot(table, key);
        if slot.run.load(Ordering::Relaxed) == 0 {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let run = table[next].run.load(Ordering::Relaxed);
            if run == 0 {
                break;
            }
            let moved = table[next].key.load(Ordering::Relaxed);
            let home = Self::home(table, moved);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                table[hole].key.store(moved, Ordering::Relaxed);
                table[hole].run.store(run, Ordering::Relaxed);
                hole = next;
            }
        }
        table[hole].run.store(0, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
        self.used.store(self.len() - 1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn toggle_moving(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn len(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        // Each table is twice the one before, and all up to the current one are allocated.
        let smallest = (size_of::<Slot>() << SMALLEST_HEADS_LOG2) as u64;
        self.next_bytes() - smallest
    }
}

impl std::fmt::Debug for Heads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Heads({} of {})", self.len(), self.table().len())
    }
}

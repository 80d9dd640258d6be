//! The result of a lookup, owned by the caller and reused.

use crate::ids::WorkerId;

const GROUP: usize = 64;

/// The number of leading keys of a chain that each worker holds: a counter per worker slot, written a bitset word at a
/// time. Residency is prefix-closed, so a deeper run's holders overwrite what the run before wrote for them.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    depths: Vec<u32>,
    deepest: u32,
    cut_short: bool,
    pub(super) visited: Vec<(u32, u64)>,
    pub(super) overflow: Vec<u64>,
}

impl PartialEq for Reach {
    fn eq(&self, other: &Self) -> bool {
        self.deepest == other.deepest && self.holders().eq(other.holders())
    }
}

impl Eq for Reach {}

/// For each value of four bits, a mask of all ones where a bit is set.
const NIBBLES: [[u32; 4]; 16] = {
    let mut masks = [[0; 4]; 16];
    let mut at = 0;
    while at < 64 {
        if ((at / 4) >> (at % 4)) & 1 == 1 {
            masks[at / 4][at % 4] = u32::MAX;
        }
        at += 1;
    }
    masks
};

impl Reach {
    /// Creates an empty result.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the leading keys resident on `worker`; 0 if none.
    pub fn of(&self, worker: WorkerId) -> u32 {
        self.depths.get(worker.index()).copied().unwrap_or(0)
    }

    /// Returns the leading keys resident on any worker.
    pub fn deepest(&self) -> u32 {
        self.deepest
    }

    /// Returns whether the result is consistent at one moment. It is `false` only if the writer thread was suspended
    /// for about a millisecond while it changed what was searched; workers may then hold more than reported.
    pub fn is_complete(&self) -> bool {
        !self.cut_short
    }

    /// Returns the leading keys by worker slot; slots past the end hold nothing.
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// Returns the workers that hold any of the chain, with the number of leading keys.
    pub fn holders(&self) -> impl Iterator<Item = (WorkerId, u32)> + '_ {
        let slots = (0..).zip(&self.depths);
        slots
            .filter(|(_, depth)| **depth > 0)
            .map(|(slot, depth)| (WorkerId(slot), *depth))
    }

    #[inline]
    pub(super) fn begin(&mut self, groups: u32) {
        if self.depths.len() < groups as usize * GROUP {
            self.depths.resize(groups as usize * GROUP, 0);
        }
        self.depths.fill(0);
        self.deepest = 0;
        self.cut_short = false;
        self.visited.clear();
    }

    #[cold]
    pub(super) fn cut_short(&mut self) {
        self.cut_short = true;
    }

    #[inline]
    pub(super) fn set_group(&mut self, group: u32, bits: u64, depth: u32) {
        let from = group as usize * GROUP;
        if self.depths.len() < from + GROUP {
            self.depths.resize(from + GROUP, 0);
        }
        let Some(slots) = self.depths[from..].first_chunk_mut::<GROUP>() else {
            return;
        };
        if bits.count_ones() < 8 {
            let mut left = bits;
            while left != 0 {
                slots[left.trailing_zeros() as usize % GROUP] = depth;
                left &= left - 1;
            }
            return;
        }
        let (quads, _) = slots.as_chunks_mut::<4>();
        for (quad, slots) in quads.iter_mut().enumerate() {
            let mask = &NIBBLES[(bits >> (4 * quad) & 15) as usize];
            for (slot, mask) in slots.iter_mut().zip(mask) {
                *slot = *slot & !mask | depth & mask;
            }
        }
    }

    #[inline]
    pub(super) fn set_one(&mut self, worker: u32, depth: u32) {
        if let Some(slot) = self.depths.get_mut(worker as usize) {
            *slot = depth;
        } else {
            self.begin_slot(worker, depth);
        }
    }

    #[cold]
    fn begin_slot(&mut self, worker: u32, depth: u32) {
        self.depths.resize((worker as usize / GROUP + 1) * GROUP, 0);
        self.depths[worker as usize] = depth;
    }

    #[inline]
    pub(super) fn set_deepest(&mut self, depth: u32) {
        self.deepest = depth;
    }
}

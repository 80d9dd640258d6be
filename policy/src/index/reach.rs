//! The answer of a lookup, owned by the caller and reused.

use crate::ids::WorkerId;

/// Workers answered for together: one word of a bitset.
const GROUP: usize = 64;

/// How many leading keys of the chain asked for each worker holds.
///
/// One counter per worker slot, written a bitset word at a time: a run's holders all get the same depth, and as
/// residency is prefix-closed, a deeper run's holders simply overwrite what the run before wrote for them.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    depths: Vec<u32>,
    deepest: u32,
    cut_short: bool,
    /// Runs that the walk passed, with the versions it saw.
    pub(super) visited: Vec<(u32, u64)>,
    /// Overflow words of the run at hand.
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
    /// An empty answer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leading keys resident on `worker`; 0 if none.
    #[must_use]
    pub fn of(&self, worker: WorkerId) -> u32 {
        self.depths.get(worker.index()).copied().unwrap_or(0)
    }

    /// Leading keys resident on anyone.
    #[must_use]
    pub fn deepest(&self) -> u32 {
        self.deepest
    }

    /// Whether the answer is of one moment of the index, as nearly every one is. `false` only where the thread that
    /// applies evidence was stopped for about a millisecond in the middle of changing just this chain, or of moving
    /// entries of the table in which the chain's next run was not found: then the walk was cut short there, and workers
    /// may hold more than is said.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.cut_short
    }

    /// Leading keys by worker slot; slots past the end hold nothing.
    #[must_use]
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// The workers that hold anything of the chain, with how many leading keys.
    pub fn holders(&self) -> impl Iterator<Item = (WorkerId, u32)> + '_ {
        let slots = (0..).zip(&self.depths);
        slots
            .filter(|(_, depth)| **depth > 0)
            .map(|(slot, depth)| (WorkerId(slot), *depth))
    }

    /// Nobody holds anything; room for this many groups of workers.
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

    /// The walk was given up.
    #[cold]
    pub(super) fn cut_short(&mut self) {
        self.cut_short = true;
    }

    /// Every worker of a group whose bit is set holds `depth` keys, whatever was said before.
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

    /// One worker holds `depth` keys.
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

    /// Somebody holds `depth` keys.
    #[inline]
    pub(super) fn set_deepest(&mut self, depth: u32) {
        self.deepest = depth;
    }
}

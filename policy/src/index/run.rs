//! A run: consecutive keys of one chain, stored as one record.
//!
//! | word | low half | high half | |
//! |---|---|---|---|
//! | 0 | version, odd while being changed | | hot |
//! | 1 | depth of the first key | length (16 bits), then the group of word 4 (16 bits) | |
//! | 2, 3 | the first key; the last key | | |
//! | 4 | full holders: a bit per worker of one group of 64 | | |
//! | 5 | address of the keys | address of the overflow, or 0 | |
//! | 6, 7 | a partial holder: worker | how many of the run's keys it holds; 0 for none | |
//! | 8 | parent | first child | cold |
//! | 9 | next sibling | previous sibling | |
//! | 10 | next more recently used | next less recently used | |
//! | 11 | number of children | keys past the end that the locator still knows | |
//!
//! The overflow, where a run's holders do not fit the record: `[groups | partials << 32]`, then `[group, bits]` pairs,
//! then partial holders as in word 6. A run id is the number of its line; 0 is no run.

use super::words::{Line, Words};
use crate::ids::PrefixHash;

pub(super) const SHAPE: usize = 1;
pub(super) const FIRST: usize = 2;
pub(super) const LAST: usize = 3;
pub(super) const FULL: usize = 4;
pub(super) const BLOCKS: usize = 5;
pub(super) const PARTIAL: usize = 6;
pub(super) const FAMILY: usize = 8;
pub(super) const SIBLINGS: usize = 9;
pub(super) const RECENCY: usize = 10;
pub(super) const CHILDREN: usize = 11;

pub(super) const INLINE_PARTIALS: usize = 2;

/// Returns the depth of the first key and the number of keys, for the writer.
pub(super) fn extent(line: &Line) -> (u32, u32) {
    let shape = line.get(SHAPE);
    (shape as u32, (shape >> 32) as u32 & 0xFFFF)
}

/// A reader's copy of a run, valid only if [`Line::unchanged`] confirms it.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) version: u64,
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) group: u32,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) full: u64,
    pub(super) keys: u32,
    pub(super) overflow: u32,
    pub(super) partials: [u64; INLINE_PARTIALS],
}

impl View {
    #[inline]
    pub(super) fn of(line: &Line) -> Option<Self> {
        let version = line.version()?;
        Some(Self::of_version(line, version))
    }

    /// Creates the writer's view, which cannot change concurrently.
    #[inline]
    pub(super) fn own(line: &Line) -> Self {
        Self::of_version(line, line.get(0))
    }

    #[inline]
    fn of_version(line: &Line, version: u64) -> Self {
        let (shape, blocks) = (line.get(SHAPE), line.get(BLOCKS));
        Self {
            version,
            start: shape as u32,
            len: (shape >> 32) as u32 & 0xFFFF,
            group: (shape >> 48) as u32,
            first: line.get(FIRST),
            last: line.get(LAST),
            full: line.get(FULL),
            keys: blocks as u32,
            overflow: (blocks >> 32) as u32,
            partials: [line.get(PARTIAL), line.get(PARTIAL + 1)],
        }
    }

    /// Returns how many keys of `rest` continue the run from its key `from` on. The far end usually decides at once.
    #[inline]
    pub(super) fn matched(&self, words: &Words, from: u32, rest: &[PrefixHash]) -> u32 {
        let ahead = self.len.saturating_sub(from);
        if rest.len() >= ahead as usize && ahead > 0 && rest[ahead as usize - 1].0 == self.last {
            return ahead;
        }
        let most = ahead.min(u32::try_from(rest.len()).unwrap_or(u32::MAX));
        let agrees =
            |count: u32| words.load(self.keys.wrapping_add(from + count - 1)) == rest[count as usize - 1].0;
        if most > 0 && agrees(most) {
            return most;
        }
        let (mut known, mut unknown) = (0, most);
        while known + 1 < unknown {
            let middle = known + (unknown - known) / 2;
            if agrees(middle) {
                known = middle
            } else {
                unknown = middle
            }
        }
        known
    }
}

pub(super) fn shape(start: u32, len: u32, group: u32) -> u64 {
    u64::from(start) | u64::from(len & 0xFFFF) << 32 | u64::from(group) << 48
}

pub(super) fn partial(worker: u32, reach: u32) -> u64 {
    u64::from(worker) | u64::from(reach) << 32
}

pub(super) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Returns the worker and the reach within the run of a partial holder, or the low and high half of another word.
pub(super) fn unpack(partial: u64) -> (u32, u32) {
    (partial as u32, (partial >> 32) as u32)
}

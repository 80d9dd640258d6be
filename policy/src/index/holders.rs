//! The holders of a run, decoded for the writer.

use super::pool::{Kind, Pool};
use super::run::{self, INLINE_PARTIALS, View};
use super::words::Words;

/// Full holders by group of 64 worker slots, and partial holders with the number of keys that they hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    pub(super) groups: Vec<(u32, u64)>,
    pub(super) partials: Vec<(u32, u32)>,
}

impl Holders {
    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.partials.clear();
    }

    pub(super) fn load(&mut self, words: &Words, view: &View) {
        self.clear();
        if view.full != 0 {
            self.groups.push((view.group, view.full));
        }
        self.partials.extend(
            view.partials
                .iter()
                .filter(|packed| **packed != 0)
                .map(|p| run::unpack(*p)),
        );
        if view.overflow != 0 {
            let (groups, partials) = run::unpack(words.load(view.overflow));
            let mut at = view.overflow + 1;
            for _ in 0..groups {
                self.groups.push((words.load(at) as u32, words.load(at + 1)));
                at += 2;
            }
            self.partials
                .extend((at..at + partials).map(|at| run::unpack(words.load(at))));
        }
    }

    /// Writes the holders to an open run. Addresses of other blocks stay valid.
    pub(super) fn store(&mut self, pool: &mut Pool, id: u32) {
        self.groups.retain(|(_, bits)| *bits != 0);
        let spilled = self.groups.len().saturating_sub(1);
        let beyond = self.partials.len().saturating_sub(INLINE_PARTIALS);
        let needed = if spilled + beyond == 0 {
            0
        } else {
            (1 + 2 * spilled + beyond) as u32
        };
        let view = View::own(pool.line(id));
        let mut overflow = view.overflow;
        let room = if overflow == 0 { 0 } else { pool.capacity(overflow) };
        if needed > room || needed * 2 + 8 < room {
            pool.free(overflow);
            overflow = match needed {
                0 => 0,
                _ => pool.alloc(id, Kind::Overflow, needed + needed / 4).unwrap_or(0),
            };
        } else if needed == 0 && overflow != 0 {
            pool.free(overflow);
            overflow = 0;
        }
        let words = &pool.shared.words;
        if overflow != 0 {
            words.store(overflow, run::pair(spilled as u32, beyond as u32));
            let groups = self
                .groups
                .iter()
                .skip(1)
                .flat_map(|(group, bits)| [u64::from(*group), *bits]);
            let partials = self
                .partials
                .iter()
                .skip(INLINE_PARTIALS)
                .map(|(w, reach)| run::partial(*w, *reach));
            (overflow + 1..)
                .zip(groups.chain(partials))
                .for_each(|(at, word)| words.store(at, word));
        }
        let line = pool.line(id);
        let (group, bits) = self.groups.first().copied().unwrap_or((0, 0));
        line.set(run::SHAPE, run::shape(view.start, view.len, group));
        line.set(run::FULL, bits);
        line.set_high(run::BLOCKS, overflow);
        for slot in 0..INLINE_PARTIALS {
            let packed = self
                .partials
                .get(slot)
                .map_or(0, |(worker, reach)| run::partial(*worker, *reach));
            line.set(run::PARTIAL + slot, packed);
        }
    }

    pub(super) fn is_full(&self, worker: u32) -> bool {
        self.groups
            .iter()
            .any(|(group, bits)| *group == worker / 64 && bits >> (worker % 64) & 1 == 1)
    }

    pub(super) fn set_full(&mut self, worker: u32) {
        let bit = 1 << (worker % 64);
        match self.groups.iter_mut().find(|(group, _)| *group == worker / 64) {
            Some((_, bits)) => *bits |= bit,
            None => self.groups.push((worker / 64, bit)),
        }
    }

    /// Removes a worker and returns how many keys of the run of length `len` it held.
    pub(super) fn take(&mut self, worker: u32, len: u32) -> u32 {
        if let Some(at) = self.partials.iter().position(|(holder, _)| *holder == worker) {
            return self.partials.swap_remove(at).1;
        }
        let bit = 1 << (worker % 64);
        match self
            .groups
            .iter_mut()
            .find(|(group, bits)| *group == worker / 64 && *bits & bit != 0)
        {
            Some((_, bits)) => {
                *bits &= !bit;
                len
            }
            None => 0,
        }
    }

    pub(super) fn has_full(&self) -> bool {
        self.groups.iter().any(|(_, bits)| *bits != 0)
    }

    pub(super) fn full_count(&self) -> u32 {
        self.groups.iter().map(|(_, bits)| bits.count_ones()).sum()
    }

    pub(super) fn full(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flat_map(|(group, bits)| {
            let group = *group;
            (0..64)
                .filter(move |bit| bits >> bit & 1 == 1)
                .map(move |bit| group * 64 + bit)
        })
    }

    pub(super) fn deepest_partial(&self) -> u32 {
        self.partials.iter().map(|(_, reach)| *reach).max().unwrap_or(0)
    }

    /// Adjusts the holders to a run that now ends at `len`: partial holders that reach the end become full ones.
    pub(super) fn cut(&mut self, len: u32) {
        for at in (0..self.partials.len()).rev() {
            if self.partials[at].1 >= len {
                let (worker, _) = self.partials.swap_remove(at);
                self.set_full(worker);
            }
        }
    }

    /// Adjusts the holders to a run that now starts `by` keys later. Partial holders that ended before are dropped.
    pub(super) fn drop_front(&mut self, by: u32) {
        self.partials.retain_mut(|(_, reach)| {
            *reach = reach.saturating_sub(by);
            *reach > 0
        });
    }
}

/// Returns how many keys of the run one worker holds, without decoding the rest.
pub(super) fn reach_of(words: &Words, view: &View, worker: u32) -> u32 {
    let (group, bit) = (worker / 64, 1u64 << (worker % 64));
    if view.full & bit != 0 && view.group == group {
        return view.len;
    }
    for packed in view.partials {
        if packed != 0 && packed as u32 == worker {
            return (packed >> 32) as u32;
        }
    }
    if view.overflow == 0 {
        return 0;
    }
    let (groups, partials) = run::unpack(words.load(view.overflow));
    let mut at = view.overflow + 1;
    for _ in 0..groups {
        if words.load(at) as u32 == group && words.load(at + 1) & bit != 0 {
            return view.len;
        }
        at += 2;
    }
    let packed = (at..at + partials)
        .map(|at| words.load(at))
        .find(|packed| *packed as u32 == worker);
    packed.map_or(0, |packed| (packed >> 32) as u32)
}

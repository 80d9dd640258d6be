//! Removals: lower a worker's reach and drop what has no holder left.

use super::trim::Removal;
use super::{MOST_PARTIALS, Writer};
use crate::ids::{PrefixHash, WorkerId};
use crate::index::holders::reach_of;
use crate::index::locator::Place;
use crate::index::run::{self, INLINE_PARTIALS, PARTIAL};

/// Buckets prefetched ahead: engines free a run from its end, so the cache misses of later removals overlap.
const AHEAD: u32 = 8;
/// Keys that a removal takes out of the locator at once; more are deferred to later writes.
const FEW_KEYS: u32 = 8;

impl Writer {
    pub(in crate::index) fn remove(&mut self, worker: WorkerId, hash: PrefixHash) -> u64 {
        let Some(place) = self.place_of(hash) else {
            self.stats.unknown_removals += 1;
            return 0;
        };
        let view = self.view(place.run);
        let off = place.depth - view.start;
        let reach = reach_of(&self.shared.words, &view, worker.0);
        if reach <= off {
            self.stats.unknown_removals += 1;
            return 0;
        }
        self.removed = Place {
            run: place.run,
            depth: place.depth.wrapping_sub(1),
        };
        if off > 0
            && (self.lower_alone(worker.0, place.run, off) || self.lower_partial(worker.0, place.run, off))
        {
            return u64::from(reach - off);
        }
        self.pay_some();
        self.prepare();
        let before = self.entries_of(worker);
        if reach == view.len && self.children_of(place.run) > 0 {
            self.drop_below(worker.0, place.run);
        }
        self.lower(worker.0, place.run, off);
        self.settle(place.run);
        let lost = before - self.entries_of(worker);
        self.merge_pending();
        lost
    }

    pub(in crate::index) fn remove_all(&mut self, worker: WorkerId, hashes: &[PrefixHash]) {
        let mut left = hashes;
        while let Some((&hash, rest)) = left.split_first() {
            let rises = self.rises(worker, hash, rest);
            left = &left[rises..];
            if let Some((&top, below)) = left.split_first() {
                self.remove(worker, top);
                left = below;
            }
        }
    }

    /// Returns how many of `next`, which are to be removed after `hash`, directly precede it in its run; removing the
    /// last of them removes all. Excludes the run's first key: it would defer more work than later writes can do.
    fn rises(&mut self, worker: WorkerId, hash: PrefixHash, next: &[PrefixHash]) -> usize {
        let Some(place) = self.place_of(hash) else {
            return 0;
        };
        let view = self.view(place.run);
        let off = place.depth - view.start;
        if reach_of(&self.shared.words, &view, worker.0) <= off {
            return 0;
        }
        let before = (1..off).rev().map(|off| self.shared.words.load(view.keys + off));
        let rises = before.zip(next).take_while(|(key, next)| *key == next.0).count();
        self.removed = Place {
            run: place.run,
            depth: place.depth - rises as u32,
        };
        rises
    }

    pub(in crate::index) fn forget(&mut self, worker: WorkerId) -> u64 {
        self.prepare();
        self.prune(worker.0);
        let taken = self.change_list(worker.0, |state| (state.entries, std::mem::take(&mut state.list)));
        let Some((before, mut runs)) = taken else {
            return 0;
        };
        // Deepest first, so that a run is childless when it goes.
        runs.sort_by_cached_key(|run| std::cmp::Reverse(self.shared.words.line(*run).low(run::SHAPE)));
        for run in runs {
            self.lower(worker.0, run, 0);
            self.settle(run);
        }
        self.debt.merges.append(&mut std::mem::take(&mut self.mergeable));
        before
    }

    /// Fast path where the worker alone holds the run's end and loses only that. Returns `false` if it does nothing.
    fn lower_alone(&mut self, worker: u32, run: u32, off: u32) -> bool {
        let view = self.view(run);
        let alone = view.full == 1 << (worker % 64) && view.group == worker / 64 && view.overflow == 0;
        let others = view
            .partials
            .iter()
            .any(|packed| *packed != 0 && (packed >> 32) as u32 >= off);
        if !alone || others || self.children_of(run) > 0 {
            return false;
        }
        self.lose(worker, view.len - off);
        self.shorten(run, &view, off, Removal::Now);
        if off.is_multiple_of(AHEAD) {
            let soon = off.saturating_sub(2 * AHEAD)..off.saturating_sub(AHEAD);
            self.locator
                .warm(soon.map(|off| self.shared.words.load(view.keys + off)));
        }
        true
    }

    /// Fast path where an old copy goes while a new one holds more. Returns `false` if it does nothing.
    fn lower_partial(&mut self, worker: u32, run: u32, off: u32) -> bool {
        let line = self.pool.line(run);
        let slot = (PARTIAL..PARTIAL + INLINE_PARTIALS).find(|slot| {
            let (holder, reach) = run::unpack(line.get(*slot));
            holder == worker && reach > off
        });
        let Some(slot) = slot else { return false };
        let (_, reach) = run::unpack(line.get(slot));
        line.open();
        line.set(slot, run::partial(worker, off));
        line.close();
        self.lose(worker, reach - off);
        true
    }

    fn drop_below(&mut self, worker: u32, run: u32) {
        let mut found = Vec::new();
        self.held_children(worker, run, &mut found);
        let mut at = 0;
        while let Some(next) = found.get(at).copied() {
            self.held_children(worker, next, &mut found);
            at += 1;
        }
        for below in found.into_iter().rev() {
            self.lower(worker, below, 0);
            self.settle(below);
        }
    }

    /// Collects a run's children that the worker holds, from its children or the worker's runs, whichever are fewer.
    fn held_children(&mut self, worker: u32, run: u32, found: &mut Vec<u32>) {
        let children = self.children_of(run);
        if children == 0 {
            return;
        }
        let words = &self.shared.words;
        let holds = |child: u32| reach_of(words, &super::View::own(words.line(child)), worker) > 0;
        let mine = self.workers.get(worker as usize);
        if let Some(state) = mine.filter(|state| state.list.len() < children as usize) {
            let mut children: Vec<u32> = state
                .list
                .iter()
                .copied()
                .filter(|mine| self.parent_of(*mine) == run)
                .collect();
            children.retain(|child| holds(*child));
            children.sort_unstable();
            children.dedup(); // a list may mention a run twice
            found.extend(children);
            return;
        }
        let mut child = self.first_child(run);
        while child != 0 {
            if holds(child) {
                found.push(child);
            }
            child = self.next_sibling(child);
        }
    }

    fn lower(&mut self, worker: u32, run: u32, reach: u32) {
        let len = self.view(run).len;
        let mut holders = self.take_holders(run);
        let old = holders.take(worker, len);
        if reach > 0 {
            holders.partials.push((worker, reach));
        }
        self.write_holders(run, &mut holders);
        self.put_scratch(holders);
        self.lose(worker, old.saturating_sub(reach));
        if reach == 0 && old > 0 {
            self.leave(worker);
        }
    }

    /// Shortens the run to its furthest holder, after holders left.
    fn settle(&mut self, run: u32) {
        let view = self.view(run);
        let holders = self.take_holders(run);
        let (held, partials) = match holders.has_full() {
            true => (view.len, holders.partials.len()),
            false => (holders.deepest_partial(), holders.partials.len()),
        };
        self.put_scratch(holders);
        if held < view.len {
            let few = view.len - held <= FEW_KEYS;
            self.trim(run, held, if few { Removal::Now } else { Removal::Later });
        }
        if held > 0 {
            self.mergeable.push(run);
            if partials > MOST_PARTIALS {
                self.bound_partials(run);
            }
        }
    }
}

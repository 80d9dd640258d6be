//! Shortening and removing runs.

use super::Writer;
use crate::index::locator::Place;
use crate::index::run::{self, LAST, SHAPE, View};

const WARM: u32 = 64;

/// When the locator entries of removed keys are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// At once: for a few keys, and where their memory is needed.
    Now,
    /// A bounded number with each later write (see `debt`).
    Later,
}

impl Writer {
    /// Shortens a childless run to `len` keys; at 0 it is removed. The caller has lowered its holders' counts.
    pub(super) fn trim(&mut self, run: u32, len: u32, removal: Removal) {
        let view = self.view(run);
        if len > 0 {
            self.shorten(run, &view, len, removal);
            return;
        }
        self.drop_run(run, &view, removal);
    }

    /// Removes the keys from `len` on from the locator, or records them as owed.
    fn leave_locator(&mut self, run: u32, view: &View, len: u32, removal: Removal) {
        debug_assert!(
            len < view.len && self.children_of(run) == 0,
            "only a leaf's end is trimmed"
        );
        self.stats.keys -= u64::from(view.len - len);
        // Owed keys directly follow the run's end, so once some are owed, all are.
        if removal == Removal::Later || self.owed(run) > 0 {
            self.owe(run, view.len - len);
        } else {
            self.remove_keys(run, view.start, view.keys, len..view.len);
        }
    }

    pub(super) fn remove_keys(&mut self, run: u32, start: u32, keys: u32, offsets: std::ops::Range<u32>) {
        let words = &self.shared.words;
        let mut from = offsets.start;
        while from < offsets.end {
            let to = offsets.end.min(from + WARM);
            if to - from > 1 {
                self.locator.warm((from..to).map(|off| words.load(keys + off)));
            }
            for off in from..to {
                let depth = start + off;
                self.locator.remove(words.load(keys + off), Place { run, depth });
            }
            from = to;
        }
    }

    /// Shortens a run; partial holders that reach the new end become full ones.
    pub(super) fn shorten(&mut self, run: u32, view: &View, len: u32, removal: Removal) {
        let simple = view.overflow == 0 && view.partials.iter().all(|packed| ((packed >> 32) as u32) < len);
        let last = self.shared.words.load(view.keys + len - 1);
        let line = self.pool.line(run);
        line.open();
        line.set(SHAPE, run::shape(view.start, len, view.group));
        line.set(LAST, last);
        if !simple {
            let mut holders = self.take_holders(run);
            holders.cut(len);
            holders.store(&mut self.pool, run);
            self.put_scratch(holders);
        }
        self.pool.line(run).close();
        self.leave_locator(run, view, len, removal);
        if self.owed(run) == 0 {
            self.fit(view.keys, len);
        }
    }

    pub(super) fn fit(&mut self, keys: u32, len: u32) {
        if self.pool.capacity(keys) > 2 * len + 32 {
            self.pool.shrink(keys, len + len / 4 + 7);
        }
    }

    /// Removes a childless run without holders from the tree. Its record and keys stay while they are owed.
    fn drop_run(&mut self, run: u32, view: &View, removal: Removal) {
        let shared = std::sync::Arc::clone(&self.shared);
        let parent = self.parent_of(run);
        let (line, above) = (shared.words.line(run), shared.words.line(parent));
        if parent != 0 {
            above.open();
        }
        line.open();
        self.disown(run);
        shared.heads(view.start).remove(view.first);
        self.unqueue(run);
        self.pool.free(view.overflow);
        line.set(SHAPE, run::shape(view.start, 0, 0));
        line.set(run::FULL, 0);
        line.set(run::BLOCKS, run::pair(view.keys, 0));
        (run::PARTIAL..run::PARTIAL + run::INLINE_PARTIALS).for_each(|slot| line.set(slot, 0));
        line.close();
        if parent != 0 {
            above.close();
            self.mergeable.push(parent);
        }
        self.stats.runs -= 1;
        self.leave_locator(run, view, 0, removal);
        if self.owed(run) == 0 {
            self.bury(run);
        }
    }

    pub(super) fn bury(&mut self, run: u32) {
        let shared = std::sync::Arc::clone(&self.shared);
        let (line, keys) = (shared.words.line(run), self.view(run).keys);
        line.open();
        self.retire(run, 0);
        line.close();
        self.pool.free(keys);
    }

    pub(super) fn retire(&mut self, run: u32, overflow: u32) {
        self.pool.free(overflow);
        let shared = std::sync::Arc::clone(&self.shared);
        let line = shared.words.line(run);
        for word in 1..crate::index::words::LINE_WORDS as usize {
            line.set(word, 0);
        }
        self.pool.free_run(run);
    }
}

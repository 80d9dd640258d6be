//! Splitting a run: where a chain branches off, or where too many copies end inside it.

use super::{MOST_PARTIALS, Writer};
use crate::index::locator::Place;
use crate::index::pool::Kind;
use crate::index::run::{self, BLOCKS, FIRST, LAST, SHAPE, View};

#[derive(Clone, Copy)]
struct Part {
    run: u32,
    keys: u32,
}

impl Writer {
    /// Splits a run at `at`, `0 < at < len`, and returns the first part. Children stay with the second part.
    pub(super) fn split(&mut self, run: u32, at: u32) -> Option<u32> {
        self.pay_all_of(run);
        let view = self.view(run);
        debug_assert!(at > 0 && at < view.len, "split inside the run");
        let new = self.pool.alloc_run()?;
        let prefix_is_new = at <= view.len - at + 4 * self.children_of(run);
        let (prefix, suffix) = if prefix_is_new { (new, run) } else { (run, new) };
        let blocks = (
            self.pool.alloc(prefix, Kind::Keys, at),
            self.pool
                .alloc(suffix, Kind::Keys, view.len - at + (view.len - at) / 8),
        );
        let (Some(head), Some(tail)) = blocks else {
            return None;
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let words = &shared.words;
        words.copy(view.keys, head, at);
        words.copy(view.keys + at, tail, view.len - at);
        let renamed = if prefix_is_new { 0..at } else { at..view.len };
        self.locator
            .warm(renamed.clone().map(|off| words.load(view.keys + off)));
        for off in renamed {
            let old = Place {
                run,
                depth: view.start + off,
            };
            self.locator.rename(words.load(view.keys + off), old, new);
        }
        let (first, last) = (words.line(prefix), words.line(suffix));
        first.open();
        last.open();
        if prefix_is_new {
            let parent = self.parent_of(run);
            self.disown(run);
            self.adopt(parent, new);
            self.queue_after(self.more_recent(run), new);
        } else {
            self.inherit(run, new);
            self.queue_after(run, new);
        }
        self.adopt(prefix, suffix);
        let parts = [(prefix, head), (suffix, tail)].map(|(run, keys)| Part { run, keys });
        self.write_parts(parts, &view, at, new);
        shared.branches.set(words.load(tail), suffix);
        shared.heads(view.start).set(view.first, prefix);
        first.close();
        last.close();
        self.pool.free(view.keys);
        self.stats.runs += 1;
        Some(prefix)
    }

    fn write_parts(&mut self, [prefix, suffix]: [Part; 2], old: &View, at: u32, new: u32) {
        let shared = std::sync::Arc::clone(&self.shared);
        let words = &shared.words;
        let mut holders = self.take_holders_of(old);
        let mut beyond = holders.clone();
        holders.cut(at);
        beyond.drop_front(at);
        let line = words.line(new);
        line.set(BLOCKS, 0);
        // The old record keeps its overflow, whichever part it now is; `store` reuses or frees it.
        for (Part { run, keys }, start, len, part) in [
            (prefix, old.start, at, &mut holders),
            (suffix, old.start + at, old.len - at, &mut beyond),
        ] {
            let line = words.line(run);
            line.set(SHAPE, run::shape(start, len, 0));
            line.set_low(BLOCKS, keys);
            line.set(FIRST, words.load(keys));
            line.set(LAST, words.load(keys + len - 1));
            part.store(&mut self.pool, run);
        }
        // All holders of the run hold some of the prefix; those that reached past the cut also hold the suffix.
        if new == prefix.run {
            self.join_all(&holders, new);
            let all = holders
                .full()
                .chain(holders.partials.iter().map(|(worker, _)| *worker));
            for worker in all.collect::<Vec<_>>() {
                let stays =
                    beyond.is_full(worker) || beyond.partials.iter().any(|(holder, _)| *holder == worker);
                if !stays {
                    self.leave(worker);
                }
            }
        } else {
            self.join_all(&beyond, new);
        }
        self.put_scratch(holders);
    }

    /// Splits a run at the median of its partial holders while there are too many of them.
    pub(super) fn bound_partials(&mut self, run: u32) {
        let holders = self.take_holders(run);
        if holders.partials.len() <= MOST_PARTIALS {
            self.put_scratch(holders);
            return;
        }
        let mut reaches: Vec<u32> = holders.partials.iter().map(|(_, reach)| *reach).collect();
        self.put_scratch(holders);
        reaches.sort_unstable();
        let median = reaches[reaches.len() / 2];
        let suffix_start = self.view(run).start + median;
        if let Some(prefix) = self.split(run, median) {
            self.bound_partials(prefix);
            let suffix = self
                .only_child(prefix)
                .filter(|child| View::own(self.pool.line(*child)).start == suffix_start);
            if let Some(suffix) = suffix {
                self.bound_partials(suffix);
            }
        }
    }
}

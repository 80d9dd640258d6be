//! Merges runs after a branch or a holder has gone, so that churn leaves no extra runs.

use super::{FEW_PARTIALS, Writer};
use crate::index::holders::Holders;
use crate::index::locator::Place;
use crate::index::pool::Kind;
use crate::index::run::{self, BLOCKS, FIRST, LAST, SHAPE, View};

impl Writer {
    /// Merges the runs noted during the operation with their only child, where that leaves few partial holders.
    pub(super) fn merge_pending(&mut self) {
        while let Some(run) = self.mergeable.pop() {
            if self.view(run).len == 0 {
                continue;
            }
            let parent = self.parent_of(run);
            if parent != 0 && self.only_child(parent) == Some(run) {
                self.merge(parent);
            } else {
                self.merge(run);
            }
        }
    }

    /// Merges a run with its only child into the record whose other part is cheaper to rename.
    fn merge(&mut self, upper: u32) {
        let Some(lower) = self.only_child(upper) else {
            return;
        };
        let (a, b) = (self.view(upper), self.view(lower));
        let len = a.len + b.len;
        if len > self.max_run || !self.pool.ready() {
            return;
        }
        let Some(mut holders) = self.merged_holders(&a, &b) else {
            return;
        };
        let keep_upper = b.len + 4 * self.children_of(lower) <= a.len;
        let (kept, gone) = if keep_upper {
            (upper, lower)
        } else {
            (lower, upper)
        };
        self.pay_all_of(upper);
        self.pay_all_of(lower);
        let Some(block) = self.pool.alloc(kept, Kind::Keys, len + len / 8) else {
            return;
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let words = &shared.words;
        words.copy(a.keys, block, a.len);
        words.copy(b.keys, block + a.len, b.len);
        let renamed = if keep_upper { a.len..len } else { 0..a.len };
        let keys = renamed.map(|off| (words.load(block + off), a.start + off));
        self.locator.warm(keys.clone().map(|(key, _)| key));
        for (key, depth) in keys {
            self.locator.rename(key, Place { run: gone, depth }, kept);
        }
        self.merge_members(&a, &b, kept, gone);
        let (line, dead) = (words.line(kept), words.line(gone));
        line.open();
        dead.open();
        shared.branches.remove(b.first);
        self.replace(upper, lower, keep_upper);
        if !keep_upper {
            shared.heads(a.start).set(a.first, lower);
        }
        line.set(SHAPE, run::shape(a.start, len, 0));
        line.set(FIRST, a.first);
        line.set(LAST, b.last);
        line.set_low(BLOCKS, block);
        holders.store(&mut self.pool, kept);
        self.retire(gone, if keep_upper { b.overflow } else { a.overflow });
        line.close();
        dead.close();
        self.pool.free(a.keys);
        self.pool.free(b.keys);
        self.stats.runs -= 1;
        self.mergeable.push(kept);
    }

    /// Moves the remaining record to the place of both in the tree and in the order of use.
    fn replace(&mut self, upper: u32, lower: u32, keep_upper: bool) {
        self.disown(lower);
        if keep_upper {
            self.inherit(lower, upper);
            self.unqueue(lower);
        } else {
            let parent = self.parent_of(upper);
            self.disown(upper);
            self.adopt(parent, lower);
            self.unqueue(lower);
            self.queue_after(upper, lower);
            self.unqueue(upper);
        }
    }

    /// Returns the holders of both runs as one, or `None` if too many would be partial.
    fn merged_holders(&mut self, a: &View, b: &View) -> Option<Holders> {
        let few = |holders: &Holders| holders.partials.len() <= FEW_PARTIALS;
        let upper = self.take_holders_of(a);
        let mut merged = Holders::default();
        merged.load(&self.shared.words, b);
        let surplus = upper.full_count().saturating_sub(merged.full_count()) as usize;
        if !few(&merged) || !few(&upper) || surplus + upper.partials.len() > FEW_PARTIALS {
            self.put_scratch(upper);
            return None;
        }
        merged.partials.iter_mut().for_each(|(_, reach)| *reach += a.len);
        for worker in upper.full() {
            if !merged.is_full(worker) && !merged.partials.iter().any(|(holder, _)| *holder == worker) {
                merged.partials.push((worker, a.len));
            }
        }
        merged.partials.extend(&upper.partials);
        self.put_scratch(upper);
        few(&merged).then_some(merged)
    }

    /// Updates the members after a merge: the holders of both runs now hold one run less.
    fn merge_members(&mut self, a: &View, b: &View, kept: u32, gone: u32) {
        let (mut upper, mut lower) = (Holders::default(), Holders::default());
        upper.load(&self.shared.words, a);
        lower.load(&self.shared.words, b);
        let below: Vec<u32> = lower
            .full()
            .chain(lower.partials.iter().map(|(worker, _)| *worker))
            .collect();
        for worker in &below {
            self.leave(*worker);
        }
        if self.parent_of(kept) == gone {
            // The lower record stays: workers that held only the upper run join it, with their count unchanged.
            for worker in upper
                .full()
                .chain(upper.partials.iter().map(|(worker, _)| *worker))
            {
                if !below.contains(&worker) {
                    self.change_list(worker, |state| state.list.push(kept));
                }
            }
        }
    }
}

//! Runs come, grow, split, merge and go.

use super::{FEW_PARTIALS, Writer, key_at};
use crate::ids::PrefixHash;
use crate::index::holders::Holders;
use crate::index::locator::Place;
use crate::index::pool::Kind;
use crate::index::run::{self, BLOCKS, FIRST, LAST, SHAPE, View};

/// Locator slots brought into the first-level cache at a time.
const WARM: u32 = 64;

impl Writer {
    pub(super) fn write_holders(&mut self, run: u32, holders: &mut Holders) {
        self.pool.line(run).open();
        holders.store(&mut self.pool, run);
        self.pool.line(run).close();
    }

    /// Enters keys as `run`'s from `depth` on, up to the first that is known already. Returns how many.
    fn enter(&mut self, run: u32, depth: u32, keys: &[PrefixHash]) -> u32 {
        self.locator.warm(keys.iter().map(|key| key.0));
        let shared = &self.shared;
        let fresh = (depth..).zip(keys).take_while(|(depth, key)| {
            self.locator.insert(key.0, Place { run, depth: *depth }, |place| {
                key_at(shared, place) == key.0
            })
        });
        fresh.count() as u32
    }

    /// A block with room for `len` keys and a quarter more, holding those of `old`.
    fn grown(&mut self, run: u32, old: u32, kept: u32, len: u32) -> Option<u32> {
        let room = (len + len / 4 + 7).min(self.max_run.max(len));
        let block = self.pool.alloc(run, Kind::Keys, room)?;
        if old != 0 {
            self.shared.words.copy(old, block, kept);
        }
        Some(block)
    }

    /// A new run of `worker`'s, below `parent` (0: at the root). Returns it and how many keys it took.
    ///
    /// The keys are entered only when they are in place, since entering reads the keys before them.
    pub(super) fn new_run(&mut self, worker: u32, parent: u32, keys: &[PrefixHash]) -> Option<(u32, u32)> {
        let start = if parent == 0 {
            0
        } else {
            self.view(parent).start + self.view(parent).len
        };
        let run = self.pool.alloc_run()?;
        let Some(block) = self.grown(run, 0, 0, keys.len() as u32) else {
            self.pool.free_run(run);
            return None;
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let line = shared.words.line(run);
        line.open();
        (block..)
            .zip(keys)
            .for_each(|(address, key)| shared.words.store(address, key.0));
        line.set(SHAPE, run::shape(start, 0, 0));
        line.set(BLOCKS, run::pair(block, 0));
        let taken = self.enter(run, start, keys).max(1);
        line.set(FIRST, keys[0].0);
        line.set(LAST, keys[taken as usize - 1].0);
        line.set(SHAPE, run::shape(start, taken, worker / 64));
        line.set(run::FULL, 1 << (worker % 64));
        line.close();
        let above = shared.words.line(parent);
        if parent != 0 {
            above.open();
        }
        self.adopt(parent, run);
        shared.heads(start).set(keys[0].0, run);
        if parent != 0 {
            above.close();
        }
        self.queue_after(0, run);
        if parent != 0 {
            self.touch_from(parent);
        }
        self.stats.runs += 1;
        self.stats.keys += u64::from(taken);
        self.join(worker, run);
        self.gain(worker, taken);
        Some((run, taken))
    }

    /// Appends keys to a childless run that `worker` holds in full. Other full holders become partial ones.
    pub(super) fn extend(&mut self, worker: u32, run: u32, keys: &[PrefixHash]) -> u32 {
        let view = self.view(run);
        let keys = &keys[..keys.len().min((self.max_run - view.len) as usize)];
        let need = view.len + keys.len() as u32;
        let moved = need > self.pool.capacity(view.keys);
        let block = if moved {
            let Some(block) = self.grown(run, view.keys, view.len, need) else {
                return 0;
            };
            block
        } else {
            view.keys
        };
        // Beyond the run's end: no reader looks there before the length says so.
        (block + view.len..)
            .zip(keys)
            .for_each(|(address, key)| self.shared.words.store(address, key.0));
        let line = self.pool.line(run);
        line.open();
        if moved {
            line.set_low(BLOCKS, block);
        }
        let taken = self.enter(run, view.start + view.len, keys);
        if taken > 0 {
            let line = self.pool.line(run);
            line.set(LAST, keys[taken as usize - 1].0);
            line.set(SHAPE, run::shape(view.start, view.len + taken, view.group));
            if view.overflow != 0 || view.full != 1 << (worker % 64) {
                self.leave_behind(worker, run, view.len);
            }
        }
        self.pool.line(run).close();
        if moved {
            self.pool.free(view.keys);
        }
        self.stats.keys += u64::from(taken);
        self.gain(worker, taken);
        taken
    }

    /// The open run grew past `len` for `worker` alone: its other full holders hold only a part from now on.
    fn leave_behind(&mut self, worker: u32, run: u32, len: u32) {
        let mut holders = self.take_holders(run);
        let behind: Vec<u32> = holders.full().filter(|holder| *holder != worker).collect();
        holders.groups.clear();
        holders.set_full(worker);
        holders
            .partials
            .extend(behind.into_iter().map(|holder| (holder, len)));
        holders.store(&mut self.pool, run);
        self.put_scratch(holders);
    }

    /// Cuts a run in two at `at`, `0 < at < len`. Returns the first part.
    ///
    /// The new record goes to whichever part is cheaper to rename in the locator; children stay with the second.
    pub(super) fn split(&mut self, run: u32, at: u32) -> Option<u32> {
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
        self.write_parts((prefix, head), (suffix, tail), &view, at, new);
        shared.branches.set(words.load(tail), suffix);
        shared.heads(view.start).set(view.first, prefix);
        first.close();
        last.close();
        self.pool.free(view.keys);
        self.stats.runs += 1;
        Some(prefix)
    }

    /// Fills the records of a split run's two parts, which are open: (run, its keys).
    fn write_parts(&mut self, prefix: (u32, u32), suffix: (u32, u32), old: &View, at: u32, new: u32) {
        let shared = std::sync::Arc::clone(&self.shared);
        let words = &shared.words;
        let mut holders = self.take_holders_of(old);
        let mut beyond = holders.clone();
        holders.cut(at);
        beyond.drop_front(at);
        let line = words.line(new);
        line.set(BLOCKS, 0);
        // The old record's overflow stays its own, whichever part it now is; `store` reuses or frees it.
        for ((run, block), start, len, part) in [
            (prefix, old.start, at, &mut holders),
            (suffix, old.start + at, old.len - at, &mut beyond),
        ] {
            let line = words.line(run);
            line.set(SHAPE, run::shape(start, len, 0));
            line.set_low(BLOCKS, block);
            line.set(FIRST, words.load(block));
            line.set(LAST, words.load(block + len - 1));
            part.store(&mut self.pool, run);
        }
        // Everyone who held any of the run holds some of the prefix; of the suffix, those who reached past the cut.
        if new == prefix.0 {
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

    fn take_holders_of(&mut self, view: &View) -> Holders {
        let mut holders = std::mem::take(&mut self.scratch);
        holders.load(&self.shared.words, view);
        holders
    }

    fn join_all(&mut self, holders: &Holders, run: u32) {
        for worker in holders
            .full()
            .chain(holders.partials.iter().map(|(worker, _)| *worker))
        {
            self.join(worker, run);
        }
    }

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
        let Some(block) = self.pool.alloc(kept, Kind::Keys, len + len / 8) else {
            return;
        };
        let shared = std::sync::Arc::clone(&self.shared);
        let words = &shared.words;
        words.copy(a.keys, block, a.len);
        words.copy(b.keys, block + a.len, b.len);
        let renamed = if keep_upper { a.len..len } else { 0..a.len };
        self.locator
            .warm(renamed.clone().map(|off| words.load(block + off)));
        for off in renamed {
            let old = Place {
                run: gone,
                depth: a.start + off,
            };
            self.locator.rename(words.load(block + off), old, kept);
        }
        self.merge_members(&a, &b, kept, gone);
        let (line, dead) = (words.line(kept), words.line(gone));
        line.open();
        dead.open();
        shared.branches.remove(b.first);
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

    /// The holders of both runs as one, or `None` if too many would hold only a part.
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

    /// Everyone held the upper run; the holders of both now hold one run less.
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
            // The lower record stays: those who held only the upper come to it, under the count they had.
            for worker in upper
                .full()
                .chain(upper.partials.iter().map(|(worker, _)| *worker))
            {
                if !below.contains(&worker)
                    && let Some(state) = self.workers.get_mut(worker as usize)
                {
                    state.list.push(kept);
                }
            }
        }
    }

    /// Blanks an open record and gives it back.
    fn retire(&mut self, run: u32, overflow: u32) {
        self.pool.free(overflow);
        let shared = std::sync::Arc::clone(&self.shared);
        let line = shared.words.line(run);
        for word in 1..crate::index::words::LINE_WORDS as usize {
            line.set(word, 0);
        }
        self.pool.free_run(run);
    }

    /// Shortens a childless run to `len` keys; at 0 it is gone. Its holders' counts are the caller's to have lowered.
    pub(super) fn trim(&mut self, run: u32, len: u32) {
        let view = self.view(run);
        if len > 0 {
            self.shorten(run, &view, len);
            return;
        }
        self.leave_locator(run, &view, 0);
        self.drop_run(run, &view);
    }

    /// Takes the keys from `len` on out of the locator.
    fn leave_locator(&mut self, run: u32, view: &View, len: u32) {
        debug_assert!(
            len < view.len && self.children_of(run) == 0,
            "only a leaf's end is trimmed"
        );
        let words = &self.shared.words;
        let mut from = len;
        while from < view.len {
            let to = view.len.min(from + WARM);
            if to - from > 1 {
                self.locator
                    .warm((from..to).map(|off| words.load(view.keys + off)));
            }
            for off in from..to {
                self.locator.remove(
                    words.load(view.keys + off),
                    Place {
                        run,
                        depth: view.start + off,
                    },
                );
            }
            from = to;
        }
        self.stats.keys -= u64::from(view.len - len);
    }

    /// Cuts a run's end off; partial holders that reach the new end become full ones.
    pub(super) fn shorten(&mut self, run: u32, view: &View, len: u32) {
        self.leave_locator(run, view, len);
        let simple = view.overflow == 0 && view.partials.iter().all(|packed| ((packed >> 32) as u32) < len);
        let line = self.pool.line(run);
        line.open();
        line.set(SHAPE, run::shape(view.start, len, view.group));
        line.set(LAST, self.shared.words.load(view.keys + len - 1));
        if !simple {
            let mut holders = self.take_holders(run);
            holders.cut(len);
            holders.store(&mut self.pool, run);
            self.put_scratch(holders);
        }
        self.pool.line(run).close();
        if self.pool.capacity(view.keys) > 2 * len + 32 {
            self.pool.shrink(view.keys, len + len / 4 + 7);
        }
    }

    fn drop_run(&mut self, run: u32, view: &View) {
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
        self.pool.free(view.keys);
        self.retire(run, view.overflow);
        line.close();
        if parent != 0 {
            above.close();
            self.mergeable.push(parent);
        }
        self.stats.runs -= 1;
    }
}

//! Creating and extending runs: what a store appends.

use super::{Writer, key_at, lives};
use crate::ids::PrefixHash;
use crate::index::locator::Place;
use crate::index::pool::Kind;
use crate::index::run::{self, BLOCKS, FIRST, LAST, SHAPE};

impl Writer {
    /// Inserts keys into the locator as `run`'s from `depth` on, up to the first known one. Returns how many.
    fn enter(&mut self, run: u32, depth: u32, keys: &[PrefixHash]) -> u32 {
        self.locator.warm(keys.iter().map(|key| key.0));
        let shared = &self.shared;
        // The run's new keys are known before its length includes them.
        let known =
            |place: Place, key| (place.run == run || lives(shared, place)) && key_at(shared, place) == key;
        let fresh = (depth..).zip(keys).take_while(|(depth, key)| {
            let place = Place { run, depth: *depth };
            self.locator.insert(key.0, place, |place| known(place, key.0))
        });
        fresh.count() as u32
    }

    fn grown(&mut self, run: u32, old: u32, kept: u32, len: u32) -> Option<u32> {
        let room = (len + len / 4 + 7).min(self.max_run.max(len));
        let block = self.pool.alloc(run, Kind::Keys, room)?;
        if old != 0 {
            self.shared.words.copy(old, block, kept);
        }
        Some(block)
    }

    /// Creates a run of `worker` below `parent` (0: at the root). Returns the run and the number of keys taken. The
    /// keys are entered only when they are in place, since entering reads the keys before them.
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
        self.pay_all_of(run);
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
        // Writes beyond the run's end: readers do not look there until the length includes it.
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

    /// Turns the other full holders of an open run into partial ones, after it grew past `len` for `worker` alone.
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
}

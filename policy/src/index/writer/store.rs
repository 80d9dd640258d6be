//! Stores: walk the chain along known runs, raise the worker's reach, append what is new.

use super::members::Worker;
use super::{FEW_PARTIALS, PIECE, Writer};
use crate::ids::{PrefixHash, WorkerId};
use crate::index::holders::reach_of;
use crate::index::{IndexLimits, StoreError};
use crate::sync::Ordering;

/// Progress of a store: the worker holds `run` up to `off`. Run 0 is the position before a prompt's first key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    pub(super) run: u32,
    pub(super) off: u32,
}

impl Writer {
    pub(in crate::index) fn store_after(
        &mut self,
        worker: WorkerId,
        parent: Option<PrefixHash>,
        hashes: &[PrefixHash],
    ) -> Result<u64, StoreError> {
        if worker.0 >= IndexLimits::MAX_WORKERS {
            return Err(StoreError::NoSuchWorker { worker });
        }
        let (mut at, depth) = match parent {
            None => (Cursor::default(), 0),
            Some(parent) => self.parent_cursor(worker, parent)?,
        };
        self.pay_some();
        self.admit(worker);
        let before = self.gained;
        let allowed = hashes
            .len()
            .min(IndexLimits::MAX_DEPTH.saturating_sub(depth as usize));
        let mut rest = &hashes[..allowed];
        let mut outcome = if allowed < hashes.len() {
            Err(StoreError::TooLong { keys: allowed })
        } else {
            Ok(())
        };
        while let Some(key) = rest.first() {
            if !self.make_room(at.run) {
                outcome = Err(StoreError::TooLong {
                    keys: allowed - rest.len(),
                });
                break;
            }
            match self.step(worker.0, &mut at, rest) {
                Some(consumed) => rest = &rest[consumed as usize..],
                None => {
                    self.stats.conflicts += 1;
                    outcome = Err(StoreError::Conflict { key: *key });
                    break;
                }
            }
        }
        let added = self.gained - before;
        self.finish_store(at.run);
        outcome.map(|()| added)
    }

    fn parent_cursor(&mut self, worker: WorkerId, parent: PrefixHash) -> Result<(Cursor, u32), StoreError> {
        if let Some(place) = self.place_of(parent) {
            let view = self.view(place.run);
            let off = place.depth - view.start + 1;
            if reach_of(&self.shared.words, &view, worker.0) >= off {
                return Ok((Cursor { run: place.run, off }, place.depth + 1));
            }
        }
        self.stats.unknown_parents += 1;
        Err(StoreError::UnknownParent { worker, parent })
    }

    fn admit(&mut self, worker: WorkerId) {
        if self.workers.len() <= worker.index() {
            self.workers.resize_with(worker.index() + 1, Worker::default);
            self.shared
                .groups
                .store(self.workers.len().div_ceil(64) as u32, Ordering::Relaxed);
        }
    }

    /// Advances by one known run or append. Returns the keys consumed; `None` if the next key has another parent.
    fn step(&mut self, worker: u32, at: &mut Cursor, rest: &[PrefixHash]) -> Option<u32> {
        if at.run != 0 && at.off < self.view(at.run).len {
            let matched = self.view(at.run).matched(&self.shared.words, at.off, rest);
            if matched > 0 {
                at.off += matched;
                self.raise(worker, at.run, at.off);
                return Some(matched);
            }
            if self.place_of(rest[0]).is_some() {
                return None;
            }
            at.run = self.split(at.run, at.off)?;
        } else if let Some(child) = self.shared.heads(at.run).known(rest[0].0) {
            if self.parent_of(child) != at.run {
                return None;
            }
            *at = Cursor {
                run: child,
                off: self.view(child).matched(&self.shared.words, 0, rest),
            };
            self.raise(worker, child, at.off);
            return Some(at.off);
        } else if self.place_of(rest[0]).is_some() {
            return None;
        }
        if at.run != 0 {
            self.touch_from(at.run);
        }
        let piece = &rest[..rest.len().min(PIECE)];
        let appended = if self.extendable(worker, at.run) {
            self.extend(worker, at.run, piece)
        } else {
            let (run, appended) = self.new_run(worker, at.run, piece)?;
            *at = Cursor { run, off: 0 };
            appended
        };
        at.off += appended;
        (appended > 0).then_some(appended)
    }

    /// Returns whether a run may grow at its end: childless, not too long, and few other holders would become partial.
    fn extendable(&mut self, worker: u32, run: u32) -> bool {
        if run == 0 || self.children_of(run) > 0 {
            return false;
        }
        let view = self.view(run);
        if view.len >= self.max_run {
            return false;
        }
        if view.overflow == 0 && view.full == 1 << (worker % 64) {
            return true;
        }
        let holders = self.take_holders(run);
        let left_behind = holders.full_count() as usize + holders.partials.len() - 1;
        self.put_scratch(holders);
        left_behind <= FEW_PARTIALS
    }

    pub(super) fn raise(&mut self, worker: u32, run: u32, reach: u32) {
        let view = self.view(run);
        let old = reach_of(&self.shared.words, &view, worker);
        if old >= reach {
            return;
        }
        let mut holders = self.take_holders(run);
        holders.take(worker, view.len);
        if reach >= view.len {
            holders.set_full(worker);
        } else {
            holders.partials.push((worker, reach));
        }
        self.write_holders(run, &mut holders);
        self.put_scratch(holders);
        self.gain(worker, reach - old);
        if old == 0 {
            self.join(worker, run);
        }
        self.mergeable.push(run);
    }

    /// Ends a store: marks the use, splits if too many holders were left behind, and notes possible merges.
    fn finish_store(&mut self, run: u32) {
        if run != 0 {
            self.touch_from(run);
            self.make_room(run);
            self.bound_partials(run);
        }
        self.merge_pending();
        self.make_room(0);
    }

    pub(in crate::index) fn touch(&mut self, chain: &[PrefixHash]) {
        let (mut rest, mut depth, mut last) = (chain, 0, 0);
        while let Some(run) = rest.first().and_then(|key| self.shared.heads(depth).known(key.0)) {
            let view = self.view(run);
            if view.start != depth {
                break;
            }
            let matched = view.matched(&self.shared.words, 0, rest);
            (last, depth) = (run, depth + matched);
            if matched < view.len {
                break;
            }
            rest = &rest[matched as usize..];
        }
        if last != 0 {
            self.touch_from(last);
        }
    }
}

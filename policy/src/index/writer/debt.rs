//! Work that removals defer to later writes.
//!
//! A departing worker's bits leave the runs at once, and runs without a holder leave the tree: from then on no lookup
//! and no count includes them, and the slot may be reused. The deferred work is private to the writer: the keys'
//! locator entries, a cache miss each, and merges of the remaining runs. Each later write does a bounded part of it.
//!
//! Until then the locator may lead to such a key, just after the end of its run, so it counts as absent
//! ([`Writer::place_of`]). A run's debt is paid before it grows, splits or merges, and all owed
//! keys before evictions.

use std::collections::VecDeque;

use super::Writer;
use crate::index::run::CHILDREN;

/// Locator entries that each write removes for earlier removals, which takes about a microsecond.
const KEYS_A_WRITE: u64 = 32;
const MERGES_A_WRITE: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Debt {
    /// Runs with debt, and some whose debt is paid.
    runs: VecDeque<u32>,
    pub(super) keys: u64,
    pub(super) merges: Vec<u32>,
}

impl Debt {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.merges.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        ((self.runs.capacity() + self.merges.capacity()) * size_of::<u32>()) as u64
    }
}

impl Writer {
    /// Returns the number of keys after the run's end that are still in the locator.
    pub(super) fn owed(&self, run: u32) -> u32 {
        self.pool.line(run).high(CHILDREN)
    }

    pub(super) fn owe(&mut self, run: u32, keys: u32) {
        let owed = self.owed(run);
        if owed == 0 {
            self.debt.runs.push_back(run);
        }
        self.pool.line(run).set_high(CHILDREN, owed + keys);
        self.debt.keys += u64::from(keys);
    }

    pub(super) fn pay_some(&mut self) {
        if !self.debt.is_empty() {
            self.pay(KEYS_A_WRITE);
            self.pay_merges(MERGES_A_WRITE);
        }
    }

    pub(in crate::index) fn tidy(&mut self, keys: u64) -> u64 {
        self.pay(keys);
        self.prepare();
        self.pay_merges(usize::try_from(keys).unwrap_or(usize::MAX));
        self.merge_pending();
        self.debt.keys
    }

    /// Pays all owed keys, when their memory is needed. Returns whether there were any.
    pub(super) fn pay_all_keys(&mut self) -> bool {
        let owed = self.debt.keys;
        self.pay(owed);
        owed > 0
    }

    pub(super) fn pay(&mut self, keys: u64) {
        let mut left = keys;
        while left > 0
            && let Some(run) = self.debt.runs.front().copied()
        {
            let part = u64::from(self.owed(run)).min(left);
            self.pay_of(run, part as u32);
            left -= part;
            if self.owed(run) == 0 {
                self.debt.runs.pop_front();
            }
        }
        if self.debt.runs.is_empty() {
            self.debt.runs = VecDeque::new();
        }
    }

    pub(super) fn pay_merges(&mut self, merges: usize) {
        for _ in 0..merges {
            match self.debt.merges.pop() {
                Some(run) => self.mergeable.push(run),
                None => {
                    self.debt.merges = Vec::new();
                    return;
                }
            }
        }
    }

    /// Pays a run's whole debt, before its block or positions are reused.
    pub(super) fn pay_all_of(&mut self, run: u32) {
        let owed = self.owed(run);
        self.pay_of(run, owed);
    }

    fn pay_of(&mut self, run: u32, keys: u32) {
        if keys == 0 {
            return;
        }
        let (view, owed) = (self.view(run), self.owed(run));
        let left = owed - keys;
        self.remove_keys(run, view.start, view.keys, view.len + left..view.len + owed);
        self.pool.line(run).set_high(CHILDREN, left);
        self.debt.keys -= u64::from(keys);
        if left == 0 && view.len == 0 {
            self.bury(run);
        } else if left == 0 {
            self.fit(view.keys, view.len);
        }
    }
}

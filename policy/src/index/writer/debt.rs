//! What a removal leaves to later writes.
//!
//! A worker that goes may take tens of thousands of keys along. Its bits leave the runs at once, and the runs that nobody
//! holds any more leave the tree: from then on no lookup and no count knows of them, and the worker's slot may be used
//! again. What is left is private to the writer: the keys' entries in the locator, a cache miss each, and merges of what
//! stayed behind. Each later write does a bounded part of that.
//!
//! Until then such a key still stands in its block, just after the end of its run (which may be of no length), and the
//! locator may lead to it; but the place it leads to is past the run's end, and so nobody is there ([`Writer::place_of`]).
//! A run pays what it owes before it grows, splits or merges, and everything is paid before the index evicts: the budget
//! never costs knowledge for the sake of garbage.

use std::collections::VecDeque;

use super::Writer;
use crate::index::run::CHILDREN;

/// Keys that a write takes out of the locator for removals before it: a microsecond.
const KEYS_A_WRITE: u64 = 32;
/// Merges it makes up for.
const MERGES_A_WRITE: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Debt {
    /// Runs that owe, and some that have paid since.
    runs: VecDeque<u32>,
    /// Keys they owe.
    pub(super) keys: u64,
    /// Runs that may merge with their only child.
    pub(super) merges: Vec<u32>,
}

impl Debt {
    pub(super) fn none(&self) -> bool {
        self.runs.is_empty() && self.merges.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        ((self.runs.capacity() + self.merges.capacity()) * size_of::<u32>()) as u64
    }
}

impl Writer {
    /// Keys after the run's end that the locator still knows.
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

    /// A write's part of what is owed.
    pub(super) fn pay_some(&mut self) {
        if !self.debt.none() {
            self.pay(KEYS_A_WRITE);
            self.pay_merges(MERGES_A_WRITE);
        }
    }

    /// See [`crate::index::Index::tidy`].
    pub(in crate::index) fn tidy(&mut self, keys: u64) -> u64 {
        self.pay(keys);
        self.prepare();
        self.pay_merges(usize::try_from(keys).unwrap_or(usize::MAX));
        self.merge_pending();
        self.debt.keys
    }

    /// All that is owed in keys, where their memory is wanted; whether that was any.
    pub(super) fn pay_everything(&mut self) -> bool {
        let owed = self.debt.keys;
        self.pay(owed);
        owed > 0
    }

    /// Takes owed keys out of the locator, about this many.
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

    /// All that one run owes, before its block or its positions are used for something else.
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

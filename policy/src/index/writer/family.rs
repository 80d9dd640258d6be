//! Links between runs: parent, children, siblings, and the order of use.
//!
//! Using a run uses all runs above it, so the least recent run is a leaf: eviction needs no search.

use super::Writer;
use crate::index::run::{CHILDREN, FAMILY, RECENCY, SIBLINGS};

impl Writer {
    pub(super) fn parent_of(&self, run: u32) -> u32 {
        self.pool.line(run).low(FAMILY)
    }

    pub(super) fn children_of(&self, run: u32) -> u32 {
        self.pool.line(run).low(CHILDREN)
    }

    pub(super) fn first_child(&self, run: u32) -> u32 {
        self.pool.line(run).high(FAMILY)
    }

    pub(super) fn next_sibling(&self, run: u32) -> u32 {
        self.pool.line(run).low(SIBLINGS)
    }

    pub(super) fn only_child(&self, run: u32) -> Option<u32> {
        (self.children_of(run) == 1).then(|| self.first_child(run))
    }

    /// Makes `run` a child of `parent`, or a root if `parent` is 0.
    pub(super) fn adopt(&self, parent: u32, run: u32) {
        let line = self.pool.line(run);
        line.set_low(FAMILY, parent);
        line.set(SIBLINGS, 0);
        if parent == 0 {
            return;
        }
        let next = self.first_child(parent);
        if next != 0 {
            line.set_low(SIBLINGS, next);
            self.pool.line(next).set_high(SIBLINGS, run);
        }
        let above = self.pool.line(parent);
        above.set_high(FAMILY, run);
        above.set_low(CHILDREN, above.low(CHILDREN) + 1);
    }

    pub(super) fn disown(&self, run: u32) {
        let line = self.pool.line(run);
        let (parent, next, previous) = (line.low(FAMILY), line.low(SIBLINGS), line.high(SIBLINGS));
        if parent == 0 {
            return;
        }
        let above = self.pool.line(parent);
        above.set_low(CHILDREN, above.low(CHILDREN) - 1);
        if previous == 0 {
            above.set_high(FAMILY, next);
        } else {
            self.pool.line(previous).set_low(SIBLINGS, next);
        }
        if next != 0 {
            self.pool.line(next).set_high(SIBLINGS, previous);
        }
        line.set_low(FAMILY, 0);
        line.set(SIBLINGS, 0);
    }

    /// Moves all children of `from` to `to`, which has none.
    pub(super) fn inherit(&self, from: u32, to: u32) {
        let (old, new) = (self.pool.line(from), self.pool.line(to));
        let mut child = old.high(FAMILY);
        new.set_high(FAMILY, child);
        new.set_low(CHILDREN, old.low(CHILDREN));
        old.set_high(FAMILY, 0);
        old.set_low(CHILDREN, 0);
        while child != 0 {
            self.pool.line(child).set_low(FAMILY, to);
            child = self.next_sibling(child);
        }
    }

    pub(super) fn more_recent(&self, run: u32) -> u32 {
        self.pool.line(run).low(RECENCY)
    }

    pub(super) fn less_recent(&self, run: u32) -> u32 {
        self.pool.line(run).high(RECENCY)
    }

    fn link(&mut self, newer: u32, older: u32) {
        match newer {
            0 => self.recent = older,
            _ => self.pool.line(newer).set_high(RECENCY, older),
        }
        match older {
            0 => self.stale = newer,
            _ => self.pool.line(older).set_low(RECENCY, newer),
        }
    }

    pub(super) fn unqueue(&mut self, run: u32) {
        let (newer, older) = (self.more_recent(run), self.less_recent(run));
        self.link(newer, older);
        self.pool.line(run).set(RECENCY, 0);
    }

    /// Inserts a run just after `newer`, or as the most recent if that is 0.
    pub(super) fn queue_after(&mut self, newer: u32, run: u32) {
        let older = if newer == 0 {
            self.recent
        } else {
            self.less_recent(newer)
        };
        self.link(newer, run);
        self.link(run, older);
    }

    pub(super) fn touch_from(&mut self, run: u32) {
        let mut at = run;
        while at != 0 {
            if self.recent != at {
                self.unqueue(at);
                self.queue_after(0, at);
            }
            at = self.parent_of(at);
        }
    }
}

//! Decodes the most recently used runs without changing anything.

use super::{Holders, Writer};
use crate::ids::{PrefixHash, WorkerId};
use crate::index::holders::reach_of;
use crate::index::prefix::{Copy, Prefix};
use crate::index::run::View;

impl Writer {
    pub(in crate::index) fn newest(
        &self,
        most: usize,
        worker: Option<WorkerId>,
        copies: usize,
    ) -> (Vec<Prefix>, bool) {
        let mut holders = Holders::default();
        let mut found = Vec::new();
        let mut run = self.recent;
        for _ in 0..most {
            if run == 0 {
                break;
            }
            found.extend(self.end_of(run, worker, copies, &mut holders));
            run = self.less_recent(run);
        }
        (found, run == 0)
    }

    /// Returns the end of a run, or `None` if no worker, or not the one asked for, holds any of it.
    fn end_of(
        &self,
        run: u32,
        worker: Option<WorkerId>,
        copies: usize,
        holders: &mut Holders,
    ) -> Option<Prefix> {
        let view = self.view(run);
        holders.load(&self.shared.words, &view);
        let copies = match worker {
            Some(worker) => {
                let reach = reach_of(&self.shared.words, &view, worker.0);
                vec![self.copy(&view, worker.0, reach)?]
            }
            None => {
                let full = holders.full().map(|worker| (worker, view.len));
                let all = full.chain(holders.partials.iter().copied());
                let known = all.filter_map(|(worker, reach)| self.copy(&view, worker, reach));
                known.take(copies).collect()
            }
        };
        let prefix = Prefix {
            last: PrefixHash(view.last),
            keys: view.start + view.len,
            forks: self.children_of(run),
            holders: holders.full_count() + holders.partials.len() as u32,
            copies,
        };
        (prefix.holders > 0).then_some(prefix)
    }

    fn copy(&self, view: &View, worker: u32, reach: u32) -> Option<Copy> {
        let at = reach.min(view.len).checked_sub(1)?;
        Some(Copy {
            worker: WorkerId(worker),
            keys: view.start + at + 1,
            last: PrefixHash(self.shared.words.load(view.keys + at)),
        })
    }
}

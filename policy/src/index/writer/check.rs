//! The invariants between operations, as one function for tests and `debug_assert!`.

use std::collections::{HashMap, HashSet};

use super::members::Worker;
use super::{MOST_PARTIALS, Writer};
use crate::index::holders::Holders;

impl Writer {
    pub(in crate::index) fn broken(&self) -> Option<String> {
        let (mut runs, mut keys) = (0, 0);
        let mut held: HashMap<u32, (u64, u32)> = HashMap::new();
        let listed = |worker: &Worker| worker.list.iter().copied().collect();
        let lists: Vec<HashSet<u32>> = self.workers.iter().map(listed).collect();
        let mut seen = HashSet::new();
        let mut run = self.recent;
        while run != 0 {
            let problem = self.broken_run(run, &seen);
            if let Some(problem) = problem {
                return Some(format!("run {run}: {problem}: {:?}", self.view(run)));
            }
            let view = self.view(run);
            runs += 1;
            keys += u64::from(view.len);
            let mut holders = Holders::default();
            holders.load(&self.shared.words, &view);
            let full = holders.full().map(|worker| (worker, view.len));
            for (worker, reach) in full.chain(holders.partials.iter().copied()) {
                let (entries, count) = held.entry(worker).or_default();
                *entries += u64::from(reach);
                *count += 1;
                if !lists[worker as usize].contains(&run) {
                    return Some(format!("worker {worker}'s list lacks run {run}"));
                }
            }
            seen.insert(run);
            run = self.less_recent(run);
        }
        for (slot, worker) in self.workers.iter().enumerate() {
            let expected = held.get(&(slot as u32)).copied().unwrap_or_default();
            if (worker.entries, worker.runs) != expected {
                return Some(format!("worker {slot} counts {worker:?}, holds {expected:?}"));
            }
        }
        let entries: u64 = held.values().map(|(entries, _)| entries).sum();
        let counted = (self.stats.runs, self.stats.keys, self.stats.entries);
        if counted != (runs, keys, entries)
            || u64::from(self.shared.roots.len() + self.shared.branches.len()) != runs
        {
            return Some(format!("counted {counted:?}, found {:?}", (runs, keys, entries)));
        }
        let bytes: usize = self.workers.iter().map(|worker| worker.list.capacity() * 4).sum();
        let sums = [
            (self.pool.check(), "the pool's sums are off"),
            (
                self.locator.len() == keys + self.debt.keys,
                "the locator knows keys that nobody owes",
            ),
            (self.lists == bytes as u64, "the lists' bytes are miscounted"),
        ];
        let off = sums.iter().find(|(holds, _)| !holds);
        off.map(|(_, sum)| (*sum).to_owned())
    }

    fn broken_run(&self, run: u32, more_recent: &HashSet<u32>) -> Option<&'static str> {
        let (view, parent) = (self.view(run), self.parent_of(run));
        let above = self.view(parent);
        let mut holders = Holders::default();
        holders.load(&self.shared.words, &view);
        let key = |off: u32| self.shared.words.load(view.keys + off);
        let placed = (0..view.len).all(|off| {
            let place = self.place_of(crate::ids::PrefixHash(key(off)));
            place.is_some_and(|place| place.run == run && place.depth == view.start + off)
        });
        let next = |child: &u32| Some(self.next_sibling(*child));
        let children = std::iter::successors(Some(self.first_child(run)), next)
            .take_while(|child| *child != 0 && self.parent_of(*child) == run)
            .count() as u32;
        let depth = if parent == 0 { 0 } else { above.start + above.len };
        let distinct: HashSet<u32> = holders.partials.iter().map(|(worker, _)| *worker).collect();
        let mut upper = Holders::default();
        upper.load(&self.shared.words, &above);
        let rules = [
            (view.version & 1 == 0, "left open"),
            (view.len > 0 && view.len <= self.max_run, "of no length"),
            (
                view.first == key(0) && view.last == key(view.len - 1),
                "its ends are not its keys",
            ),
            (
                self.shared.heads(view.start).find(view.first) == Ok(Some(run)),
                "not found by its first key",
            ),
            (placed, "a key is not located"),
            (holders.has_full(), "nobody holds its end"),
            (
                holders.partials.len() <= MOST_PARTIALS,
                "too many partial holders",
            ),
            (
                holders
                    .partials
                    .iter()
                    .all(|(_, reach)| *reach > 0 && *reach < view.len),
                "a partial reach is none",
            ),
            (distinct.len() == holders.partials.len(), "a partial holder twice"),
            (
                !holders.full().any(|worker| distinct.contains(&worker)),
                "a holder both full and partial",
            ),
            (children == self.children_of(run), "its children are miscounted"),
            (view.start == depth, "not at its depth"),
            (
                parent == 0 || more_recent.contains(&parent),
                "more recent than its parent",
            ),
            (
                parent == 0
                    || holders
                        .full()
                        .chain(distinct.iter().copied())
                        .all(|worker| upper.is_full(worker)),
                "held without its parent",
            ),
        ];
        rules.iter().find(|(holds, _)| !holds).map(|(_, rule)| *rule)
    }
}

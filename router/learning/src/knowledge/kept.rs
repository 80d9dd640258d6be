//! What is written down of what was learned, and taken up again.

use policy::ids::{PrefixHash, WorkerId};
use policy::residency::chains;

use super::Knowledge;
use super::places::Place;
use crate::format::{Contents, Kind};

/// Chains that are restored before requests have their turn again.
const BATCH: usize = 64;

impl Knowledge {
    /// All that outlives the router. `names` are the workers', by slot.
    #[must_use]
    pub fn contents(&self, names: &[&str], taken_ms: u64) -> Contents {
        // One worker at a time, so that requests wait for no more than one.
        let workers = (0..)
            .zip(names)
            .map(|(slot, &name)| (name.to_owned(), self.residency.lock().entries(WorkerId(slot))))
            .collect();
        let place = |(key, place): (PrefixHash, Place)| match place {
            Place::Counted(tokens) => (key.0, tokens, Kind::Counted),
            Place::Tip { total, .. } => (key.0, total, Kind::Tip),
            Place::Guessed(tokens) => (key.0, tokens, Kind::Guessed),
        };
        Contents {
            taken_ms,
            workers,
            models: self.models.all(),
            places: self.places.all().into_iter().map(place).collect(),
            last_workers: self.conversations.last_workers(),
            prompts: self.conversations.prompts(),
            outcomes: Vec::new(),
        }
    }

    /// Takes up what another router wrote down; workers go by their names. What was learned since comes first. Returns
    /// the number of entries.
    pub fn restore(&self, contents: &Contents, names: &[&str]) -> usize {
        let slot = |name: &str| {
            let at = names.iter().position(|&known| known == name)?;
            u32::try_from(at).ok().map(WorkerId)
        };
        let slots: Vec<Option<WorkerId>> = contents.workers.iter().map(|(name, _)| slot(name)).collect();
        for (name, ratio, gap) in &contents.models {
            self.models.restore(name, *ratio, *gap);
        }
        for &(key, tokens, kind) in &contents.places {
            let place = match kind {
                Kind::Counted => Place::Counted(tokens),
                Kind::Tip => Place::Tip {
                    total: tokens,
                    // As most answers do; which it was is not written down.
                    ended: true,
                },
                Kind::Guessed => Place::Guessed(tokens),
            };
            self.places.restore(PrefixHash(key), place);
        }
        for &(session, worker) in &contents.last_workers {
            if let Some(worker) = slots.get(worker as usize).copied().flatten() {
                self.conversations.restore_worker(session, worker);
            }
        }
        for &(key, session) in &contents.prompts {
            self.conversations.restore_prompt(PrefixHash(key), session);
        }
        self.emptied.restoring(contents.taken_ms);
        let mut restored = 0;
        for ((_, entries), worker) in contents.workers.iter().zip(slots) {
            let Some(worker) = worker else { continue };
            let mut chains = chains(entries).peekable();
            while chains.peek().is_some() {
                let is_gone = self.update(worker, |residency| {
                    // Asked under the lock: who empties the mirror after this takes it too.
                    let is_gone = self.emptied.since(worker, contents.taken_ms);
                    for chain in chains.by_ref().take(if is_gone { 0 } else { BATCH }) {
                        residency.restore(worker, &chain);
                    }
                    is_gone
                });
                if is_gone {
                    break;
                }
            }
            if chains.peek().is_none() {
                restored += entries.len();
            }
        }
        restored
    }

    /// A worker's history tells that its cache was emptied then, in milliseconds since 1970 by its clock. What a snapshot
    /// says of an earlier time is not believed any more, unless that was heard of before.
    pub fn emptied(&self, worker: WorkerId, at_ms: u64) {
        if self.emptied.worker(worker, at_ms) {
            self.forget(worker);
        }
    }

    /// A worker's cache was emptied just now, at this time of its clock, and was forgotten. A history that tells of it
    /// later, or a snapshot from before, is not believed.
    pub fn emptied_live(&self, worker: WorkerId, at_ms: u64) {
        self.emptied.worker(worker, at_ms);
    }
}

//! Export and restore of learned state, for snapshots.

use policy::ids::{PrefixHash, WorkerId};
use policy::residency::chains;

use super::Knowledge;
use super::token_offset::TokenOffset;
use crate::format::{Contents, PositionKind};

/// Number of chains restored per acquisition of the lock.
const BATCH: usize = 64;

impl Knowledge {
    /// Returns the caches, models, token positions and last workers, which outlive the process. `names`: the workers'
    /// names by slot.
    pub fn contents(&self, names: &[&str], taken_ms: u64) -> Contents {
        // One worker at a time bounds the time that requests wait for the lock.
        let workers = (0..)
            .zip(names)
            .map(|(slot, &name)| (name.to_owned(), self.residency.lock().entries(WorkerId(slot))))
            .collect();
        let place = |(key, place): (PrefixHash, TokenOffset)| match place {
            TokenOffset::Counted(tokens) => (key.0, tokens, PositionKind::Counted),
            TokenOffset::Tip { total, .. } => (key.0, total, PositionKind::Tip),
            TokenOffset::Guessed(tokens) => (key.0, tokens, PositionKind::Guessed),
        };
        Contents {
            taken_ms,
            workers,
            models: self.models.all(),
            places: self.offsets.all().into_iter().map(place).collect(),
            last_workers: self.conversations.last_workers(),
            prompts: self.conversations.prompts(),
            ..Contents::default()
        }
    }

    /// Restores the contents of a snapshot, matching workers by name. Entries learned since the start take precedence.
    /// Returns the number of cache entries restored.
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
                PositionKind::Counted => TokenOffset::Counted(tokens),
                PositionKind::Tip => TokenOffset::Tip {
                    total: tokens,
                    // True for most responses; the snapshot does not record it.
                    ended: true,
                },
                PositionKind::Guessed => TokenOffset::Guessed(tokens),
            };
            self.offsets.restore(PrefixHash(key), place);
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
                    // Checked under the lock, which clearing the mirror takes as well.
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

    /// Records from a replayed history that a worker's cache was cleared, in milliseconds since 1970 by the worker's
    /// clock. Removes residency restored from an older snapshot, unless the clear was already known.
    pub fn emptied(&self, worker: WorkerId, at_ms: u64) {
        if self.emptied.worker(worker, at_ms) {
            self.forget(worker);
        }
    }

    /// Records a live clear at `at_ms` of the worker's clock, whose residency was already removed. A history that
    /// repeats it is ignored, and so is an older snapshot.
    pub fn emptied_live(&self, worker: WorkerId, at_ms: u64) {
        self.emptied.worker(worker, at_ms);
    }
}

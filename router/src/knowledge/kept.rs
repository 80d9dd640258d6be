//! What is written down of what was learned, and taken up again.

use policy::ids::{PrefixHash, WorkerId};
use policy::residency::chains;

use super::{Knowledge, MAX_GAP, Model};
use crate::snapshot::format::Contents;
use policy::estimate::TokensPerByte;

/// Chains that are restored before requests have their turn again.
const BATCH: usize = 64;

impl Knowledge {
    /// All that outlives the router. `names` are the workers', by slot.
    #[must_use]
    pub fn contents(&self, names: &[&str], taken_s: u64) -> Contents {
        // One worker at a time, so that requests wait for no more than one.
        let workers = (0..)
            .zip(names)
            .map(|(slot, &name)| (name.to_owned(), self.residency.lock().entries(WorkerId(slot))))
            .collect();
        let models = (self.models.lock().iter())
            .map(|(name, model)| (name.clone(), model.ratio.ratio(), model.gap))
            .collect();
        let anchors = (self.anchors.lock().iter().rev())
            .map(|(key, &tokens)| (key.0, tokens))
            .collect();
        let last_workers = (self.last_worker.lock().iter().rev())
            .map(|(&session, worker)| (session, worker.0))
            .collect();
        let prompts = (self.prompts.lock().iter().rev())
            .map(|(key, &session)| (key.0, session))
            .collect();
        Contents {
            taken_s,
            workers,
            models,
            anchors,
            last_workers,
            prompts,
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
            let mut models = self.models.lock();
            if !models.contains(name) {
                let ratio = TokensPerByte::new(*ratio);
                let gap = (*gap).min(MAX_GAP);
                models.put(name.clone(), Model { ratio, gap });
            }
        }
        for &(key, tokens) in &contents.anchors {
            let mut anchors = self.anchors.lock();
            if !anchors.contains(&PrefixHash(key)) {
                anchors.put(PrefixHash(key), tokens);
            }
        }
        for &(session, worker) in &contents.last_workers {
            let Some(worker) = slots.get(worker as usize).copied().flatten() else {
                continue;
            };
            let mut last_worker = self.last_worker.lock();
            if !last_worker.contains(&session) {
                last_worker.put(session, worker);
            }
        }
        for &(key, session) in &contents.prompts {
            let mut prompts = self.prompts.lock();
            if !prompts.contains(&PrefixHash(key)) {
                prompts.put(PrefixHash(key), session);
            }
        }
        let mut restored = 0;
        for ((_, entries), worker) in contents.workers.iter().zip(slots) {
            let Some(worker) = worker else { continue };
            restored += entries.len();
            let mut chains = chains(entries).peekable();
            while chains.peek().is_some() {
                self.update(worker, |residency| {
                    for chain in chains.by_ref().take(BATCH) {
                        residency.restore(worker, &chain);
                    }
                });
            }
        }
        restored
    }
}

//! Where conversations are, and which prompt continues which.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::{Mutex, RwLock};
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};

/// Conversations that are remembered.
const CONVERSATIONS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// The conversations used last.
#[derive(Debug)]
pub(super) struct Conversations {
    last_worker: RwLock<LruCache<u64, WorkerId>>,
    /// The last key of each conversation's last prompt.
    prompts: Mutex<LruCache<PrefixHash, u64>>,
}

impl Default for Conversations {
    fn default() -> Self {
        Self {
            last_worker: RwLock::new(LruCache::new(CONVERSATIONS)),
            prompts: Mutex::new(LruCache::new(CONVERSATIONS)),
        }
    }
}

impl Conversations {
    pub(super) fn last_worker(&self, session: u64) -> Option<WorkerId> {
        self.last_worker.read().peek(&session).copied()
    }

    /// A turn went to a worker. Returns where the one before went, if elsewhere.
    pub(super) fn moved(&self, session: u64, worker: WorkerId) -> Option<WorkerId> {
        let last = self.last_worker.write().put(session, worker);
        last.filter(|last| *last != worker)
    }

    /// The conversation that this prompt continues, or a new one that it begins; `None` for a prompt without keys.
    pub(super) fn of(&self, chain: &Chain) -> Option<u64> {
        let last = chain.last()?;
        let mut prompts = self.prompts.lock();
        if let Some(same) = prompts.get(&last) {
            return Some(*same);
        }
        let continued = chain.hashes().iter().rev().find_map(|key| prompts.pop(key));
        let conversation = continued.unwrap_or(last.0);
        prompts.put(last, conversation);
        Some(conversation)
    }

    /// Each conversation's last worker's slot, the least recently used first.
    pub(super) fn last_workers(&self) -> Vec<(u64, u32)> {
        let last_worker = self.last_worker.read();
        let entries = last_worker.iter().rev();
        entries.map(|(&session, worker)| (session, worker.0)).collect()
    }

    /// Each conversation by its last prompt, the least recently used first.
    pub(super) fn prompts(&self) -> Vec<(u64, u64)> {
        let prompts = self.prompts.lock();
        prompts
            .iter()
            .rev()
            .map(|(key, &session)| (key.0, session))
            .collect()
    }

    /// Takes up a last worker, unless a newer one is known.
    pub(super) fn restore_worker(&self, session: u64, worker: WorkerId) {
        let mut last_worker = self.last_worker.write();
        if !last_worker.contains(&session) {
            last_worker.put(session, worker);
        }
    }

    /// Takes up a last prompt, unless it is known already.
    pub(super) fn restore_prompt(&self, key: PrefixHash, session: u64) {
        let mut prompts = self.prompts.lock();
        if !prompts.contains(&key) {
            prompts.put(key, session);
        }
    }
}

//! What the router has learned, behind its locks: what lives where, tokens per byte, where conversations are.
//!
//! Lookups take no lock: the index is read while it is written. What happened is applied by one at a time, in a few
//! microseconds. No lock is held across an await.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::LruCache;
use parking_lot::Mutex;
use policy::estimate::TokensPerByte;
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{IndexLimits, IndexReader, IndexStats, Reach};
use policy::residency::Residency;
use policy::units::Tokens;

use crate::path::fingerprint::{Extent, Fingerprint};

/// Conversations whose last worker is remembered.
const CONVERSATIONS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// Models whose ratio is remembered.
const MODELS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// What the router has learned.
#[derive(Debug)]
pub struct Knowledge {
    residency: Mutex<Residency>,
    index: IndexReader,
    /// Tokens believed held by each worker, by slot: published whenever what lives there changes.
    held: Vec<AtomicU64>,
    ratios: Mutex<LruCache<String, TokensPerByte>>,
    initial_ratio: f64,
    last_worker: Mutex<LruCache<u64, WorkerId>>,
    /// The last key of each conversation's last prompt.
    prompts: Mutex<LruCache<PrefixHash, u64>>,
}

/// A prompt's length and where it lives.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Tokens of the prompt, as far as they can be told.
    pub prompt: Tokens,
    /// Leading tokens resident, by worker slot.
    pub resident: Vec<Tokens>,
    /// Tokens believed held in all, by worker slot.
    pub indexed: Vec<Tokens>,
    /// Tokens per unit of the chain's ends.
    pub tokens_per_unit: f64,
}

impl Knowledge {
    /// Nothing learned, for workers of these capacities.
    #[must_use]
    pub fn new(index_bytes: u64, capacities: &[Tokens], initial_ratio: f64) -> Self {
        let residency = Residency::new(
            IndexLimits {
                max_bytes: index_bytes,
            },
            capacities,
        );
        Self {
            index: residency.reader(),
            held: capacities.iter().map(|_| AtomicU64::new(0)).collect(),
            residency: Mutex::new(residency),
            ratios: Mutex::new(LruCache::new(MODELS)),
            initial_ratio,
            last_worker: Mutex::new(LruCache::new(CONVERSATIONS)),
            prompts: Mutex::new(LruCache::new(CONVERSATIONS)),
        }
    }

    /// Looks a prompt up. Writes nothing.
    #[must_use]
    pub fn look_up(&self, model: &str, fingerprint: &Fingerprint, workers: usize) -> Match {
        let tokens_per_unit = match fingerprint.extent {
            Extent::Tokens(_) => 1.0,
            Extent::Bytes(_) => self.ratio(model),
        };
        let tokens = |units: u64| Tokens((units as f64 * tokens_per_unit).round() as u64);
        let mut reach = Reach::new();
        self.index.lookup(fingerprint.chain.hashes(), &mut reach);
        let slots = (0..workers as u32).map(WorkerId);
        let indexed = slots.clone().map(|worker| self.held(worker)).collect();
        let resident = slots
            .map(|worker| tokens(fingerprint.chain.span(reach.of(worker) as usize)))
            .collect();
        let (Extent::Bytes(units) | Extent::Tokens(units)) = fingerprint.extent;
        Match {
            prompt: tokens(units),
            resident,
            indexed,
            tokens_per_unit,
        }
    }

    /// Tokens believed held by a worker.
    #[must_use]
    pub fn held(&self, worker: WorkerId) -> Tokens {
        Tokens(
            self.held
                .get(worker.index())
                .map_or(0, |tokens| tokens.load(Ordering::Relaxed)),
        )
    }

    /// Applies what happened on a worker to the picture of what lives where.
    pub fn update<T>(&self, worker: WorkerId, apply: impl FnOnce(&mut Residency) -> T) -> T {
        let mut residency = self.residency.lock();
        let result = apply(&mut residency);
        if let Some(held) = self.held.get(worker.index()) {
            held.store(residency.tokens_on(worker).0, Ordering::Relaxed);
        }
        result
    }

    /// A worker holds nothing any more.
    pub fn forget(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.forget(worker));
    }

    /// Counts of the index.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        self.residency.lock().stats()
    }

    /// Tokens per byte of a model's prompts.
    #[must_use]
    pub fn ratio(&self, model: &str) -> f64 {
        self.ratios
            .lock()
            .get(model)
            .map_or(self.initial_ratio, TokensPerByte::ratio)
    }

    /// A worker counted the tokens of a prompt.
    pub fn counted(&self, model: &str, bytes: u64, tokens: Tokens) {
        let mut ratios = self.ratios.lock();
        if let Some(ratio) = ratios.get_mut(model) {
            ratio.observe(bytes, tokens);
        } else {
            let mut ratio = TokensPerByte::new(self.initial_ratio);
            ratio.observe(bytes, tokens);
            ratios.put(model.to_owned(), ratio);
        }
    }

    /// Where a conversation's last turn went.
    #[must_use]
    pub fn last_worker(&self, session: u64) -> Option<WorkerId> {
        self.last_worker.lock().peek(&session).copied()
    }

    /// A conversation's turn went to a worker. Returns where the one before went, if elsewhere.
    pub fn moved(&self, session: u64, worker: WorkerId) -> Option<WorkerId> {
        self.last_worker
            .lock()
            .put(session, worker)
            .filter(|last| *last != worker)
    }

    /// The conversation that this prompt continues, or a new one that it begins; `None` for a prompt without keys.
    /// From now on the conversation is known by this prompt.
    #[must_use]
    pub fn conversation(&self, chain: &Chain) -> Option<u64> {
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
}

//! What the router has learned, behind its locks: what lives where, tokens per byte, where conversations are.
//!
//! What a worker's events say comes before what its mirror believes; where the events know nothing, the mirror speaks.
//!
//! The index is read while it is written, without a lock. What happened is applied by one at a time, in a few
//! microseconds; only reading one worker's events waits for the batch of them that is being applied. No lock is held
//! across an await.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lru::LruCache;
use parking_lot::{Mutex, RwLock};
use policy::estimate::TokensPerByte;
use policy::evidence::{Resident, TurnBlocks, WorkerEvidence};
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{IndexLimits, IndexReader, IndexStats, Reach};
use policy::residency::Residency;
use policy::units::Tokens;

use crate::path::fingerprint::{Extent, Fingerprint};

mod kept;
mod scale;

use scale::Scale;

/// Conversations whose last worker is remembered.
const CONVERSATIONS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// Text keys whose end is known in tokens: two for each turn.
const ANCHORS: NonZeroUsize = NonZeroUsize::new(200_000).unwrap();
/// Models whose ratio is remembered.
const MODELS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// What the router has learned.
#[derive(Debug)]
pub struct Knowledge {
    residency: Mutex<Residency>,
    index: IndexReader,
    /// Tokens believed held by each worker, by slot: published whenever what lives there changes.
    held: Vec<AtomicU64>,
    evidence: Vec<Evidence>,
    models: Mutex<LruCache<String, Model>>,
    /// Where in tokens a text key ends, for those that a worker has counted.
    anchors: Mutex<LruCache<PrefixHash, u64>>,
    initial_ratio: f64,
    last_worker: Mutex<LruCache<u64, WorkerId>>,
    /// The last key of each conversation's last prompt.
    prompts: Mutex<LruCache<PrefixHash, u64>>,
}

/// What one worker's events tell, and whether they are coming.
#[derive(Debug)]
struct Evidence {
    live: AtomicBool,
    /// Tokens per block as configured; events know better.
    block_size: u32,
    known: RwLock<WorkerEvidence>,
}

/// What is learned of a model.
#[derive(Debug)]
struct Model {
    ratio: TokensPerByte,
    /// Tokens of its template between a reply and what follows it, whatever that is.
    gap: u64,
}

/// Most tokens that a template is believed to put between two messages.
const MAX_GAP: u64 = 32;

/// Where a prediction of cached tokens comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The mirror of the worker's cache.
    Mirror {
        /// Keys that it holds.
        edge: usize,
    },
    /// The worker's events.
    Events {
        /// Keys that are resident, where it is the prompt that ends the match and not the cache.
        edge: Option<usize>,
    },
}

impl Source {
    /// Its name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mirror { .. } => "mirror",
            Self::Events { .. } => "events",
        }
    }
}

/// A turn whose tokens a worker has counted.
#[derive(Debug)]
pub struct Counted<'a> {
    /// Its model.
    pub model: &'a str,
    /// Where it ran.
    pub worker: WorkerId,
    /// Its conversation, by the hashes of the names that the worker may know.
    pub session: Option<[u64; 2]>,
    /// [`WorkerEvidence::stored`] when it was sent.
    pub since: u64,
    /// Its prompt's keys.
    pub prompt: &'a Chain,
    /// Its reply's keys, if the next turn can repeat it.
    pub reply: Option<&'a Chain>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the reply.
    pub reply_tokens: u64,
}

/// A prompt's length and where it lives.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Tokens of the prompt, as far as they can be told.
    pub prompt: Tokens,
    /// Leading tokens resident, by worker slot.
    pub resident: Vec<Tokens>,
    /// Where that is known from, by worker slot.
    pub sources: Vec<Source>,
    /// Tokens believed held in all, by worker slot.
    pub indexed: Vec<Tokens>,
    /// Tokens per unit of the chain's ends.
    pub tokens_per_unit: f64,
}

impl Knowledge {
    /// Nothing learned, for workers of these capacities.
    #[must_use]
    pub fn new(index_bytes: u64, workers: &[(Tokens, u32)], initial_ratio: f64) -> Self {
        let capacities: Vec<Tokens> = workers.iter().map(|worker| worker.0).collect();
        let residency = Residency::new(
            IndexLimits {
                max_bytes: index_bytes,
            },
            &capacities,
        );
        let evidence = |&(_, block_size): &(Tokens, u32)| Evidence {
            live: AtomicBool::new(false),
            block_size,
            known: RwLock::default(),
        };
        Self {
            index: residency.reader(),
            held: capacities.iter().map(|_| AtomicU64::new(0)).collect(),
            residency: Mutex::new(residency),
            evidence: workers.iter().map(evidence).collect(),
            models: Mutex::new(LruCache::new(MODELS)),
            anchors: Mutex::new(LruCache::new(ANCHORS)),
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
        let chain = &fingerprint.chain;
        let scale = self.scale(fingerprint.extent, chain, tokens_per_unit);
        let mut reach = Reach::new();
        self.index.lookup(chain.hashes(), &mut reach);
        let slots = (0..workers as u32).map(WorkerId);
        let indexed = slots.clone().map(|worker| self.held(worker)).collect();
        let (Extent::Bytes(units) | Extent::Tokens(units)) = fingerprint.extent;
        let prompt = scale.tokens(units);
        let (resident, sources) = slots
            .map(|worker| {
                let mirrored = reach.of(worker) as usize;
                self.resident(worker, chain, mirrored, &scale, prompt)
            })
            .unzip();
        Match {
            prompt: Tokens(prompt),
            resident,
            sources,
            indexed,
            tokens_per_unit,
        }
    }

    /// How many of a prompt's leading tokens a worker would not compute: whole blocks, and never the last token.
    fn resident(
        &self,
        worker: WorkerId,
        chain: &Chain,
        mirrored: usize,
        scale: &Scale,
        prompt: u64,
    ) -> (Tokens, Source) {
        let mirror = scale.tokens(chain.span(mirrored));
        let believed = Source::Mirror { edge: mirrored };
        let Some(evidence) = self.evidence.get(worker.index()) else {
            return (Tokens(mirror), believed);
        };
        let mut block = u64::from(evidence.block_size.max(1));
        let mut told = None;
        if evidence.live.load(Ordering::Acquire) {
            let known = evidence.known.read();
            told = known.resident(chain.hashes());
            if known.block_size() > 0 {
                block = known.block_size().into();
            }
        }
        let (tokens, source) = match told {
            // The mirror knows of keys that the events do not know yet: a turn that is being computed.
            Some(Resident {
                whole: true, known, ..
            }) if mirrored > known => (mirror, believed),
            Some(Resident { tokens, known, whole }) => {
                let edge = whole.then_some(known);
                (tokens.0, Source::Events { edge })
            }
            None => (mirror, believed),
        };
        let whole_blocks = tokens.min(prompt.saturating_sub(1)) / block * block;
        (Tokens(whole_blocks), source)
    }

    fn scale(&self, extent: Extent, chain: &Chain, ratio: f64) -> Scale {
        match extent {
            Extent::Tokens(_) => Scale::straight(1.0),
            Extent::Bytes(_) => {
                let anchors = self.anchors.lock();
                Scale::of(chain, ratio, |key| anchors.peek(&key).copied())
            }
        }
    }

    /// A worker counted a turn's tokens: from now on its keys have their places, and are bound to blocks.
    pub fn turn_over(&self, turn: &Counted<'_>) {
        let total = turn.prompt_tokens + turn.reply_tokens;
        let (ratio, gap) = self.model(turn.model);
        let mut all = turn.prompt.clone();
        {
            let mut anchors = self.anchors.lock();
            if let Some(last) = turn.prompt.last() {
                anchors.put(last, turn.prompt_tokens);
            }
            if let Some(last) = turn.reply.and_then(Chain::last) {
                anchors.put(last, total + gap);
            }
        }
        let Some(evidence) = self.evidence.get(turn.worker.index()) else {
            return;
        };
        let (true, Some(session)) = (evidence.live.load(Ordering::Acquire), turn.session) else {
            return;
        };
        if let Some(reply) = turn.reply {
            all.extend_from(reply);
        }
        let scale = self.scale(Extent::Bytes(0), &all, ratio);
        let keys = (all.hashes().iter().zip(all.ends()))
            .map(|(&key, &end)| (key, scale.tokens(end)))
            .collect();
        evidence.known.write().turn_over(TurnBlocks {
            session,
            since: turn.since,
            keys,
            prompt: turn.prompt_tokens,
            total,
        });
    }

    /// A worker found a block more or less in its cache than was predicted. If all blocks of the first keys were there,
    /// the text that they share with this prompt ends elsewhere in tokens than was believed. A mirror may be wrong about
    /// the blocks instead, so what it says only places keys that have no place yet.
    pub fn misplaced(&self, model: &str, chain: &Chain, source: Source, predicted: u64, cached: u64) {
        let (edge, told) = match source {
            Source::Events { edge: Some(edge) } => (edge, true),
            Source::Mirror { edge } => (edge, false),
            Source::Events { edge: None } => return,
        };
        let Some(&key) = edge.checked_sub(1).and_then(|at| chain.hashes().get(at)) else {
            return;
        };
        let mut anchors = self.anchors.lock();
        if !told && anchors.contains(&key) {
            return;
        }
        let known = anchors.put(key, cached);
        drop(anchors);
        // Where its place had been counted, it is the template that goes on a little farther.
        if let Some(known) = known.filter(|&known| cached > known && cached > predicted)
            && let Some(model) = self.models.lock().get_mut(model)
        {
            model.gap = (model.gap + cached - known).min(MAX_GAP);
        }
    }

    /// Reads or changes what a worker's events tell.
    pub fn evidence<T>(&self, worker: WorkerId, apply: impl FnOnce(&mut WorkerEvidence) -> T) -> Option<T> {
        let evidence = self.evidence.get(worker.index())?;
        Some(apply(&mut evidence.known.write()))
    }

    /// Store events of a worker so far, if its events are coming.
    #[must_use]
    pub fn stored(&self, worker: WorkerId) -> Option<u64> {
        let evidence = self.evidence.get(worker.index())?;
        let live = evidence.live.load(Ordering::Acquire);
        live.then(|| evidence.known.read().stored())
    }

    /// A worker's events are coming.
    pub fn evidence_live(&self, worker: WorkerId) {
        if let Some(evidence) = self.evidence.get(worker.index()) {
            evidence.live.store(true, Ordering::Release);
        }
    }

    /// A worker's events are not coming at the moment: the mirror speaks until they are again.
    pub fn evidence_paused(&self, worker: WorkerId) {
        if let Some(evidence) = self.evidence.get(worker.index()) {
            evidence.live.store(false, Ordering::Release);
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
        self.model(model).0
    }

    /// Tokens per byte, and the template's gap.
    fn model(&self, model: &str) -> (f64, u64) {
        let mut models = self.models.lock();
        let known = models.get(model);
        known.map_or((self.initial_ratio, 0), |model| (model.ratio.ratio(), model.gap))
    }

    /// A worker counted the tokens of a prompt.
    pub fn counted(&self, model: &str, bytes: u64, tokens: Tokens) {
        let mut models = self.models.lock();
        if let Some(known) = models.get_mut(model) {
            known.ratio.observe(bytes, tokens);
        } else {
            let mut ratio = TokensPerByte::new(self.initial_ratio);
            ratio.observe(bytes, tokens);
            models.put(model.to_owned(), Model { ratio, gap: 0 });
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

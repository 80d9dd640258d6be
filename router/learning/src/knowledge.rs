//! What the router has learned, behind its locks: where prefixes live, the length of text in tokens, and where
//! conversations are served.
//!
//! [`Knowledge::look_up`] uses the strongest evidence available per worker: first the worker's own cache events
//! (`told`), then its mirror (the index, read without a lock), and nothing where both end. Text is converted to tokens
//! by the counts that workers report (`places`, `scale`) and a ratio in between (`models`).
//!
//! Updates are applied one at a time and take a few microseconds. Lookups take read locks, which writers hold no longer
//! than that. No lock is held across an await.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use policy::cache::Order;
use policy::evidence::{Resident, WorkerEvidence};
use policy::fingerprint::{Chain, ChainBuilder};
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{IndexLimits, IndexReader, IndexStats, Prefix, Reach};
use policy::residency::{Refused, Report, Residency};
use policy::units::{Millis, Tokens};
use tracing::warn;

use fleet::clock::Clock;
use protocol::fingerprint::{Extent, Fingerprint};

mod capacity;
mod cleared_caches;
mod conversations;
mod kept;
mod models;
mod place;
mod places;
mod plain_prompt_ends;
mod scale;
mod slots;
mod told;

use cleared_caches::ClearedCaches;
use conversations::Conversations;
use models::{Models, Ratio};
use places::Places;
use plain_prompt_ends::{PlainPromptEnds, Tail};
pub use scale::Scale;
use slots::Slots;
use told::Told;

/// State learned about prefixes, models and conversations.
#[derive(Debug)]
pub struct Knowledge {
    residency: Mutex<Residency>,
    index: IndexReader,
    /// Tokens believed held by each worker, by slot ([`Residency::filled_on`]); published whenever residency changes.
    held: Slots<AtomicU64>,
    told: Slots<Told>,
    models: Models,
    places: Places,
    tails: PlainPromptEnds,
    conversations: Conversations,
    /// Lookups cut short because a writer was preempted.
    incomplete: AtomicU64,
    emptied: ClearedCaches,
}

/// Source of a prediction of cached tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The mirror of the worker's cache.
    Mirror {
        /// Leading keys that the mirror holds.
        edge: usize,
    },
    /// The worker's cache events.
    Events {
        /// Resident keys, where the prompt ends the match and not the cache.
        edge: Option<usize>,
    },
}

impl Source {
    /// Returns the name of the source in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mirror { .. } => "mirror",
            Self::Events { .. } => "events",
        }
    }
}

/// A turn with the token counts reported by its worker.
#[derive(Debug)]
pub struct Counted<'a> {
    /// Model of the turn.
    pub model: &'a str,
    /// Worker that served the turn.
    pub worker: WorkerId,
    /// Conversation, by the hashes of the names that the worker may use for it.
    pub session: Option<[u64; 2]>,
    /// Value of [`WorkerEvidence::stored`] when the turn was sent.
    pub since: u64,
    /// Keys of the prompt.
    pub prompt: &'a Chain,
    /// Key of the prompt that the reply continues, and the reply's keys, if the next turn can repeat them.
    pub reply: Option<(Option<PrefixHash>, &'a Chain)>,
    /// Whether the reply continues within the prompt's text: [`ChainBuilder::goes_on`].
    pub goes_on: bool,
    /// Prompt tokens found in the worker's cache, if reported.
    pub cached: Option<u64>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Reply tokens.
    pub reply_tokens: u64,
    /// Whether the reply ended by itself, so that its last token is an end mark.
    pub ended: bool,
}

/// A worker's report of a prompt's cached tokens, with the prediction made when it was sent.
#[derive(Debug)]
pub struct Reported<'a> {
    /// Worker that reported.
    pub worker: WorkerId,
    /// Model of the prompt.
    pub model: &'a str,
    /// Keys of the prompt.
    pub prompt: &'a Chain,
    /// Positions in tokens that the prediction assumed.
    pub scale: &'a Scale,
    /// Leading keys that the mirror held.
    pub mirrored: usize,
    /// Source of the prediction.
    pub source: Source,
    /// Predicted cached tokens.
    pub predicted: u64,
    /// Reported cached tokens.
    pub cached: u64,
}

/// Length of a prompt and where it is resident. Owned by the caller and reused between prompts.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Tokens of the prompt, counted or estimated.
    pub prompt: Tokens,
    /// Leading tokens resident, by worker slot.
    pub resident: Vec<Tokens>,
    /// Source of the resident tokens, by worker slot.
    pub sources: Vec<Source>,
    /// Leading keys that the mirror holds, by worker slot.
    pub mirrored: Vec<usize>,
    /// Tokens believed held in total, by worker slot.
    pub indexed: Vec<Tokens>,
    /// Weighted count of the conversations that live on each worker, by slot.
    pub living: Vec<f64>,
    /// Positions of the chain's ends in tokens.
    pub scale: Scale,
}

/// Buffers reused between requests, so that a lookup allocates nothing.
#[derive(Default)]
struct Scratch {
    reach: Reach,
    /// Keys of the previous turn that the prompt continues from within a chunk: the shared ones, and its last one.
    ended: Vec<PrefixHash>,
    to_end: Reach,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One worker's part of a lookup.
struct Asked<'a> {
    chain: &'a Chain,
    scale: &'a Scale,
    tail: Option<Tail>,
    /// See [`Scratch::ended`].
    ended: &'a [PrefixHash],
    mirrored: usize,
    /// Whether the mirror also holds the end of the previous turn.
    mirrored_to_end: bool,
    prompt: u64,
}

impl Asked<'_> {
    /// Returns the previous turn's last key, and the tokens held if that key is, when a match of `keys` keys reaches
    /// the chunk in which that turn ended.
    fn past(&self, keys: usize) -> Option<(Option<PrefixHash>, u64)> {
        let tail = self.tail.filter(|tail| tail.keys == keys)?;
        Some((tail.end, tail.tokens.saturating_sub(1)))
    }
}

impl Knowledge {
    /// Creates an empty state for workers of these capacities and block sizes. Conversations are counted over `window`.
    #[must_use]
    pub fn new(index_bytes: u64, workers: &[(Tokens, u32)], initial_ratio: f64, window: Millis) -> Self {
        let capacities: Vec<Tokens> = workers
            .iter()
            .map(|&(capacity, block)| usable(capacity, block))
            .collect();
        let limits = IndexLimits {
            max_bytes: index_bytes,
        };
        let residency = Residency::new(limits, &capacities);
        Self {
            index: residency.reader(),
            held: Slots::new(capacities.iter().map(|_| AtomicU64::new(0))),
            residency: Mutex::new(residency),
            told: Slots::new(workers.iter().map(|worker| Told::new(worker.1))),
            models: Models::new(initial_ratio),
            places: Places::default(),
            tails: PlainPromptEnds::default(),
            conversations: Conversations::new(window),
            incomplete: AtomicU64::new(0),
            emptied: ClearedCaches::new(workers.len(), Clock::start().unix_ms(Millis::ZERO) as u64),
        }
    }

    /// Registers a worker without any knowledge in a slot: the next free one, or one whose previous worker was removed
    /// and has nothing in flight.
    pub fn admit(&self, worker: WorkerId, capacity: Tokens, block_size: u32) {
        self.told.set(worker, || Told::new(block_size));
        self.held.set(worker, || AtomicU64::new(0));
        self.emptied.admit(worker);
        self.update(worker, |residency| {
            residency.admit(worker, usable(capacity, block_size))
        });
    }

    /// Looks up a prompt without changing anything.
    #[must_use]
    pub fn look_up(&self, model: &str, fingerprint: &Fingerprint, workers: usize) -> Match {
        let mut found = Match::default();
        self.look_up_into(model, fingerprint, workers, &mut found);
        found
    }

    /// Like [`Self::look_up`], but overwrites an earlier result and reuses its memory; nothing is allocated where that
    /// suffices.
    pub fn look_up_into(&self, model: &str, fingerprint: &Fingerprint, workers: usize, found: &mut Match) {
        let chain = &fingerprint.chain;
        let tail = self.scale(fingerprint, model, &mut found.scale);
        let (Extent::Bytes(units) | Extent::Tokens(units)) = fingerprint.extent;
        let prompt = found.scale.tokens(units);
        found.prompt = Tokens(prompt);
        self.conversations.living_into(workers, &mut found.living);
        found.resident.clear();
        found.sources.clear();
        found.mirrored.clear();
        found.indexed.clear();
        SCRATCH.with_borrow_mut(|Scratch { reach, ended, to_end }| {
            self.index.lookup(chain.hashes(), reach);
            if !reach.is_complete() {
                self.incomplete.fetch_add(1, Ordering::Relaxed);
            }
            ended.clear();
            if let Some((tail, end)) = tail.and_then(|tail| Some((tail, tail.end?))) {
                ended.extend_from_slice(&chain.hashes()[..tail.keys]);
                ended.push(end);
                self.index.lookup(ended, to_end);
            }
            let (told, held) = (self.told.read(), self.held.read());
            for worker in (0..workers as u32).map(WorkerId) {
                let mirrored = reach.of(worker) as usize;
                let asked = Asked {
                    chain,
                    scale: &found.scale,
                    tail,
                    ended,
                    mirrored,
                    mirrored_to_end: !ended.is_empty() && to_end.of(worker) as usize == ended.len(),
                    prompt,
                };
                let (tokens, source) = resident(told.get(worker.index()).map(Arc::as_ref), &asked);
                found.resident.push(tokens);
                found.sources.push(source);
                found.mirrored.push(mirrored);
                let held = held.get(worker.index());
                found
                    .indexed
                    .push(held.map_or(Tokens::ZERO, |held| Tokens(held.load(Ordering::Relaxed))));
            }
        });
    }

    /// Builds the scale from a prompt's units to tokens. Returns where the turn ended that the prompt continues from
    /// within a chunk.
    fn scale(&self, fingerprint: &Fingerprint, model: &str, scale: &mut Scale) -> Option<Tail> {
        let chain = &fingerprint.chain;
        if let Extent::Tokens(_) = fingerprint.extent {
            scale.read_exact();
            return None;
        }
        self.places.scale_into(chain, self.models.of(model), scale);
        let tail = self.tails.of(chain)?;
        scale.go_on(chain, &tail);
        Some(tail)
    }

    /// Records the positions of a turn's keys from its counted tokens and binds the keys to cache blocks. Returns the
    /// positions of the prompt's keys.
    pub fn turn_over(&self, turn: &Counted<'_>) -> Scale {
        let ratio = self.models.of(turn.model);
        let places = self.places.counted(turn, ratio);
        self.tails.counted(turn);
        if let (Some(told), Some(session)) = (self.told.get(turn.worker), turn.session)
            && told.is_live()
        {
            self.bind(&told, session, turn, ratio);
        }
        places
    }

    /// Binds a turn's keys to the blocks that its worker's events name.
    fn bind(&self, told: &Told, session: [u64; 2], turn: &Counted<'_>, ratio: Ratio) {
        let all = turn.reply.map_or_else(
            || turn.prompt.clone(),
            |(parent, reply)| turn.prompt.with_reply(parent, reply),
        );
        let scale = self.places.scale(&all, ratio);
        told.turn_over(turn, session, &all, &scale);
    }

    /// Compares a worker's report of cached tokens with its mirror, which still holds the prompt. Returns how many keys
    /// of other prompts were removed from the mirror.
    pub fn reported(&self, report: &Reported<'_>) -> usize {
        let block = self.told.get(report.worker).map_or(1, |told| told.block_size());
        let &Reported {
            prompt,
            scale,
            cached,
            ..
        } = report;
        if report.predicted != cached {
            self.misplaced(report, block);
        }
        if report.predicted.abs_diff(cached) > block
            && matches!(report.source, Source::Events { .. })
            && let Some(told) = self.told.get(report.worker)
        {
            told.change(|evidence| evidence.contradicted(prompt.hashes()));
        }
        let more = cached.saturating_sub(report.predicted);
        let is_more =
            matches!(report.source, Source::Mirror { .. }) && more > 2 * block.max(report.predicted / 8);
        let believed = report.mirrored.min(prompt.len());
        let found = scale.found(prompt, cached).min(believed);
        let missing = scale.missing(prompt, believed, cached, block);
        let said = Report {
            cached: Tokens(cached),
            found: found.checked_sub(1).map(|at| prompt.hashes()[at]),
            missing: missing.map(|at| prompt.hashes()[at]),
        };
        self.update(report.worker, |residency| {
            if is_more {
                residency.found_more(report.worker);
            }
            residency.reported(report.worker, &said)
        })
    }

    /// Corrects token positions. If all blocks of the first keys were cached, their text ends elsewhere in tokens than
    /// was believed. A mirror may instead be wrong about the blocks, so a prediction from it moves only positions that
    /// were not counted.
    fn misplaced(&self, report: &Reported<'_>, block: u64) {
        let (edge, told) = match report.source {
            Source::Events { edge: Some(edge) } => (edge, true),
            // If the following text is known too, the cache ends there and not the text.
            Source::Mirror { edge } if !self.places.knows_past(report.prompt, edge) => (edge, false),
            Source::Mirror { .. } | Source::Events { edge: None } => return,
        };
        let Some(&key) = edge.checked_sub(1).and_then(|at| report.prompt.hashes().get(at)) else {
            return;
        };
        let off = report.predicted.abs_diff(report.cached);
        // A surplus block is certain whatever the source; a missing block may have been evicted.
        if off == block && (told || report.cached > report.predicted) {
            let more = self.places.correct(key, report.cached, block, told);
            // For a counted position, the surplus belongs to the template.
            if report.cached > report.predicted {
                self.models.widen(report.model, more);
            }
        }
        if !told && off <= block.max(report.predicted / 8) {
            let guess = report.scale.tokens(report.prompt.span(edge));
            self.places.refine(key, guess, report.cached, block);
        }
    }

    /// Reads or changes the evidence from a worker's events; `None` for an unknown slot.
    pub fn evidence<T>(&self, worker: WorkerId, apply: impl FnOnce(&mut WorkerEvidence) -> T) -> Option<T> {
        Some(self.told.get(worker)?.change(apply))
    }

    /// Returns the number of store events of a worker, if its event stream is live.
    #[must_use]
    pub fn stored(&self, worker: WorkerId) -> Option<u64> {
        self.told.get(worker)?.stored()
    }

    /// Marks a worker's event stream as live.
    pub fn evidence_live(&self, worker: WorkerId) {
        if let Some(told) = self.told.get(worker) {
            told.set_live(true);
        }
        self.emptied.heard(worker);
    }

    /// Marks a worker's event stream as paused: the mirror is used until it is live again.
    pub fn evidence_paused(&self, worker: WorkerId) {
        if let Some(told) = self.told.get(worker) {
            told.set_live(false);
        }
    }

    /// Returns the tokens believed held by a worker.
    #[must_use]
    pub fn held(&self, worker: WorkerId) -> Tokens {
        Tokens(
            self.held
                .get(worker)
                .map_or(0, |tokens| tokens.load(Ordering::Relaxed)),
        )
    }

    /// Applies a change to the residency of a worker.
    pub fn update<T>(&self, worker: WorkerId, apply: impl FnOnce(&mut Residency) -> T) -> T {
        let mut residency = self.residency.lock();
        let before = residency.refused().count();
        let result = apply(&mut residency);
        let refused = residency.refused();
        // Logged at every doubling of the count, so that the log stays small.
        if let Some(error) = refused.last
            && refused.count().ilog2() != before.checked_ilog2().unwrap_or(u32::MAX)
        {
            warn!(
                worker = worker.0,
                refused = refused.count(),
                %error,
                "index refused a worker's prefixes; lookups are incomplete"
            );
        }
        if let Some(held) = self.held.get(worker) {
            held.store(residency.filled_on(worker).0, Ordering::Relaxed);
        }
        result
    }

    /// Sets the eviction order of a worker's cache for unmarked blocks.
    pub fn set_order(&self, worker: WorkerId, order: Order) {
        self.update(worker, |residency| residency.set_order(worker, order));
    }

    /// Returns whether the number of template tokens between a reply and the user's next message is known for a model.
    #[must_use]
    pub fn knows_template(&self, model: &str) -> bool {
        self.models.was_told_gap(model)
    }

    /// Sets the number of template tokens between a reply and the next message, as measured by a worker.
    pub fn template(&self, model: &str, gap: u64) {
        self.models.told_gap(model, gap);
    }

    /// Removes a worker's residency after it reported a cleared cache. Workers clear when idle, so turns in flight are
    /// kept.
    pub fn cleared(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.cleared(worker));
    }

    /// Removes all residency of a worker.
    pub fn forget(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.forget(worker));
    }

    /// Returns the ends of the most recently used prefixes among `most` examined, and whether these were all. Writers
    /// wait meanwhile.
    #[must_use]
    pub fn newest_prefixes(
        &self,
        most: usize,
        worker: Option<WorkerId>,
        copies: usize,
    ) -> (Vec<Prefix>, bool) {
        self.residency.lock().newest(most, worker, copies)
    }

    /// Returns the tokens up to a key on a worker that is believed to hold it. Writers wait for one walk along a
    /// prompt.
    #[must_use]
    pub fn tokens_up_to(&self, worker: WorkerId, key: PrefixHash) -> Option<Tokens> {
        self.residency.lock().tokens_up_to(worker, key)
    }

    /// Returns the counts of the index.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        self.residency.lock().stats()
    }

    /// Returns the prefixes that the index refused, and the number of incomplete lookups, since start.
    #[must_use]
    pub fn losses(&self) -> (Refused, u64) {
        let refused = self.residency.lock().refused();
        (refused, self.incomplete.load(Ordering::Relaxed))
    }

    /// Returns the tokens per byte of a model's prompts.
    #[must_use]
    pub fn ratio(&self, model: &str) -> f64 {
        self.models.of(model).ratio
    }

    /// Learns a model's tokens per byte from a counted prompt.
    pub fn counted(&self, model: &str, bytes: u64, tokens: Tokens) {
        self.models.counted(model, bytes, tokens);
    }

    /// Returns the worker of a conversation's last turn.
    #[must_use]
    pub fn last_worker(&self, session: u64) -> Option<WorkerId> {
        self.conversations.last_worker(session)
    }

    /// Removes a worker from the last turns of all conversations.
    pub fn left(&self, worker: WorkerId) {
        self.conversations.left(worker);
    }

    /// Records the worker of a conversation's turn. Returns the previous turn's worker, if it was another one.
    pub fn moved(&self, now: Millis, session: u64, worker: WorkerId) -> Option<WorkerId> {
        self.conversations.moved(now, session, worker)
    }

    /// Returns the conversation that this prompt continues, or a new one; `None` for a prompt without keys. Further
    /// turns find the conversation by this prompt.
    #[must_use]
    pub fn conversation(&self, chain: &Chain) -> Option<u64> {
        self.conversations.of(chain)
    }

    /// Records the reply to a prompt, by which the next turn finds the conversation.
    pub fn answered(&self, prompt: &Chain, reply: &ChainBuilder) {
        let (parent, goes_on) = (reply.parent(), reply.goes_on());
        self.conversations
            .answered(prompt, parent, reply.chain(), goes_on);
    }
}

/// Returns how many leading tokens of a prompt are cached on a worker: whole blocks, and never the last token.
fn resident(told: Option<&Told>, asked: &Asked<'_>) -> (Tokens, Source) {
    let &Asked { chain, mirrored, .. } = asked;
    let mirror = match asked.past(mirrored) {
        Some((end, held)) if end.is_none() || asked.mirrored_to_end => held,
        _ => asked.scale.held(chain.span(mirrored)),
    };
    let believed = Source::Mirror { edge: mirrored };
    let Some(told) = told else {
        return (Tokens(mirror), believed);
    };
    let (resident, block) = told.resident(chain.hashes());
    let (tokens, source) = match resident {
        // The mirror also has keys that the events lack so far: those of a turn being computed.
        Some(Resident {
            whole: true, known, ..
        }) if mirrored > known => (mirror, believed),
        Some(Resident { tokens, known, whole }) => {
            let edge = whole.then_some(known);
            let past = edge.and_then(|known| asked.past(known));
            let past = past.map_or(0, |(end, held)| match told.resident(asked.ended).0 {
                _ if end.is_none() => held,
                Some(Resident {
                    known, whole: true, ..
                }) if known == asked.ended.len() => held,
                Some(further) => further.tokens.0,
                None => 0,
            });
            (past.max(tokens.0), Source::Events { edge })
        }
        None => (mirror, believed),
    };
    let whole_blocks = tokens.min(asked.prompt.saturating_sub(1)) / block * block;
    (Tokens(whole_blocks), source)
}

/// Subtracts one block: the block that a running request is filling cannot be matched.
fn usable(capacity: Tokens, block_size: u32) -> Tokens {
    capacity.saturating_sub(Tokens(block_size.into()))
}

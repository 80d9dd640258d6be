//! What the router has learned, behind its locks: what lives where, how long text is in tokens, where conversations are.
//!
//! [`Knowledge::look_up`] answers a prompt from three kinds of evidence, the strongest first: what a worker's own events
//! tell (`told`), what its mirror believes (the index, read without a lock), and, where both end, nothing. Text becomes
//! tokens by the places that workers have counted (`places`, `scale`) and a ratio in between (`models`).
//!
//! What happened is applied by one at a time, in a few microseconds. Lookups take read locks that writers hold for no
//! longer than that. No lock is held across an await.

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
mod conversations;
mod emptied;
mod kept;
mod models;
mod places;
mod scale;
mod slots;
mod tails;
mod told;

use conversations::Conversations;
use emptied::Emptied;
use models::{Models, Ratio};
use places::Places;
pub use scale::Scale;
use slots::Slots;
use tails::{Tail, Tails};
use told::Told;

/// What the router has learned.
#[derive(Debug)]
pub struct Knowledge {
    residency: Mutex<Residency>,
    index: IndexReader,
    /// Tokens believed held by each worker, by slot ([`Residency::filled_on`]): published whenever what lives there changes.
    held: Slots<AtomicU64>,
    told: Slots<Told>,
    models: Models,
    places: Places,
    tails: Tails,
    conversations: Conversations,
    /// Lookups that were cut short by a writer that had been stopped.
    incomplete: AtomicU64,
    emptied: Emptied,
}

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
    /// Its reply's keys after the prompt's key that they go on from, if the next turn can repeat it.
    pub reply: Option<(Option<PrefixHash>, &'a Chain)>,
    /// Whether the reply goes on within the prompt's text: [`ChainBuilder::goes_on`].
    pub goes_on: bool,
    /// Tokens of the prompt that were found in the worker's cache, if it says.
    pub cached: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the reply.
    pub reply_tokens: u64,
    /// Whether the reply ended by itself, so that its last token is an end mark.
    pub ended: bool,
}

/// A worker's report of what it found of a prompt, beside what was believed when it was sent.
#[derive(Debug)]
pub struct Reported<'a> {
    /// The worker.
    pub worker: WorkerId,
    /// The prompt's model.
    pub model: &'a str,
    /// Its keys.
    pub prompt: &'a Chain,
    /// Where they were believed to be in tokens.
    pub scale: &'a Scale,
    /// Leading keys that the mirror held.
    pub mirrored: usize,
    /// What the prediction came from.
    pub source: Source,
    /// The prediction.
    pub predicted: u64,
    /// The report.
    pub cached: u64,
}

/// A prompt's length and where it lives: the caller's own, used again from prompt to prompt.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Tokens of the prompt, as far as they can be told.
    pub prompt: Tokens,
    /// Leading tokens resident, by worker slot.
    pub resident: Vec<Tokens>,
    /// Where that is known from, by worker slot.
    pub sources: Vec<Source>,
    /// Leading keys that the mirror holds, by worker slot.
    pub mirrored: Vec<usize>,
    /// Tokens believed held in all, by worker slot.
    pub indexed: Vec<Tokens>,
    /// Conversations that live there, by worker slot.
    pub living: Vec<f64>,
    /// Where in tokens the chain's ends are.
    pub scale: Scale,
}

/// Reused from request to request, so that looking one up allocates nothing.
#[derive(Default)]
struct Scratch {
    reach: Reach,
    /// The turn that the prompt goes on from within a chunk: keys that both have, and its last one.
    ended: Vec<PrefixHash>,
    to_end: Reach,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// What is asked of one worker.
struct Asked<'a> {
    chain: &'a Chain,
    scale: &'a Scale,
    tail: Option<Tail>,
    /// See [`Scratch::ended`].
    ended: &'a [PrefixHash],
    /// Leading keys that the mirror holds.
    mirrored: usize,
    /// Whether it holds the end of the turn before as well.
    mirrored_to_end: bool,
    /// Tokens of the prompt.
    prompt: u64,
}

impl Asked<'_> {
    /// If a match of so many keys reaches the chunk in which the turn before ended: that turn's last key, and the tokens
    /// that are held if that is.
    fn past(&self, keys: usize) -> Option<(Option<PrefixHash>, u64)> {
        let tail = self.tail.filter(|tail| tail.keys == keys)?;
        Some((tail.end, tail.tokens.saturating_sub(1)))
    }
}

impl Knowledge {
    /// Nothing learned, for workers of these capacities and block sizes. Conversations are counted over `window`.
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
            tails: Tails::default(),
            conversations: Conversations::new(window),
            incomplete: AtomicU64::new(0),
            emptied: Emptied::new(workers.len(), Clock::start().unix_ms(Millis::ZERO) as u64),
        }
    }

    /// A worker takes a slot: the next free one, or one whose last holder is gone and has nothing in flight any more. Nothing
    /// is known of it.
    pub fn admit(&self, worker: WorkerId, capacity: Tokens, block_size: u32) {
        self.told.set(worker, || Told::new(block_size));
        self.held.set(worker, || AtomicU64::new(0));
        self.emptied.admit(worker);
        self.update(worker, |residency| {
            residency.admit(worker, usable(capacity, block_size))
        });
    }

    /// Looks a prompt up. Writes nothing.
    #[must_use]
    pub fn look_up(&self, model: &str, fingerprint: &Fingerprint, workers: usize) -> Match {
        let mut found = Match::default();
        self.look_up_into(model, fingerprint, workers, &mut found);
        found
    }

    /// [`Self::look_up`] in place of an earlier answer, whose memory is kept: nothing is allocated where that was as large.
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

    /// From a prompt's units to tokens, and where the turn ended that it goes on from within a chunk.
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

    /// A worker counted a turn's tokens: from now on its keys have their places, and are bound to blocks. Returns where the
    /// prompt's keys are.
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

    /// Binds a turn's keys to the blocks that its worker tells of.
    fn bind(&self, told: &Told, session: [u64; 2], turn: &Counted<'_>, ratio: Ratio) {
        let all = turn.reply.map_or_else(
            || turn.prompt.clone(),
            |(parent, reply)| turn.prompt.with_reply(parent, reply),
        );
        let scale = self.places.scale(&all, ratio);
        told.turn_over(turn, session, &all, &scale);
    }

    /// A worker reported what it found of a prompt, which is still held in its mirror. Returns how many keys of other
    /// prompts the mirror no longer believes to be there.
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

    /// If all blocks of the first keys were there, the text that they share with this prompt ends elsewhere in tokens
    /// than was believed. A mirror may be wrong about the blocks instead, so what it says only moves places that nobody
    /// has counted.
    fn misplaced(&self, report: &Reported<'_>, block: u64) {
        let (edge, told) = match report.source {
            Source::Events { edge: Some(edge) } => (edge, true),
            // If the text after them is known too, then the cache ends there and not the text.
            Source::Mirror { edge } if !self.places.knows_past(report.prompt, edge) => (edge, false),
            Source::Mirror { .. } | Source::Events { edge: None } => return,
        };
        let Some(&key) = edge.checked_sub(1).and_then(|at| report.prompt.hashes().get(at)) else {
            return;
        };
        let off = report.predicted.abs_diff(report.cached);
        // A block more than was believed is there whoever believed it; a block less may have been evicted.
        if off == block && (told || report.cached > report.predicted) {
            let more = self.places.correct(key, report.cached, block, told);
            // Where its place had been counted, it is the template that goes on a little farther.
            if report.cached > report.predicted {
                self.models.widen(report.model, more);
            }
        }
        if !told && off <= block.max(report.predicted / 8) {
            let guess = report.scale.tokens(report.prompt.span(edge));
            self.places.refine(key, guess, report.cached, block);
        }
    }

    /// Reads or changes what a worker's events tell.
    pub fn evidence<T>(&self, worker: WorkerId, apply: impl FnOnce(&mut WorkerEvidence) -> T) -> Option<T> {
        Some(self.told.get(worker)?.change(apply))
    }

    /// Store events of a worker so far, if its events are coming.
    #[must_use]
    pub fn stored(&self, worker: WorkerId) -> Option<u64> {
        self.told.get(worker)?.stored()
    }

    /// A worker's events are coming.
    pub fn evidence_live(&self, worker: WorkerId) {
        if let Some(told) = self.told.get(worker) {
            told.set_live(true);
        }
        self.emptied.heard(worker);
    }

    /// A worker's events are not coming at the moment: the mirror speaks until they are again.
    pub fn evidence_paused(&self, worker: WorkerId) {
        if let Some(told) = self.told.get(worker) {
            told.set_live(false);
        }
    }

    /// Tokens believed held by a worker.
    #[must_use]
    pub fn held(&self, worker: WorkerId) -> Tokens {
        Tokens(
            self.held
                .get(worker)
                .map_or(0, |tokens| tokens.load(Ordering::Relaxed)),
        )
    }

    /// Applies what happened on a worker to the picture of what lives where.
    pub fn update<T>(&self, worker: WorkerId, apply: impl FnOnce(&mut Residency) -> T) -> T {
        let mut residency = self.residency.lock();
        let before = residency.refused().count();
        let result = apply(&mut residency);
        let refused = residency.refused();
        // At the first, the second, the fourth: whoever reads the log sees it, and the log stays small.
        if let Some(error) = refused.last
            && refused.count().ilog2() != before.checked_ilog2().unwrap_or(u32::MAX)
        {
            warn!(
                worker = worker.0,
                refused = refused.count(),
                %error,
                "the index would not take what a worker holds: lookups say less than is known"
            );
        }
        if let Some(held) = self.held.get(worker) {
            held.store(residency.filled_on(worker).0, Ordering::Relaxed);
        }
        result
    }

    /// A worker's cache drops what is not marked in this order.
    pub fn set_order(&self, worker: WorkerId, order: Order) {
        self.update(worker, |residency| residency.set_order(worker, order));
    }

    /// Whether it is known how many tokens a model's template puts between a reply and the user's next message.
    #[must_use]
    pub fn knows_template(&self, model: &str) -> bool {
        self.models.was_told_gap(model)
    }

    /// A worker said how many tokens a model's template puts there.
    pub fn template(&self, model: &str, gap: u64) {
        self.models.told_gap(model, gap);
    }

    /// A worker said that it cleared its cache. It does so while it is idle, so what is in flight came after.
    pub fn cleared(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.cleared(worker));
    }

    /// A worker holds nothing any more.
    pub fn forget(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.forget(worker));
    }

    /// Where the prefixes that were used last end, of so many that are looked at; and whether these were all. Writers
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

    /// Tokens up to a key on a worker that is believed to hold it. Writers wait for one walk along a prompt.
    #[must_use]
    pub fn tokens_up_to(&self, worker: WorkerId, key: PrefixHash) -> Option<Tokens> {
        self.residency.lock().tokens_up_to(worker, key)
    }

    /// Counts of the index.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        self.residency.lock().stats()
    }

    /// What the index would not take, and lookups that were cut short, ever.
    #[must_use]
    pub fn losses(&self) -> (Refused, u64) {
        let refused = self.residency.lock().refused();
        (refused, self.incomplete.load(Ordering::Relaxed))
    }

    /// Tokens per byte of a model's prompts.
    #[must_use]
    pub fn ratio(&self, model: &str) -> f64 {
        self.models.of(model).ratio
    }

    /// A worker counted the tokens of a prompt.
    pub fn counted(&self, model: &str, bytes: u64, tokens: Tokens) {
        self.models.counted(model, bytes, tokens);
    }

    /// Where a conversation's last turn went.
    #[must_use]
    pub fn last_worker(&self, session: u64) -> Option<WorkerId> {
        self.conversations.last_worker(session)
    }

    /// A worker is gone: no conversation's last turn was there any more.
    pub fn left(&self, worker: WorkerId) {
        self.conversations.left(worker);
    }

    /// A conversation's turn went to a worker. Returns where the one before went, if elsewhere.
    pub fn moved(&self, now: Millis, session: u64, worker: WorkerId) -> Option<WorkerId> {
        self.conversations.moved(now, session, worker)
    }

    /// The conversation that this prompt continues, or a new one that it begins; `None` for a prompt without keys.
    /// From now on the conversation is known by this prompt.
    #[must_use]
    pub fn conversation(&self, chain: &Chain) -> Option<u64> {
        self.conversations.of(chain)
    }

    /// A prompt was answered with this reply.
    pub fn answered(&self, prompt: &Chain, reply: &ChainBuilder) {
        let (parent, goes_on) = (reply.parent(), reply.goes_on());
        self.conversations
            .answered(prompt, parent, reply.chain(), goes_on);
    }
}

/// How many of a prompt's leading tokens a worker would not compute: whole blocks, and never the last token.
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
        // The mirror knows of keys that the events do not know yet: a turn that is being computed.
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

/// The block that a running request has begun to fill holds nothing that can be found again.
fn usable(capacity: Tokens, block_size: u32) -> Tokens {
    capacity.saturating_sub(Tokens(block_size.into()))
}

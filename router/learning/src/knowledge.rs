//! What the router has learned, behind its locks: where prefixes are cached, the length of text in tokens, and where
//! conversations are served.
//!
//! [`Knowledge::look_up`] uses the strongest evidence per worker (docs/evidence.md): its own cache events (`events`),
//! else its mirror (the index, read without a lock). Text is converted to tokens by the counts that workers report
//! (`token_offsets`, `scale`) and a ratio in between (`models`). Updates are applied one at a time and take a few
//! microseconds. Lookups take read locks, which writers hold no longer than that. No lock is held across an await.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use policy::cache::Order;
use policy::evidence::WorkerEvidence;
use policy::fingerprint::{Chain, ChainBuilder, MediaPart};
use policy::ids::{PrefixHash, WorkerId};
use policy::index::{IndexLimits, IndexReader, IndexStats, Prefix};
use policy::residency::{Refused, Residency};
use policy::units::{Millis, Tokens};
use tracing::warn;

use fleet::clock::Clock;

mod capacity;
mod cleared_caches;
mod conversations;
mod counted;
mod event_evidence;
mod kept;
mod lookup;
mod models;
mod plain_prompt_ends;
mod reports;
mod scale;
mod slots;
mod token_offset;
mod token_offsets;

use cleared_caches::ClearedCaches;
use conversations::ConversationIndex;
pub use counted::CountedTurn;
use event_evidence::EventEvidence;
pub use lookup::{Match, PredictionSource};
use models::Models;
use plain_prompt_ends::PlainPromptEnds;
pub use reports::Reported;
pub use scale::Scale;
use slots::Slots;
use token_offsets::TokenOffsets;

/// State learned about prefixes, models and conversations.
#[derive(Debug)]
pub struct Knowledge {
    residency: Mutex<Residency>,
    index: IndexReader,
    /// Tokens that each worker is believed to hold, by slot ([`Residency::filled_on`]); published whenever residency
    /// changes.
    held: Slots<AtomicU64>,
    events: Slots<EventEvidence>,
    models: Models,
    offsets: TokenOffsets,
    tails: PlainPromptEnds,
    conversations: ConversationIndex,
    /// Number of lookups cut short because a writer was preempted.
    incomplete: AtomicU64,
    emptied: ClearedCaches,
}

impl Knowledge {
    /// Creates an empty state for workers of these capacities and block sizes. Conversations are counted over the time
    /// `window`.
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
            events: Slots::new(workers.iter().map(|worker| EventEvidence::new(worker.1))),
            models: Models::new(initial_ratio),
            offsets: TokenOffsets::default(),
            tails: PlainPromptEnds::default(),
            conversations: ConversationIndex::new(window),
            incomplete: AtomicU64::new(0),
            emptied: ClearedCaches::new(workers.len(), Clock::start().unix_ms(Millis::ZERO) as u64),
        }
    }

    /// Registers a worker without any knowledge in a slot: the next free one, or one whose previous worker was removed
    /// and has nothing in flight.
    pub fn admit(&self, worker: WorkerId, capacity: Tokens, block_size: u32) {
        self.events.set(worker, || EventEvidence::new(block_size));
        self.held.set(worker, || AtomicU64::new(0));
        self.emptied.admit(worker);
        self.update(worker, |residency| {
            residency.admit(worker, usable(capacity, block_size))
        });
    }

    /// Reads or changes the evidence from a worker's events; `None` for an unknown slot.
    pub fn evidence<T>(&self, worker: WorkerId, apply: impl FnOnce(&mut WorkerEvidence) -> T) -> Option<T> {
        Some(self.events.get(worker)?.change(apply))
    }

    /// Returns the number of store events of a worker, if its event stream is live.
    pub fn stored(&self, worker: WorkerId) -> Option<u64> {
        self.events.get(worker)?.stored()
    }

    /// Marks a worker's event stream as live.
    pub fn evidence_live(&self, worker: WorkerId) {
        if let Some(events) = self.events.get(worker) {
            events.set_live(true);
        }
        self.emptied.heard(worker);
    }

    /// Marks a worker's event stream as paused. The mirror is used until the stream is live again.
    pub fn evidence_paused(&self, worker: WorkerId) {
        if let Some(events) = self.events.get(worker) {
            events.set_live(false);
        }
    }

    /// Returns the tokens that a worker is believed to hold.
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
    pub fn knows_template(&self, model: &str) -> bool {
        self.models.has_measured_gap(model)
    }

    /// Sets the number of template tokens between a reply and the next message, as measured by a worker.
    pub fn template(&self, model: &str, gap: u64) {
        self.models.set_measured_gap(model, gap);
    }

    /// Removes a worker's residency except that of turns in flight, after the worker cleared its cache. Workers do so
    /// while idle.
    pub fn cleared(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.cleared(worker));
    }

    /// Removes all residency of a worker.
    pub fn forget(&self, worker: WorkerId) {
        self.update(worker, |residency| residency.forget(worker));
    }

    /// Returns the ends of the most recently used prefixes among `most` examined, and whether these were all. Writers
    /// wait meanwhile.
    pub fn newest_prefixes(
        &self,
        most: usize,
        worker: Option<WorkerId>,
        copies: usize,
    ) -> (Vec<Prefix>, bool) {
        self.residency.lock().newest(most, worker, copies)
    }

    /// Returns the tokens up to a key, if a worker is believed to hold it. Writers wait for one walk along a prompt.
    pub fn tokens_up_to(&self, worker: WorkerId, key: PrefixHash) -> Option<Tokens> {
        self.residency.lock().tokens_up_to(worker, key)
    }

    /// Returns the counts of the index.
    pub fn index_stats(&self) -> IndexStats {
        self.residency.lock().stats()
    }

    /// Returns the prefixes that the index refused, and the number of incomplete lookups, since start.
    pub fn losses(&self) -> (Refused, u64) {
        let refused = self.residency.lock().refused();
        (refused, self.incomplete.load(Ordering::Relaxed))
    }

    /// Returns the tokens per byte of a model's prompts.
    pub fn ratio(&self, model: &str) -> f64 {
        self.models.of(model).ratio
    }

    /// Returns the expected tokens of a prompt's media.
    pub fn media_tokens(&self, model: &str, media: &[MediaPart]) -> Tokens {
        if media.is_empty() {
            return Tokens::ZERO;
        }
        let known = self.models.of(model).media;
        Tokens(media.iter().map(|part| known.of(part.medium).0).sum())
    }

    /// Learns a model's tokens per byte from a counted prompt of `bytes` canonical bytes, or the tokens of its media.
    /// `scale` has the positions known when the prompt was sent.
    pub fn counted(&self, model: &str, bytes: u64, media: &[MediaPart], scale: &Scale, tokens: Tokens) {
        if media.is_empty() {
            return self.models.counted(model, bytes, tokens);
        }
        let (from, before) = scale.last_known(bytes);
        let new = &media[media.partition_point(|part| part.end <= from)..];
        let text = (bytes - from) as f64 * self.models.of(model).ratio;
        self.models.counted_media(
            model,
            new,
            tokens.saturating_sub(Tokens(before)),
            Tokens(text.round() as u64),
        );
    }

    /// Returns the worker of a conversation's last turn.
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

    /// Returns the conversation that this prompt continues, or a new one; `None` for a prompt without keys. Later turns
    /// find the conversation by this prompt.
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

/// Subtracts one block: the block that a running request is filling cannot be matched.
fn usable(capacity: Tokens, block_size: u32) -> Tokens {
    capacity.saturating_sub(Tokens(block_size.into()))
}

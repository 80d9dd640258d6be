//! The engine's key-value cache with its sessions, hints, objective and cache events. A hint names a session, which is
//! the chain of its last finished turn. A hint for a session with a turn in the engine waits for that turn's release
//! (or for its time to live), because the release decides the marks.
//!
//! T-LRU applies at eviction: when the objective changes or expires, finished turns are judged anew, the least recently
//! used first. A judgement uses the blocks, so those of turns without a session count as older.

use std::time::Instant;

use policy::cache::{Change, Keep, Lease, Piece, PrefixCache};
use policy::ids::PrefixHash;
use policy::units::{Millis, Tokens};
use rustc_hash::FxHashMap;

use crate::config::{CachePolicy, EngineConfig};
use crate::events::KvEvent;
use crate::hints::{CacheTerms, Hint, HintKind, HintOutcome, Objective};
use crate::host::Host;
use crate::sessions::{Kept, PendingHint, Sessions};

/// Numbers of hints by outcome, and of blocks.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct MemoryCounters {
    pub hints_applied: u64,
    pub hints_expired: u64,
    pub hints_stale: u64,
    pub hints_unknown: u64,
    pub hints_rejected: u64,
    /// Tokens evicted because ξ left them over.
    pub tokens_freed_by_xi: u64,
    /// Tokens evicted because a hint or a request named them.
    pub tokens_freed_by_hints: u64,
    pub blocks_stored: u64,
    pub blocks_removed: u64,
}

/// The reason why a block is marked evict-first.
#[derive(Clone, Copy, Debug)]
enum Cause {
    Xi,
    Hint,
}

#[derive(Debug)]
pub(crate) struct Memory {
    cache: PrefixCache,
    block_size: u32,
    sessions: Sessions,
    objective: Option<Objective>,
    /// Time at which the objective expires.
    expires: Option<Millis>,
    /// When the newest objective came.
    told: Option<Instant>,
    newest_epoch: u64,
    /// Reasons of the marked blocks.
    marks: FxHashMap<PrefixHash, Cause>,
    changes: Vec<Change>,
    host: Host,
    /// `None` if events are not published.
    events: Option<Vec<KvEvent>>,
    pub(crate) counters: MemoryCounters,
}

impl Memory {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let mut cache = PrefixCache::new(Tokens(config.capacity_tokens()));
        let objective = match config.cache_policy {
            CachePolicy::Plain(order) => {
                cache.set_order(order);
                None
            }
            CachePolicy::TLru {
                xi_tokens,
                next_prompt_tokens,
            } => Some(Objective::new(xi_tokens as f64, next_prompt_tokens as f64, 0)),
        };
        Self {
            cache,
            block_size: config.block_size,
            sessions: Sessions::new(config.max_sessions),
            objective,
            expires: None,
            told: None,
            newest_epoch: 0,
            marks: FxHashMap::default(),
            changes: Vec::new(),
            host: Host::new(config.host_blocks),
            events: config.kv_events.is_some().then(Vec::new),
            counters: MemoryCounters::default(),
        }
    }

    pub(crate) fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    pub(crate) fn sessions_known(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn objective_age_s(&self) -> Option<f64> {
        self.told.map(|told| told.elapsed().as_secs_f64())
    }

    pub(crate) fn objective(&self) -> Option<Objective> {
        self.objective
    }

    pub(crate) fn take_events(&mut self) -> Vec<KvEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn arrived(&mut self, terms: &CacheTerms) {
        if let Some(session) = &terms.session {
            self.sessions.arrived(session);
        }
    }

    /// Returns whether a prompt of `chain` fits beside the running sequences.
    pub(crate) fn has_room(&self, chain: &[PrefixHash]) -> bool {
        let wanted = chain.len() as u64 * u64::from(self.block_size);
        // Pinned blocks of this chain are counted twice, which only delays the prompt a little.
        self.cache.pinned().0 + wanted <= self.cache.capacity().0
    }

    pub(crate) fn begin(&mut self, chain: &[PrefixHash]) -> Lease {
        let hits = self.cache.resident(chain);
        let pieces = self.pieces(&chain[..hits]);
        for hash in &chain[..hits] {
            self.marks.remove(hash);
        }
        self.cache.acquire(&pieces, &mut self.changes)
    }

    /// Returns the tokens of a chain after its cached part that are in the host tier.
    pub(crate) fn in_host(&self, rest: &[PrefixHash]) -> Tokens {
        Tokens(self.host.leading(rest) as u64 * u64::from(self.block_size))
    }

    /// Stores computed blocks: the end of a prompt, or a block filled by decoding. `tokens` are the tokens of these
    /// blocks.
    pub(crate) fn computed(
        &mut self,
        lease: &mut Lease,
        blocks: &[PrefixHash],
        tokens: &[u32],
        terms: &CacheTerms,
    ) {
        let pieces = self.pieces(blocks);
        self.cache.extend(lease, &pieces, &mut self.changes);
        self.report(blocks, tokens, terms);
    }

    /// Releases the blocks of a finished or aborted turn and keeps its chain in the session.
    pub(crate) fn finished(&mut self, at: Millis, turn: FinishedTurn<'_>) {
        let FinishedTurn {
            lease,
            chain,
            history,
            terms,
        } = turn;
        let tail = terms.evict_first_tail.map(Tokens);
        let kept = Kept {
            history,
            by_request: tail.map(|tail| history.saturating_sub(tail)),
            ..Kept::default()
        };
        let keep = kept.under(self.evicts_by());
        if let Some(lease) = lease {
            self.cache.release(lease, keep, &mut self.changes);
        }
        let cause = if tail.is_some() { Cause::Hint } else { Cause::Xi };
        self.marked(&chain, keep, cause);
        self.report(&[], &[], terms);
        let Some(session) = &terms.session else { return };
        if let Some(pending) = self.sessions.finished(session, chain, kept) {
            if pending.expires.is_some_and(|expires| at >= expires) {
                self.counters.hints_expired += 1;
            } else {
                self.apply(session, pending.kind, pending.keep_tokens);
            }
        }
    }

    /// Applies or queues a hint. `wall_ms` is one wall millisecond on the clock of `now`.
    pub(crate) fn hint(&mut self, now: Millis, hint: &Hint, wall_ms: f64) -> HintOutcome {
        let outcome = self.take_hint(now, hint, wall_ms);
        match outcome {
            HintOutcome::Applied | HintOutcome::Pending => {}
            HintOutcome::Expired => self.counters.hints_expired += 1,
            HintOutcome::Stale => self.counters.hints_stale += 1,
            HintOutcome::Unknown => self.counters.hints_unknown += 1,
        }
        outcome
    }

    /// Sets an objective unless a newer one was seen. `wall_ms` is one wall millisecond on the clock of `now`. Returns
    /// whether it was set.
    pub(crate) fn set_objective(&mut self, now: Millis, objective: Objective, wall_ms: f64) -> bool {
        if objective.epoch < self.newest_epoch {
            return false;
        }
        self.newest_epoch = objective.epoch;
        self.told = Some(Instant::now());
        self.expires = objective.ttl_ms.map(|ttl| now + Millis(ttl * wall_ms));
        self.replace_objective(Some(objective));
        true
    }

    /// Ends an objective whose time to live has passed.
    pub(crate) fn expire(&mut self, now: Millis) {
        if self.expires.is_some_and(|expires| now >= expires) {
            self.expires = None;
            self.replace_objective(None);
        }
    }

    fn replace_objective(&mut self, objective: Option<Objective>) {
        let tail = |by: Option<Objective>| by.map(|by| by.xi_tokens - by.next_prompt_tokens);
        let before = tail(self.evicts_by());
        self.objective = objective;
        if tail(self.evicts_by()) != before {
            self.judge_finished_turns();
        }
    }

    /// Returns the objective by which the cache evicts.
    fn evicts_by(&self) -> Option<Objective> {
        self.objective.filter(|objective| objective.t_lru)
    }

    fn judge_finished_turns(&mut self) {
        let objective = self.evicts_by();
        let judged: Vec<_> = self
            .sessions
            .idle()
            .map(|session| {
                let cause = match session.kept.by_request.or(session.kept.by_hint) {
                    Some(_) => Cause::Hint,
                    None => Cause::Xi,
                };
                (session.chain.clone(), session.kept.under(objective), cause)
            })
            .collect();
        for (chain, keep, cause) in judged {
            let lease = self.begin(&chain);
            self.cache.release(lease, keep, &mut self.changes);
            self.marked(&chain, keep, cause);
        }
    }

    /// Records who marked the blocks of a chain past what is kept.
    fn marked(&mut self, chain: &[PrefixHash], keep: Keep, cause: Cause) {
        let Keep::First(kept) = keep else { return };
        let kept = kept.blocks_ceil(self.block_size) as usize;
        for &hash in chain.get(kept..).unwrap_or_default() {
            if self.cache.contains(hash) {
                self.marks.insert(hash, cause);
            }
        }
    }

    /// Clears everything. With `announced`, the events report it.
    pub(crate) fn clear(&mut self, announced: bool) {
        self.changes.clear();
        self.cache.clear(&mut self.changes);
        self.changes.clear();
        self.host.clear();
        self.marks.clear();
        self.sessions.clear();
        if let Some(events) = &mut self.events {
            if announced {
                events.push(KvEvent::AllBlocksCleared);
            } else {
                events.clear();
            }
        }
    }

    fn take_hint(&mut self, now: Millis, hint: &Hint, wall_ms: f64) -> HintOutcome {
        if hint.ttl_ms.is_some_and(|ttl| ttl <= 0.0) {
            return HintOutcome::Expired;
        }
        let Some(session) = self.sessions.get_mut(&hint.session_id) else {
            return HintOutcome::Unknown;
        };
        if hint.epoch < session.epoch {
            return HintOutcome::Stale;
        }
        session.epoch = hint.epoch;
        if session.in_engine > 0 {
            let expires = hint.ttl_ms.map(|ttl| now + Millis(ttl * wall_ms));
            session.pending = Some(PendingHint {
                kind: hint.kind,
                keep_tokens: hint.keep_tokens,
                expires,
            });
            return HintOutcome::Pending;
        }
        self.apply(&hint.session_id, hint.kind, hint.keep_tokens);
        HintOutcome::Applied
    }

    fn apply(&mut self, session: &str, kind: HintKind, keep_tokens: Option<u64>) {
        let Some(session) = self.sessions.get_mut(session) else {
            return;
        };
        let blocks = |tokens: u64| Tokens(tokens).blocks_ceil(self.block_size) as usize;
        self.counters.hints_applied += 1;
        if kind == HintKind::Protect {
            let share = keep_tokens.map_or(usize::MAX, blocks).min(session.chain.len());
            session.kept.protected = Tokens(share as u64 * u64::from(self.block_size));
            let resident = self.cache.resident(&session.chain[..share]);
            let pieces: Vec<Piece> = session.chain[..resident]
                .iter()
                .map(|&hash| Piece {
                    hash,
                    tokens: self.block_size,
                })
                .collect();
            self.cache.insert(&pieces, Keep::All, &mut self.changes);
        } else {
            let keep = blocks(keep_tokens.unwrap_or(0)).min(session.chain.len());
            session.kept.by_hint = Some(Tokens(keep_tokens.unwrap_or(0)));
            let tail = &session.chain[keep..];
            self.cache.mark_evict_first(tail.iter().rev().copied());
            let marked = tail.iter().filter(|hash| self.cache.contains(**hash));
            self.marks.extend(marked.map(|hash| (*hash, Cause::Hint)));
        }
    }

    fn pieces(&self, chain: &[PrefixHash]) -> Vec<Piece> {
        chain
            .iter()
            .map(|&hash| Piece {
                hash,
                tokens: self.block_size,
            })
            .collect()
    }

    /// Converts the cache's changes into events. Stored blocks are among `blocks`, whose tokens are `tokens`.
    fn report(&mut self, blocks: &[PrefixHash], tokens: &[u32], terms: &CacheTerms) {
        let mut at = 0;
        for change in self.changes.drain(..) {
            match change {
                Change::Stored { hash, parent } => {
                    self.counters.blocks_stored += 1;
                    let Some(events) = &mut self.events else { continue };
                    while blocks.get(at).is_some_and(|&block| block != hash) {
                        at += 1;
                    }
                    let size = self.block_size as usize;
                    let tokens = tokens.get(at * size..(at + 1) * size).unwrap_or(&[]);
                    crate::events::push_stored(events, hash, parent, tokens, self.block_size, terms);
                }
                Change::Removed { hash } => {
                    self.counters.blocks_removed += 1;
                    let tokens = u64::from(self.block_size);
                    match self.marks.remove(&hash) {
                        Some(Cause::Xi) => self.counters.tokens_freed_by_xi += tokens,
                        Some(Cause::Hint) => self.counters.tokens_freed_by_hints += tokens,
                        None => {}
                    }
                    self.host.store(hash);
                    if let Some(events) = &mut self.events {
                        events.push(crate::events::removed(hash));
                    }
                }
                Change::Cleared => {}
            }
        }
    }
}

pub(crate) struct FinishedTurn<'a> {
    pub(crate) lease: Option<Lease>,
    /// Blocks of the turn's prompt and reply; empty if nothing was computed.
    pub(crate) chain: Vec<PrefixHash>,
    /// L: tokens of prompt and reply.
    pub(crate) history: Tokens,
    pub(crate) terms: &'a CacheTerms,
}

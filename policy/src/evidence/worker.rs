//! One worker's events, bound to the text keys of prompts.

mod spans;
mod unnamed;

use std::collections::VecDeque;
use std::ops::Range;

use spans::{Span, Spans};
use unnamed::{Claim, UnboundChains, depth_of};

use super::blocks::Blocks;
use super::{Event, Medium, Stored};
use crate::ids::PrefixHash;
use crate::recent::Recent;
use crate::units::Tokens;

/// Upper bound on bound text keys per worker: 13 MB with their tables.
const KEYS: usize = 1 << 18;
/// Upper bound on the blocks that keys are bound to: 8 MB.
const BOUND: usize = 1 << 20;
/// Upper bound on conversations with a known newest block.
const SESSIONS: usize = 1 << 16;
/// Upper bound on turns waiting for their blocks' events.
const WAITING: usize = 256;

/// A completed turn: the text keys of its prompt and response, each with its end in tokens.
#[derive(Clone, Debug)]
pub struct TurnBlocks {
    /// Hashes of the names that the worker may use for the conversation.
    pub session: [u64; 2],
    /// Cached prompt tokens, if reported.
    pub cached: Option<u64>,
    /// [`WorkerEvidence::stored`] when the turn was sent: its own blocks were stored later.
    pub since: u64,
    /// The keys, each with the tokens of prompt and response up to its end.
    pub keys: Vec<(PrefixHash, u64)>,
    /// Prompt tokens.
    pub prompt: u64,
    /// Tokens of prompt and response.
    pub total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tip {
    hash: u64,
    /// Number of store events when the block was stored.
    at: u64,
}

/// The resident part of one prompt, by the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Resident leading tokens, in whole blocks.
    pub tokens: Tokens,
    /// Leading keys known from the events.
    pub known: usize,
    /// Whether the whole known part is resident: only then can anything after it be.
    pub whole: bool,
}

/// The cache contents of one worker, from its events.
#[derive(Debug)]
pub struct WorkerEvidence {
    blocks: Blocks,
    block_size: u32,
    keys: Spans,
    tips: Recent<u64, Tip>,
    unnamed: UnboundChains,
    waiting: VecDeque<TurnBlocks>,
    stored: u64,
    /// The group of layers followed: the first seen to attend to the whole prompt.
    group: Option<u32>,
    bindings: Bindings,
}

/// Counts of how turns were bound to blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// Turns bound by the name of the conversation.
    pub named: u64,
    /// Turns bound by shape.
    pub shaped: u64,
    /// Turns not bound because several chains had their shape.
    pub ambiguous: u64,
    /// Prompts whose bindings were dropped because a report contradicted them.
    pub contradicted: u64,
}

impl Default for WorkerEvidence {
    fn default() -> Self {
        Self {
            blocks: Blocks::default(),
            block_size: 0,
            keys: Spans::new(KEYS, BOUND),
            tips: Recent::new(SESSIONS),
            unnamed: UnboundChains::default(),
            waiting: VecDeque::new(),
            stored: 0,
            group: None,
            bindings: Bindings::default(),
        }
    }
}

impl WorkerEvidence {
    /// Applies one event.
    pub fn apply(&mut self, event: &Event) {
        self.apply_part(event, 0..event.hashes().len());
    }

    /// Applies the hashes in `part` of an event, so that a long event need not hold up lookups.
    pub fn apply_part(&mut self, event: &Event, part: Range<usize>) {
        let some = event.hashes().get(part.clone()).unwrap_or_default();
        match event {
            Event::Stored(stored) => self.store(stored, part),
            // Blocks of another group, which have the same hashes where their tokens are the same.
            Event::Copied { group, .. } | Event::Removed { group, .. }
                if *group != self.group.unwrap_or(0) => {}
            Event::Copied { medium, .. } => self.blocks.copied(some, *medium),
            Event::Removed { medium, .. } => {
                for &hash in some {
                    self.blocks.remove(hash, *medium);
                }
            }
            // Keys and waiting turns stay: an idle engine reports a clear with the next blocks, which may be theirs.
            Event::Cleared => {
                self.blocks.clear();
                self.tips.clear();
                self.unnamed.clear();
            }
        }
    }

    /// Resets to the empty state and returns the old one, so that the caller can free it outside the lock.
    pub fn forget(&mut self) -> Self {
        let empty = Self {
            stored: self.stored,
            bindings: self.bindings,
            ..Self::default()
        };
        std::mem::replace(self, empty)
    }

    /// Returns the number of store events so far.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Returns the number of blocks held.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the binding counts.
    pub fn bindings(&self) -> Bindings {
        self.bindings
    }

    /// Drops the bindings of a prompt whose reported cached tokens differ from the events by more than a block.
    pub fn contradicted(&mut self, chain: &[PrefixHash]) {
        self.bindings.contradicted += 1;
        for &key in chain {
            self.keys.remove(key);
        }
    }

    /// Returns the tokens per block; 0 before the first event.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Adds a completed turn. Its keys are bound as soon as its blocks' events have arrived.
    pub fn turn_over(&mut self, turn: TurnBlocks) {
        self.waiting.retain(|other| other.session != turn.session);
        if !self.bind(&turn) {
            if self.waiting.len() == WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back(turn);
        }
    }

    /// Returns how much of a prompt is resident; `None` if the events know none of it.
    pub fn resident(&self, chain: &[PrefixHash]) -> Option<Resident> {
        // Bound keys and serving blocks are prefixes of the chain, so a binary search finds their ends.
        let known = chain.partition_point(|&key| self.keys.get(key).is_some());
        if known == 0 {
            return None;
        }
        let served = chain[..known].partition_point(|&key| self.serves(key));
        let span = |at: usize| self.keys.get(chain[at]);
        let full = served.checked_sub(1).and_then(span).map_or(0, |span| span.depth);
        let part = if served == known {
            0
        } else {
            span(served).map_or(0, |span| {
                span.blocks
                    .iter()
                    .take_while(|&&block| self.blocks.serves(block))
                    .count() as u64
            })
        };
        Some(Resident {
            tokens: Tokens((u64::from(full) + part) * u64::from(self.block_size)),
            known,
            whole: served == known,
        })
    }

    /// Returns whether all blocks up to the key's end are resident.
    fn serves(&self, key: PrefixHash) -> bool {
        let Some(span) = self.keys.get(key) else {
            return false;
        };
        // A key in which no block ends depends only on what precedes it.
        span.last.is_none_or(|last| self.blocks.serves(last))
    }

    fn store(&mut self, stored: &Stored, part: Range<usize>) {
        if stored.partial || *self.group.get_or_insert(stored.group) != stored.group {
            return;
        }
        let Some(hashes) = stored.hashes.get(part.clone()) else {
            return;
        };
        // Counts one event, however many parts it has.
        self.stored += u64::from(part.start == 0);
        if stored.block_size > 0 && stored.medium == Medium::Gpu {
            self.block_size = stored.block_size;
        }
        let at = self.stored;
        let before = part.start.checked_sub(1).map(|last| stored.hashes[last]);
        let last = self
            .blocks
            .store(before.or(stored.parent), hashes, stored.medium, at);
        // Only the complete event ends a chain.
        let Some((hash, depth)) = last.filter(|_| part.end == stored.hashes.len()) else {
            return;
        };
        if let Some(session) = stored.session {
            self.tips.put(session, Tip { hash, at });
            let waiting = self
                .waiting
                .iter()
                .position(|turn| turn.session.contains(&session));
            self.retry(waiting);
            return;
        }
        self.unnamed.stored(stored.parent, hash, at);
        let block = u64::from(self.block_size.max(1));
        let fits = |turn: &TurnBlocks| depth_of(turn, block) == u64::from(depth);
        match self.waiting.iter().filter(|turn| fits(turn)).count() {
            0 => {}
            1 => self.retry(self.waiting.iter().position(fits)),
            // Whichever turn it is, events of the others are still to come.
            _ => self.share(hash, fits),
        }
    }

    fn retry(&mut self, waiting: Option<usize>) {
        if let Some(turn) = waiting.and_then(|at| self.waiting.remove(at))
            && !self.bind(&turn)
        {
            self.waiting.push_back(turn);
        }
    }

    /// Binds a chain that several waiting turns match if it passes through blocks bound to only one of them.
    fn share(&mut self, hash: u64, fits: impl Fn(&TurnBlocks) -> bool) {
        let Some(path) = self.blocks.path(hash) else {
            return;
        };
        let claims = |turn: &TurnBlocks| fits(turn) && self.agrees(turn, &path);
        let claimants: Vec<usize> = (0..self.waiting.len())
            .filter(|&at| claims(&self.waiting[at]))
            .collect();
        match claimants[..] {
            [] => {}
            [only] => self.retry(Some(only)),
            _ => {
                self.bindings.ambiguous += claimants.len() as u64;
                self.unnamed.take(hash);
                for at in claimants.into_iter().rev() {
                    self.waiting.remove(at);
                }
            }
        }
    }

    fn bind(&mut self, turn: &TurnBlocks) -> bool {
        let tip = turn.session.iter().find_map(|&name| self.tips.get(name)).copied();
        if let Some(tip) = tip.filter(|tip| tip.at > turn.since) {
            return self.bind_to(turn, tip.hash, false);
        }
        let block = u64::from(self.block_size.max(1));
        let claim = self
            .unnamed
            .claim(turn, block, &self.blocks, |path| self.agrees(turn, path));
        match claim {
            Claim::Nothing => false,
            Claim::One(hash) => {
                self.unnamed.take(hash);
                self.bind_to(turn, hash, true)
            }
            Claim::Several => {
                self.bindings.ambiguous += 1;
                true
            }
        }
    }

    /// Binds a turn's keys to the blocks up to `tip`. Returns whether the turn is settled.
    fn bind_to(&mut self, turn: &TurnBlocks, tip: u64, by_shape: bool) -> bool {
        let block = u64::from(self.block_size.max(1));
        let Some(path) = self.blocks.path(tip) else {
            return false;
        };
        let (least, most) = (turn.prompt / block, turn.total / block);
        if (path.len() as u64) < least {
            return false;
        }
        if path.len() as u64 > most || !self.agrees(turn, &path) {
            // Another branch of the same conversation.
            return true;
        }
        let mut from = 0;
        let mut spans = Vec::with_capacity(turn.keys.len());
        for &(key, end) in &turn.keys {
            let depth = end / block;
            // The last token's KV is never computed, so the last block may be missing.
            if depth > path.len() as u64 + 1 {
                break;
            }
            let depth = (depth as usize).clamp(from, path.len());
            if !self.keys.takes(depth - from) {
                break;
            }
            let span = Span {
                depth: depth as u32,
                blocks: &path[from..depth],
                last: depth.checked_sub(1).map(|at| path[at]),
            };
            spans.push((key, span));
            from = depth;
        }
        let bound = if by_shape {
            &mut self.bindings.shaped
        } else {
            &mut self.bindings.named
        };
        *bound += 1;
        // In reverse, so that the first keys are forgotten last.
        for (key, span) in spans.into_iter().rev() {
            self.keys.put(key, span);
        }
        path.len() as u64 >= turn.total.saturating_sub(1) / block
    }

    fn agrees(&self, turn: &TurnBlocks, path: &[u64]) -> bool {
        let known = turn
            .keys
            .partition_point(|&(key, _)| self.keys.get(key).is_some());
        let last = turn.keys[..known].iter().rev().find_map(|&(key, _)| {
            let span = self.keys.get(key)?;
            span.blocks.last().map(|&hash| (span.depth as usize, hash))
        });
        last.is_none_or(|(depth, hash)| {
            !self.blocks.serves(hash) || depth > path.len() || path[depth - 1] == hash
        })
    }
}

#[cfg(test)]
mod tests;

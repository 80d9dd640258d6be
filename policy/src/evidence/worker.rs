//! One worker's events, bound to the text keys of prompts.

mod spans;
mod unnamed;

use std::collections::VecDeque;
use std::ops::Range;

use spans::{Span, Spans};
use unnamed::{Claim, Unnamed, depth_of};

use super::blocks::Blocks;
use super::{Event, Medium, Stored};
use crate::ids::PrefixHash;
use crate::recent::Recent;
use crate::units::Tokens;

/// Text keys of one worker that are bound to blocks: with their tables, 13 MB at the most.
const KEYS: usize = 1 << 18;
/// Blocks that they are bound to: 8 MB at the most.
const BOUND: usize = 1 << 20;
/// Conversations whose newest block is remembered.
const SESSIONS: usize = 1 << 16;
/// Turns that wait for their blocks' events.
const WAITING: usize = 256;

/// A turn that is over: the text keys of its prompt and reply, and where in tokens each of them ends.
#[derive(Clone, Debug)]
pub struct TurnBlocks {
    /// The conversation, by the hashes of the names under which the worker may know it.
    pub session: [u64; 2],
    /// Tokens of the prompt that were found in the cache, if reported.
    pub cached: Option<u64>,
    /// [`WorkerEvidence::stored`] when the turn was sent: only blocks stored since then are its own.
    pub since: u64,
    /// The keys, each with the tokens of prompt and reply up to its end.
    pub keys: Vec<(PrefixHash, u64)>,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of prompt and reply.
    pub total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tip {
    hash: u64,
    /// The count of store events when it was stored.
    at: u64,
}

/// What the events say of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Leading tokens that are resident: whole blocks.
    pub tokens: Tokens,
    /// Leading keys that the events know anything of.
    pub known: usize,
    /// Whether all of the known part is resident: only then can anything after it be.
    pub whole: bool,
}

/// What one worker's events tell.
#[derive(Debug)]
pub struct WorkerEvidence {
    blocks: Blocks,
    block_size: u32,
    keys: Spans,
    tips: Recent<u64, Tip>,
    /// Chains of events that name no conversation.
    unnamed: Unnamed,
    waiting: VecDeque<TurnBlocks>,
    stored: u64,
    /// The group of layers that is followed: the first that was seen to attend to the whole prompt.
    group: Option<u32>,
    bindings: Bindings,
}

/// How turns were bound to blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// By the name of their conversation.
    pub named: u64,
    /// By their shape.
    pub shaped: u64,
    /// Not at all: more than one chain had the turn's shape.
    pub ambiguous: u64,
    /// Dropped, because a report contradicted them.
    pub contradicted: u64,
}

impl Default for WorkerEvidence {
    fn default() -> Self {
        Self {
            blocks: Blocks::default(),
            block_size: 0,
            keys: Spans::new(KEYS, BOUND),
            tips: Recent::new(SESSIONS),
            unnamed: Unnamed::default(),
            waiting: VecDeque::new(),
            stored: 0,
            group: None,
            bindings: Bindings::default(),
        }
    }
}

impl WorkerEvidence {
    /// Takes one event.
    pub fn apply(&mut self, event: &Event) {
        self.apply_part(event, 0..event.hashes().len());
    }

    /// Takes part of an event, these of its hashes: the parts in their order come to the same as the whole. A long event
    /// can so be taken without keeping lookups waiting.
    pub fn apply_part(&mut self, event: &Event, part: Range<usize>) {
        let some = event.hashes().get(part.clone()).unwrap_or_default();
        match event {
            Event::Stored(stored) => self.store(stored, part),
            // Another group's blocks: the same hashes, where they are of the same tokens.
            Event::Copied { group, .. } | Event::Removed { group, .. }
                if *group != self.group.unwrap_or(0) => {}
            Event::Copied { medium, .. } => self.blocks.copied(some, *medium),
            Event::Removed { medium, .. } => {
                for &hash in some {
                    self.blocks.remove(hash, *medium);
                }
            }
            // What keys mean stays known: from now on, that nothing of it is there. Turns that wait still do: an engine
            // clears while it is idle and tells of it with the next blocks, which may be theirs.
            Event::Cleared => {
                self.blocks.clear();
                self.tips.clear();
                self.unnamed.clear();
            }
        }
    }

    /// Nothing that was known can be believed any more. Returns it, so that whoever keeps others waiting can free it later.
    pub fn forget(&mut self) -> Self {
        let empty = Self {
            stored: self.stored,
            bindings: self.bindings,
            ..Self::default()
        };
        std::mem::replace(self, empty)
    }

    /// Events of stored blocks so far.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Blocks held.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// How turns were bound so far.
    #[must_use]
    pub fn bindings(&self) -> Bindings {
        self.bindings
    }

    /// A prompt's cached tokens were not what these events said by more than a block: what its keys are bound to is not
    /// theirs.
    pub fn contradicted(&mut self, chain: &[PrefixHash]) {
        self.bindings.contradicted += 1;
        for &key in chain {
            self.keys.remove(key);
        }
    }

    /// Tokens per block; 0 until an event has said.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// A turn is over. Its keys are bound as soon as the events of its blocks are here.
    pub fn turn_over(&mut self, turn: TurnBlocks) {
        self.waiting.retain(|other| other.session != turn.session);
        if !self.bind(&turn) {
            if self.waiting.len() == WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back(turn);
        }
    }

    /// How much of a prompt is resident; `None` if the events know nothing of it.
    #[must_use]
    pub fn resident(&self, chain: &[PrefixHash]) -> Option<Resident> {
        // Keys are bound and renewed from a prompt's beginning on, and a block serves only if all before it do: both
        // properties hold up to some key and for none after it.
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

    /// Whether all blocks up to the key's end are there.
    fn serves(&self, key: PrefixHash) -> bool {
        let Some(span) = self.keys.get(key) else {
            return false;
        };
        // A key that ends no block adds nothing: it is there as far as what comes before it is.
        span.last.is_none_or(|last| self.blocks.serves(last))
    }

    fn store(&mut self, stored: &Stored, part: Range<usize>) {
        if stored.partial || *self.group.get_or_insert(stored.group) != stored.group {
            return;
        }
        let Some(hashes) = stored.hashes.get(part.clone()) else {
            return;
        };
        // One event, in however many parts.
        self.stored += u64::from(part.start == 0);
        if stored.block_size > 0 && stored.medium == Medium::Gpu {
            self.block_size = stored.block_size;
        }
        let at = self.stored;
        let before = part.start.checked_sub(1).map(|last| stored.hashes[last]);
        let last = self
            .blocks
            .store(before.or(stored.parent), hashes, stored.medium, at);
        // Only the whole of it ends somebody's chain.
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
            // Whichever of them it is, the others' are still to come.
            _ => self.share(hash, fits),
        }
    }

    /// Tries a waiting turn again.
    fn retry(&mut self, waiting: Option<usize>) {
        if let Some(turn) = waiting.and_then(|at| self.waiting.remove(at))
            && !self.bind(&turn)
        {
            self.waiting.push_back(turn);
        }
    }

    /// A chain ends where several waiting turns do: it is bound if it goes through what only one of them is bound to.
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

    /// Binds a turn's keys to its blocks. Returns whether there is nothing more to come.
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

    /// Binds a turn's keys to the blocks up to `tip`. Returns whether there is nothing more to come.
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
            // The last token's own state is never computed, so the last block may be one short.
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
        // The first keys last, so that they are the last to be forgotten.
        for (key, span) in spans.into_iter().rev() {
            self.keys.put(key, span);
        }
        path.len() as u64 >= turn.total.saturating_sub(1) / block
    }

    /// Whether what is known of the turn's first keys is what this path says.
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

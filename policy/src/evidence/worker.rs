//! One worker's events, bound to the text keys of prompts.

use std::collections::VecDeque;
use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::blocks::Blocks;
use super::{Event, Stored};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// Text keys of one worker that are bound to blocks: some 20 MB at the most.
const KEYS: usize = 1 << 18;
/// Conversations whose newest block is remembered.
const SESSIONS: usize = 1 << 16;
/// Turns that wait for their blocks' events.
const WAITING: usize = 256;

/// A turn that is over: the text keys of its prompt and reply, and where in tokens each of them ends.
#[derive(Clone, Debug)]
pub struct TurnBlocks {
    /// The conversation, by the hashes of the names under which the worker may know it.
    pub session: [u64; 2],
    /// [`WorkerEvidence::stored`] when the turn was sent: only blocks stored since then are its own.
    pub since: u64,
    /// The keys, each with the tokens of prompt and reply up to its end.
    pub keys: Vec<(PrefixHash, u64)>,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of prompt and reply.
    pub total: u64,
}

/// What a key's text fills: the blocks that end in it, after those of the keys before.
#[derive(Clone, Debug)]
struct Span {
    /// Blocks before and in it.
    depth: u32,
    blocks: Box<[u64]>,
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
    keys: Recent<PrefixHash, Span>,
    tips: Recent<u64, Tip>,
    waiting: VecDeque<TurnBlocks>,
    stored: u64,
}

impl Default for WorkerEvidence {
    fn default() -> Self {
        Self {
            blocks: Blocks::default(),
            block_size: 0,
            keys: Recent::new(KEYS),
            tips: Recent::new(SESSIONS),
            waiting: VecDeque::new(),
            stored: 0,
        }
    }
}

impl WorkerEvidence {
    /// Takes one event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Stored(stored) => self.store(stored),
            Event::Removed { hashes, medium } => {
                for &hash in hashes {
                    self.blocks.remove(hash, *medium);
                }
            }
            // What keys mean stays known: from now on, that nothing of it is there.
            Event::Cleared => {
                self.blocks.clear();
                self.tips.clear();
                self.waiting.clear();
            }
        }
    }

    /// Nothing that was known can be believed any more.
    pub fn forget(&mut self) {
        *self = Self {
            stored: self.stored,
            ..Self::default()
        };
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
        // A key that ends no block adds nothing, and says nothing either: the next one that does will.
        span.blocks.last().is_none_or(|&last| self.blocks.serves(last))
    }

    fn store(&mut self, stored: &Stored) {
        self.stored += 1;
        if stored.block_size > 0 {
            self.block_size = stored.block_size;
        }
        let last = self.blocks.store(stored.parent, &stored.hashes, stored.medium);
        let (Some((hash, _)), Some(session)) = (last, stored.session) else {
            return;
        };
        self.tips.put(
            session,
            Tip {
                hash,
                at: self.stored,
            },
        );
        let waiting = self
            .waiting
            .iter()
            .position(|turn| turn.session.contains(&session));
        if let Some(turn) = waiting.and_then(|at| self.waiting.remove(at))
            && !self.bind(&turn)
        {
            self.waiting.push_back(turn);
        }
    }

    /// Binds a turn's keys to the blocks of its conversation. Returns whether there is nothing more to come.
    fn bind(&mut self, turn: &TurnBlocks) -> bool {
        let tip = turn.session.iter().find_map(|&name| self.tips.get(name)).copied();
        let Some(tip) = tip.filter(|tip| tip.at > turn.since) else {
            return false;
        };
        let block = u64::from(self.block_size.max(1));
        let Some(path) = self.blocks.path(tip.hash) else {
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
            spans.push((
                key,
                Span {
                    depth: depth as u32,
                    blocks: path[from..depth].into(),
                },
            ));
            from = depth;
        }
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

/// A map that forgets what was not put again for a while: the older half goes when the younger one is full. It costs
/// nothing per use, and nothing here depends on the exact order.
#[derive(Debug)]
struct Recent<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    half: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    fn new(most: usize) -> Self {
        Self {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            half: (most / 2).max(1),
        }
    }

    fn get(&self, key: K) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests;

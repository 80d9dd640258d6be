//! The chain of keys with the canonical bytes that each prefix spans, and the hash that links a key to the one before.

use std::num::NonZeroU32;

use rapidhash::v3::{DEFAULT_RAPID_SECRETS, rapidhash_v3_inline};

use crate::ids::PrefixHash;

/// A chain of prefix keys. Reusable: [`Chain::clear`] keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    hashes: Vec<PrefixHash>,
    ends: Vec<u64>,
    stops: Vec<u32>,
}

impl Chain {
    /// Creates an empty chain.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a chain from precomputed keys of `block_tokens` tokens each, after `before` tokens: a trace's blocks.
    pub fn of_blocks(hashes: Vec<PrefixHash>, before: u64, block_tokens: u32) -> Self {
        let end = |i: usize| before + (i as u64 + 1) * u64::from(block_tokens);
        let ends = (0..hashes.len()).map(end).collect();
        Self {
            hashes,
            ends,
            stops: Vec::new(),
        }
    }

    /// Creates a chain from precomputed keys, each with its end, in any unit.
    pub fn of_ends(keys: Vec<(PrefixHash, u64)>) -> Self {
        let (hashes, ends) = keys.into_iter().unzip();
        Self {
            hashes,
            ends,
            stops: Vec::new(),
        }
    }

    /// Returns the keys in order.
    pub fn hashes(&self) -> &[PrefixHash] {
        &self.hashes
    }

    /// Returns, for each key, the canonical bytes (text keys) or tokens (token keys) of the prompt up to its end.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// Returns whether the chain may be one text, as a plain prompt is, or blocks: no message ends before the last key.
    pub fn is_text(&self) -> bool {
        self.stops.len() <= 1
    }

    /// Returns the keys with which messages end, or a plain prompt that ends within a piece, and their positions.
    pub fn message_ends(&self) -> impl DoubleEndedIterator<Item = (PrefixHash, u64)> {
        let key = |&at: &u32| Some((*self.hashes.get(at as usize)?, *self.ends.get(at as usize)?));
        self.stops.iter().filter_map(key)
    }

    /// Returns the canonical bytes (or tokens) that the first `keys` keys span; past the end, those of the whole chain.
    pub fn span(&self, keys: usize) -> u64 {
        match keys.min(self.ends.len()) {
            0 => 0,
            n => self.ends[n - 1],
        }
    }

    /// Returns how many leading keys the next turn repeats if the response continues `parent` (`None`: the beginning).
    /// Excludes a plain prompt's last, short key. Returns all if `parent` is no key of this chain.
    pub fn keys_before_reply(&self, parent: Option<PrefixHash>) -> usize {
        parent.map_or(0, |parent| {
            let at = self.hashes.iter().rposition(|&key| key == parent);
            at.map_or(self.len(), |at| at + 1)
        })
    }

    /// Returns the chain of a whole turn: this prompt's, and that of `reply`, which continues `parent`.
    pub fn with_reply(&self, parent: Option<PrefixHash>, reply: &Self) -> Self {
        let keys = self.keys_before_reply(parent);
        let stops = self.stops.partition_point(|&at| (at as usize) < keys);
        let mut all = Self::with_room(keys + reply.len(), stops + reply.stops.len());
        all.hashes.extend_from_slice(&self.hashes[..keys]);
        all.ends.extend_from_slice(&self.ends[..keys]);
        all.stops.extend_from_slice(&self.stops[..stops]);
        all.extend_from(reply);
        all
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns whether the chain has no keys.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns the last key, which names the whole prompt.
    pub fn last(&self) -> Option<PrefixHash> {
        self.hashes.last().copied()
    }

    /// Removes the keys and keeps the memory.
    pub fn clear(&mut self) {
        self.hashes.clear();
        self.ends.clear();
        self.stops.clear();
    }

    /// Appends another chain's keys, as for a response that continued this one.
    pub fn extend_from(&mut self, other: &Self) {
        let before = self.len() as u32;
        self.stops.extend(other.stops.iter().map(|&at| before + at));
        self.hashes.extend_from_slice(&other.hashes);
        self.ends.extend_from_slice(&other.ends);
    }

    pub(super) fn with_room(keys: usize, stops: usize) -> Self {
        Self {
            hashes: Vec::with_capacity(keys),
            ends: Vec::with_capacity(keys),
            stops: Vec::with_capacity(stops),
        }
    }

    pub(super) fn stop(&mut self) {
        if let Some(last) = self.len().checked_sub(1).map(|last| last as u32)
            && self.stops.last() != Some(&last)
        {
            self.stops.push(last);
        }
    }

    pub(super) fn push(&mut self, link: u64, end: u64) {
        self.hashes.push(PrefixHash(link));
        self.ends.push(end);
    }

    /// Appends keys of blocks of `block_tokens` tokens each, from the blocks' digests. The first follows `previous`.
    #[inline]
    pub(super) fn extend_blocks(
        &mut self,
        previous: PrefixHash,
        block_tokens: NonZeroU32,
        digests: impl ExactSizeIterator<Item = u64>,
    ) {
        let (before, tokens, count) = (
            self.span(self.len()),
            u64::from(block_tokens.get()),
            digests.len() as u64,
        );
        let mut link = previous.0;
        self.hashes.extend(digests.map(|digest| {
            link = fold(link, digest);
            PrefixHash(link)
        }));
        self.ends.extend((1..=count).map(|block| before + block * tokens));
    }

    pub(super) fn reserve(&mut self, keys: usize) {
        self.hashes.reserve(keys);
        self.ends.reserve(keys);
    }
}

/// Returns the hash of a piece, independent of its position. Inlined, so that a piece of fixed length has no branches.
#[inline]
pub(super) fn digest(piece: &[u8]) -> u64 {
    rapidhash_v3_inline::<true, false, true>(piece, &DEFAULT_RAPID_SECRETS)
}

/// Returns the next link: one multiplication to 128 bits whose halves are folded together. The factors are mixed in
/// again, so that a zero on one side does not erase the other.
#[inline]
pub(super) fn fold(previous: u64, digest: u64) -> u64 {
    // Odd constants with as many ones as zeros, so that short runs of zeros on the two sides do not meet.
    let (left, right) = (previous ^ 0x2D35_8DCC_AA6C_78A5, digest ^ 0x8BB8_4B93_962E_ACC9);
    let product = u128::from(left) * u128::from(right);
    left ^ right.rotate_left(32) ^ (product as u64) ^ (product >> 64) as u64
}

/// Returns the first link of a domain, model and salt. Lengths keep a model name from imitating a model with a salt.
pub(super) fn root(domain: &[u8], model: &str, cache_salt: Option<&str>) -> u64 {
    let named = fold(link(digest(domain), model.as_bytes()), model.len() as u64);
    match cache_salt {
        None => named,
        Some(salt) => fold(link(named, salt.as_bytes()), salt.len() as u64),
    }
}

pub(super) fn link(previous: u64, piece: &[u8]) -> u64 {
    fold(previous, digest(piece))
}

//! The result: keys, and how many canonical bytes each prefix spans.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::ids::PrefixHash;

/// A chain of prefix keys. Reusable: [`Chain::clear`] keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    hashes: Vec<PrefixHash>,
    ends: Vec<u64>,
}

impl Chain {
    /// An empty chain.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keys that somebody else computed, `block_tokens` tokens each, after `before` tokens: a trace's blocks.
    #[must_use]
    pub fn of_blocks(hashes: Vec<PrefixHash>, before: u64, block_tokens: u32) -> Self {
        let end = |i: usize| before + (i as u64 + 1) * u64::from(block_tokens);
        let ends = (0..hashes.len()).map(end).collect();
        Self { hashes, ends }
    }

    /// The keys in order: what the index takes.
    #[must_use]
    pub fn hashes(&self) -> &[PrefixHash] {
        &self.hashes
    }

    /// For each key, the canonical bytes (text keys) or tokens (token keys) of the prompt up to its end.
    #[must_use]
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// The canonical bytes (or tokens) that the first `keys` keys span; 0 for none. Past the end: the whole chain's.
    #[must_use]
    pub fn span(&self, keys: usize) -> u64 {
        match keys.min(self.ends.len()) {
            0 => 0,
            n => self.ends[n - 1],
        }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The last key, which names the whole prompt.
    #[must_use]
    pub fn last(&self) -> Option<PrefixHash> {
        self.hashes.last().copied()
    }

    /// Drops the keys and keeps the memory.
    pub fn clear(&mut self) {
        self.hashes.clear();
        self.ends.clear();
    }

    /// Appends another chain's keys, as after a reply that continued this one.
    pub fn extend_from(&mut self, other: &Self) {
        self.hashes.extend_from_slice(&other.hashes);
        self.ends.extend_from_slice(&other.ends);
    }

    pub(super) fn push(&mut self, link: u64, end: u64) {
        self.hashes.push(PrefixHash(link));
        self.ends.push(end);
    }

    pub(super) fn reserve(&mut self, keys: usize) {
        self.hashes.reserve(keys);
        self.ends.reserve(keys);
    }
}

/// The next link: the piece is hashed on its own, so that consecutive pieces overlap in the processor and only this
/// 8-byte fold waits for the previous link.
pub(super) fn link(previous: u64, piece: &[u8]) -> u64 {
    fold(previous, xxh3_64(piece))
}

pub(super) fn fold(previous: u64, digest: u64) -> u64 {
    xxh3_64_with_seed(&digest.to_le_bytes(), previous)
}

/// The first link: what must not share a prefix, however equal the prompt. Lengths are mixed in, so that no model name
/// can imitate a model with a salt.
pub(super) fn root(domain: &[u8], model: &str, cache_salt: Option<&str>) -> u64 {
    let named = fold(link(xxh3_64(domain), model.as_bytes()), model.len() as u64);
    match cache_salt {
        None => named,
        Some(salt) => fold(link(named, salt.as_bytes()), salt.len() as u64),
    }
}

//! What a worker would hold if it took no hints: plain LRU, followed on a sample of the pieces.
//!
//! Pieces are sampled by their key (SHARDS: Waldspurger et al., FAST 2015), so a beginning that many conversations share
//! counts once, as it does in the engine. The leaves of LRU's tree go first because what a turn used is touched from its
//! last piece to its first.

use crate::cache::{Keep, Piece, PrefixCache};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// One piece in so many is followed.
const RATE: u64 = 8;

/// Prompt tokens that were cached, with hints and without. Both are told from the same sampled pieces, so they are equal
/// where nothing that was sampled tells the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// As the worker is.
    pub hinted: Tokens,
    /// Under LRU alone.
    pub untold: Tokens,
}

#[derive(Debug)]
pub(super) struct Untold {
    sample: PrefixCache,
}

impl Untold {
    /// The sample of a cache that was told nothing so far.
    pub(super) fn of(cache: &PrefixCache) -> Self {
        let mut untold = Self {
            sample: PrefixCache::new(share(cache.capacity())),
        };
        for entry in cache.entries() {
            untold.touch(entry.piece);
        }
        untold
    }

    pub(super) fn set_capacity(&mut self, capacity: Tokens) {
        if self.sample.capacity() != share(capacity) {
            self.sample.set_capacity(share(capacity), &mut Vec::new());
        }
    }

    /// How much of a prompt is cached, where its first `hits` pieces are.
    pub(super) fn compare(&self, pieces: &[Piece], hits: usize) -> Compared {
        let (mut hinted, mut untold) = (None, None);
        let (mut end, mut last) = (0, 0);
        for (at, piece) in pieces.iter().enumerate() {
            if is_sampled(piece.hash) {
                // The first missing piece is between the last sampled one and this.
                let cached = Tokens(u64::midpoint(last, end));
                if at >= hits {
                    hinted.get_or_insert(cached);
                }
                if !self.sample.contains(piece.hash) {
                    untold.get_or_insert(cached);
                }
                last = end + u64::from(piece.tokens);
            }
            end += u64::from(piece.tokens);
            if hinted.is_some() && untold.is_some() {
                break;
            }
        }
        // Nothing sampled is missing: all of it may be cached.
        let end: u64 = pieces.iter().map(|piece| u64::from(piece.tokens)).sum();
        Compared {
            hinted: hinted.unwrap_or(Tokens(end)),
            untold: untold.unwrap_or(Tokens(end)),
        }
    }

    /// A turn used these pieces, the last one first.
    pub(super) fn used(&mut self, pieces: impl Iterator<Item = Piece>) {
        for piece in pieces {
            self.touch(piece);
        }
    }

    /// The worker turned out not to hold it.
    pub(super) fn lost(&mut self, hash: PrefixHash) {
        if is_sampled(hash) {
            self.sample.remove(hash, &mut Vec::new());
        }
    }

    fn touch(&mut self, piece: Piece) {
        if is_sampled(piece.hash) {
            self.sample.insert(&[piece], Keep::All, &mut Vec::new());
        }
    }
}

fn share(capacity: Tokens) -> Tokens {
    Tokens(capacity.0 / RATE)
}

fn is_sampled(hash: PrefixHash) -> bool {
    hash.0.is_multiple_of(RATE)
}

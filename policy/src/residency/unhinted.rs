//! The cache of a worker as it would be without hints: plain LRU, on a sample of the pieces where there are many.
//!
//! Pieces are sampled by key (SHARDS: Waldspurger et al., FAST 2015), so a prefix shared by many conversations counts
//! once, as in the engine. Leaves are evicted first because a turn touches its pieces from last to first.

use crate::cache::{Keep, Piece, PrefixCache};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// Number of pieces up to which all are followed; of more, a share is. With 50 pieces a sample's weight would vary by
/// 15 %.
const ALL: usize = 4_096;

/// Cached prompt tokens with hints and under LRU, equal where no sampled piece differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Cached tokens on the worker, with hints.
    pub hinted: Tokens,
    /// Cached tokens under plain LRU.
    pub untold: Tokens,
}

#[derive(Debug)]
pub(super) struct UnhintedCache {
    sample: PrefixCache,
    /// Inverse of the share of pieces that are followed.
    rate: u64,
}

impl UnhintedCache {
    /// Creates the sample from a cache that has had no hints.
    pub(super) fn of(cache: &PrefixCache) -> Self {
        let rate = (cache.len() / ALL).next_power_of_two() as u64;
        let mut untold = Self {
            sample: PrefixCache::new(Tokens(cache.capacity().0 / rate)),
            rate,
        };
        for entry in cache.entries() {
            untold.touch(entry.piece);
        }
        untold
    }

    pub(super) fn set_capacity(&mut self, capacity: Tokens) {
        let share = Tokens(capacity.0 / self.rate);
        if self.sample.capacity() != share {
            self.sample.set_capacity(share, &mut Vec::new());
        }
    }

    /// Returns the cached tokens of a prompt whose first `hits` pieces are cached with hints.
    pub(super) fn compare(&self, pieces: &[Piece], hits: usize) -> Compared {
        let (mut hinted, mut untold) = (None, None);
        let (mut end, mut last) = (0, 0);
        for (at, piece) in pieces.iter().enumerate() {
            if self.follows(piece.hash) {
                // The first missing piece lies between the last sampled piece and this one.
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
        // No sampled piece is missing, so all of the prompt may be cached.
        let end: u64 = pieces.iter().map(|piece| u64::from(piece.tokens)).sum();
        Compared {
            hinted: hinted.unwrap_or(Tokens(end)),
            untold: untold.unwrap_or(Tokens(end)),
        }
    }

    pub(super) fn used(&mut self, pieces: impl Iterator<Item = Piece>) {
        for piece in pieces {
            self.touch(piece);
        }
    }

    /// Removes a piece that the worker turned out not to hold.
    pub(super) fn lost(&mut self, hash: PrefixHash) {
        if self.follows(hash) {
            self.sample.remove(hash, &mut Vec::new());
        }
    }

    fn touch(&mut self, piece: Piece) {
        if self.follows(piece.hash) {
            self.sample.insert(&[piece], Keep::All, &mut Vec::new());
        }
    }

    fn follows(&self, hash: PrefixHash) -> bool {
        hash.0.is_multiple_of(self.rate)
    }
}

//! What a worker would hold if it took no hints: plain LRU, followed on a sample of the pieces where there are many.
//!
//! Pieces are sampled by their key (SHARDS: Waldspurger et al., FAST 2015), so a beginning that many conversations share
//! counts once, as it does in the engine. The leaves of LRU's tree go first because what a turn used is touched from its
//! last piece to its first.

use crate::cache::{Keep, Piece, PrefixCache};
use crate::ids::PrefixHash;
use crate::units::Tokens;

/// Pieces that are all followed; of a larger cache one in two, four or more is. A smaller sample has a share of the capacity
/// that is a matter of chance: with 50 pieces, 15 % more or less than its due.
const ALL: usize = 4_096;

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
    /// One piece in so many is followed.
    rate: u64,
}

impl Untold {
    /// The sample of a cache that was told nothing so far.
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

    /// How much of a prompt is cached, where its first `hits` pieces are.
    pub(super) fn compare(&self, pieces: &[Piece], hits: usize) -> Compared {
        let (mut hinted, mut untold) = (None, None);
        let (mut end, mut last) = (0, 0);
        for (at, piece) in pieces.iter().enumerate() {
            if self.follows(piece.hash) {
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

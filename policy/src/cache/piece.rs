//! Pieces of the cache, and the inputs and results of its operations.

use crate::ids::PrefixHash;
use crate::units::Tokens;

/// One link of a chain to be cached: its hash and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Hash of the whole prefix that ends with this piece.
    pub hash: PrefixHash,
    /// Tokens that this piece adds to its prefix.
    pub tokens: u32,
}

/// A resident piece, as listed by [`super::PrefixCache::entries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Hash and weight of the piece.
    pub piece: Piece,
    /// Index of the piece's parent in the list; `None` at the root.
    pub parent: Option<u32>,
}

/// A change of the resident set. Replaying the changes in order on a set reproduces the cache's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A piece became resident below `parent` (`None`: at the root).
    Stored {
        /// Hash of the new piece.
        hash: PrefixHash,
        /// Hash of the piece before the new one.
        parent: Option<PrefixHash>,
    },
    /// A piece was removed.
    Removed {
        /// Hash of the removed piece.
        hash: PrefixHash,
    },
    /// All pieces were removed.
    Cleared,
}

/// A piece's position in the order of eviction when it was last free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Number of the piece's last release, counted from 1 since the last clear; 0 before the first. No descendant's is
    /// larger.
    pub released: u64,
    /// Number of the piece's entry into the evict-first band, if all or the end of the piece was marked.
    pub marked: Option<u64>,
}

/// The part of a released chain to keep; the rest enters the evict-first band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The whole chain: plain LRU.
    All,
    /// The pieces that begin before this many tokens (a budget rounded up to whole pieces).
    First(Tokens),
}

/// The result of [`super::PrefixCache::trim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// Newly marked pieces.
    pub pieces: usize,
    /// Tokens before the first marked piece: the requested number, rounded up to whole pieces; the whole chain if that is
    /// shorter.
    pub keep: Tokens,
    /// Hash of the last piece kept, from which the next trim can continue; `None` if none is kept.
    pub end: Option<PrefixHash>,
}

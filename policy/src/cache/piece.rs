//! What goes into the cache, what is said of it, and what comes of it.

use crate::ids::PrefixHash;
use crate::units::Tokens;

/// One link of a chain to be cached: its name and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Names the whole prefix that ends with this piece.
    pub hash: PrefixHash,
    /// The tokens that this piece adds to its prefix.
    pub tokens: u32,
}

/// A resident piece, as [`super::PrefixCache::entries`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The piece.
    pub piece: Piece,
    /// The place of the piece before it in the list; `None` at the root.
    pub parent: Option<u32>,
}

/// What an operation did to the resident set, in order. Replaying these on a set reproduces the cache's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A piece became resident, below `parent` (`None`: at the root).
    Stored {
        /// The new piece.
        hash: PrefixHash,
        /// The piece before it.
        parent: Option<PrefixHash>,
    },
    /// A piece left.
    Removed {
        /// The piece that left.
        hash: PrefixHash,
    },
    /// Everything left at once.
    Cleared,
}

/// Where a piece stood in the order of eviction when it was last free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The number of the release that gave it back last, counted from 1 since the last clear; 0 if none has yet. A piece's
    /// is never smaller than that of a piece below it.
    pub released: u64,
    /// If it, or the end of it, was said to go first: the number of its entry into that band.
    pub marked: Option<u64>,
}

/// How much of a released chain is worth keeping; what lies past it goes to the evict-first band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of it: plain LRU.
    All,
    /// The pieces that begin before this many tokens (a budget rounded up to whole pieces).
    First(Tokens),
}

/// What [`super::PrefixCache::trim`] put in the evict-first band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// Pieces that took the mark, and did not have it before.
    pub pieces: usize,
    /// Tokens before the first marked piece: what was asked to be kept, rounded up to whole pieces.
    pub keep: Tokens,
    /// The last piece that is kept, from which the next trim may go on.
    pub end: Option<PrefixHash>,
}

//! A running sequence's hold on blocks.

use crate::units::Tokens;

/// A running sequence's hold on its blocks. [Release](super::PrefixCache::release) it: a drop leaves them pinned.
#[derive(Debug)]
#[must_use = "a dropped lease leaves its blocks pinned"]
pub struct Lease {
    pub(super) held: Vec<u32>,
    pub(super) hits: usize,
    pub(super) hit_tokens: u64,
    pub(super) cut: bool,
    pub(super) epoch: u64,
    /// Number of releases before the lease was acquired.
    pub(super) releases: u64,
}

impl Lease {
    /// Returns the number of pieces held, a prefix of those requested.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the leading pieces that were resident when [`super::PrefixCache::acquire`] was called.
    pub fn hits(&self) -> usize {
        self.hits
    }

    /// Returns the tokens in [`Lease::hits`].
    pub fn hit_tokens(&self) -> Tokens {
        Tokens(self.hit_tokens)
    }

    /// Returns whether a piece found no room, after which [`super::PrefixCache::extend`] adds nothing.
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

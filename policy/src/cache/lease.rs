//! What a running sequence holds.

use crate::units::Tokens;

/// A running sequence's hold on its blocks. Give it back with [`super::PrefixCache::release`]: a lease that is merely dropped
/// leaves its blocks pinned.
#[derive(Debug)]
#[must_use = "a dropped lease leaves its blocks pinned"]
pub struct Lease {
    pub(super) held: Vec<u32>,
    pub(super) hits: usize,
    pub(super) hit_tokens: u64,
    pub(super) cut: bool,
    pub(super) epoch: u64,
}

impl Lease {
    /// Pieces held, a prefix of what was asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Leading pieces that were resident when [`super::PrefixCache::acquire`] was called.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.hits
    }

    /// Tokens in [`Lease::hits`].
    #[must_use]
    pub fn hit_tokens(&self) -> Tokens {
        Tokens(self.hit_tokens)
    }

    /// Some piece found no room, so the chain ends early for good: [`super::PrefixCache::extend`] adds nothing to it.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

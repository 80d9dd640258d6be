//! Least recently used: the conversation whose last turn is longest ago gives its last tokens first.
//!
//! Optimal for the mean when every conversation returns at the same rate and dies at the same rate (paper, §4: T-LRU
//! at ξ = 0), and blind to length: a turn that would miss its objective by seconds loses its cache like any other.
//!
//! Evicting from the end of the oldest conversation until the cache fits, rather than dropping it whole, is what block
//! caches do: one conversation at most is partly resident. Caching is optional or forced alike, since the youngest is
//! always the last to go.

use super::lengths::Lengths;
use super::{CacheConfig, CachePolicy, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// Least recently used.
#[derive(Clone, Debug)]
pub struct Lru {
    lengths: Lengths,
}

impl Lru {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig) -> Self {
        Self {
            lengths: Lengths::new(&config),
        }
    }
}

impl CachePolicy for Lru {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.lengths.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        self.lengths.touch(turn.conversation, turn.length);
        self.lengths.evict_oldest();
    }

    fn used(&self) -> Tokens {
        self.lengths.used()
    }

    fn dump(&self) -> Vec<(ConversationId, Tokens)> {
        self.lengths.dump()
    }

    fn check(&self) -> Result<(), String> {
        self.lengths.check()
    }
}

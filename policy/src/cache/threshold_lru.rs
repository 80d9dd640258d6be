//! LRU that does not keep short conversations: kept iff `L ≥ threshold` after the turn.
//!
//! The rule of a large provider's API (1,024 tokens), and the paper's second baseline. All or nothing: a conversation of
//! 1,023 tokens is recomputed whole, one of 1,024 is kept whole.
//!
//! The paper leaves open what becomes of a short conversation's older cache: there is none, since it was shorter then.
//! Under forced caching nothing may be refused, and this is LRU.

use super::lengths::Lengths;
use super::{CacheConfig, CachePolicy, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// LRU for conversations from a threshold on.
#[derive(Clone, Debug)]
pub struct ThresholdLru {
    lengths: Lengths,
    config: CacheConfig,
    threshold: Tokens,
}

impl ThresholdLru {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig, threshold: Tokens) -> Self {
        Self {
            lengths: Lengths::new(&config),
            config,
            threshold,
        }
    }
}

impl CachePolicy for ThresholdLru {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.lengths.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        let refused = !self.config.forced && turn.length < self.threshold;
        self.lengths.touch(
            turn.conversation,
            if refused { Tokens::ZERO } else { turn.length },
        );
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

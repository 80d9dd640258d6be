//! T-LRU that, once the cache overflows, trims every free token of every conversation.
//!
//! A possible reading of the paper's "evict for free" (its `foreach` has no exit). It throws away cache that had room:
//! kept for comparison.

use super::lengths::Lengths;
use super::{CacheConfig, CachePolicy, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// T-LRU that trims all free tokens on overflow.
#[derive(Clone, Debug)]
pub struct TLruTrimAll {
    lengths: Lengths,
    config: CacheConfig,
}

impl TLruTrimAll {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig) -> Self {
        Self {
            lengths: Lengths::new(&config),
            config,
        }
    }
}

impl CachePolicy for TLruTrimAll {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.lengths.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        if let Some(slot) = self.lengths.touch(turn.conversation, turn.length) {
            self.lengths
                .set_budget(slot, self.config.budget(turn.length, self.config.next_prompt));
            if !self.lengths.fits() {
                self.lengths.trim_all_free(self.config.forced.then_some(slot));
            }
        }
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

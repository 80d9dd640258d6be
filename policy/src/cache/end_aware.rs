//! End-Aware T-LRU: told whether a conversation continues, it drops the ended ones whole (paper, appendix G.1).
//!
//! The most valuable bit that a client can give: `ended`. Under forced caching an ended conversation stays whole for its
//! last turn, and goes with the next turn of another.

use super::lengths::Lengths;
use super::{CacheConfig, CachePolicy, Future, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// T-LRU that knows ends.
#[derive(Clone, Debug)]
pub struct EndAware {
    lengths: Lengths,
    config: CacheConfig,
    /// Ended, but forced to stay until somebody else is served.
    ended: Option<ConversationId>,
}

impl EndAware {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig) -> Self {
        Self {
            lengths: Lengths::new(&config),
            config,
            ended: None,
        }
    }
}

impl CachePolicy for EndAware {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.lengths.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        if let Some(ended) = self.ended.take() {
            self.lengths.touch(ended, Tokens::ZERO);
        }
        let last = turn.future == Future::Last;
        if last && !self.config.forced {
            self.lengths.touch(turn.conversation, Tokens::ZERO);
            return;
        }
        self.ended = last.then_some(turn.conversation);
        if let Some(slot) = self.lengths.touch(turn.conversation, turn.length) {
            self.lengths
                .set_budget(slot, self.config.budget(turn.length, self.config.next_prompt));
            self.lengths.trim_free(self.config.forced.then_some(slot));
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

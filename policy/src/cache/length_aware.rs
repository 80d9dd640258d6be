//! Length-Aware T-LRU: End-Aware, and told the next prompt's length, so that budgets are exact (paper, appendix G.1).
//!
//! Budgets with the true `Q` instead of `Q̂`; eviction beyond them stays LRU. The difference to [`super::end_aware`] is
//! what predicting lengths could gain: little. The difference to [`super::to_belady`] is what knowing the order could.

use super::lengths::Lengths;
use super::{CacheConfig, CachePolicy, Future, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// T-LRU that knows ends and next lengths.
#[derive(Clone, Debug)]
pub struct LengthAware {
    lengths: Lengths,
    config: CacheConfig,
    /// Ended, but forced to stay until somebody else is served.
    ended: Option<ConversationId>,
}

impl LengthAware {
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

impl CachePolicy for LengthAware {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.lengths.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        if let Some(ended) = self.ended.take() {
            self.lengths.touch(ended, Tokens::ZERO);
        }
        let next = match turn.future {
            Future::Last if !self.config.forced => {
                self.lengths.touch(turn.conversation, Tokens::ZERO);
                return;
            }
            Future::Last => {
                self.ended = Some(turn.conversation);
                self.config.next_prompt
            }
            Future::Unknown => self.config.next_prompt,
            Future::Next { prompt, .. } => prompt,
        };
        if let Some(slot) = self.lengths.touch(turn.conversation, turn.length) {
            self.lengths
                .set_budget(slot, self.config.budget(turn.length, next));
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

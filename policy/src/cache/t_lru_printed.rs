//! Algorithm 1 of the paper to the letter: one unit per conversation per overflow, and `≥`.
//!
//! ```text
//! if Σ X > C: foreach i: if X_i ≥ L_i + Q̂_i − ξ: X_i ← X_i − 1; if Σ X ≤ C: return
//! while Σ X > C: X_j ← X_j − 1 for j with the oldest last turn among X_j ≥ 1
//! ```
//! The order of `foreach` is left open; oldest first here. Kept for comparison only: see [`super::t_lru`] for why both
//! details are wrong. Its pass costs one step per token trimmed, not per conversation cut.

use super::lengths::Lengths;
use super::{CacheConfig, CachePolicy, Served};
use crate::ids::ConversationId;
use crate::units::Tokens;

/// Tail-Optimized LRU as printed.
#[derive(Clone, Debug)]
pub struct TLruPrinted {
    lengths: Lengths,
    config: CacheConfig,
}

impl TLruPrinted {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig) -> Self {
        Self {
            lengths: Lengths::new(&config),
            config,
        }
    }
}

impl CachePolicy for TLruPrinted {
    fn resident(&self, conversation: ConversationId) -> Tokens {
        self.lengths.resident(conversation)
    }

    fn served(&mut self, turn: &Served) {
        if let Some(slot) = self.lengths.touch(turn.conversation, turn.length) {
            // X ≥ b over whole tokens is X > b − 1.
            let budget = self.config.budget(turn.length, self.config.next_prompt);
            self.lengths.set_budget(
                slot,
                budget.saturating_sub(u64::from(self.config.block_tokens.max(1))),
            );
            self.lengths.shave_free(self.config.forced.then_some(slot));
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

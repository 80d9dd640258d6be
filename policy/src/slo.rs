//! The T-LRU rule: from the objective to the tokens that a worker may evict first.
//!
//! A turn must start within T. On worker w that leaves room for ξ_w uncached tokens, `ttft(ξ_w) = T − wait`. A
//! conversation's next prompt adds about Q̂ of them, so up to `ξ_w − Q̂` tokens of its history may be missing: its
//! *free tail*, which is evicted before anything else (T-LRU, "Tail-Optimized Caching for LLM Inference", Algorithm 1).
//! Hints follow [`crate::tail`], which generalises this rule; the ξ that a worker receives follows [`feedback`].

mod cause;
pub mod feedback;
pub mod overload;
#[cfg(test)]
mod tests;

pub use cause::{Cause, EngineTimes, FirstToken, Parts};

use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

/// Returns ξ_w: the uncached tokens with which a turn still starts within the objective on this worker.
pub fn xi_tokens(cost: &PrefillCost, objective: Millis, wait: Millis, cached: Tokens) -> f64 {
    cost.tokens_within(objective.saturating_sub(wait), cached)
}

/// Returns the free tail of T-LRU: `max(0, ξ_w − Q̂)` tokens from the end of the conversation.
pub fn evict_first_tail(xi_tokens: f64, next_prompt: Tokens) -> Tokens {
    // The bound exceeds any context, and avoids overflow.
    Tokens((xi_tokens - next_prompt.as_f64()).clamp(0.0, 1e9) as u64)
}

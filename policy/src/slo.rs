//! From the objective to what a worker may drop first.
//!
//! A turn must start within T. On worker w that leaves room for ξ_w uncached tokens, `ttft(ξ_w) = T − wait`. A
//! conversation's next prompt adds about Q̂ tokens that are uncached in any case, so up to `ξ_w − Q̂` tokens of its
//! history may be missing from the cache without the next turn being late: the last tokens of it are *free*, and are
//! dropped before anything else (T-LRU, "Tail-Optimized Caching for LLM Inference", Algorithm 1, in tokens from the end:
//! exact whatever length the response turns out to have).
//
//! What hints go by is [`crate::tail`], of which this is the case of an idle worker and an equal return of all.

mod cause;
#[cfg(test)]
mod tests;

pub use cause::{Cause, EngineTimes, FirstToken, Parts};

use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

/// ξ_w: uncached tokens that a turn may have on this worker and still start within the objective.
#[must_use]
pub fn xi_tokens(cost: &PrefillCost, objective: Millis, wait: Millis, cached: Tokens) -> f64 {
    cost.tokens_within(objective.saturating_sub(wait), cached)
}

/// The free tail of T-LRU: `max(0, ξ_w − Q̂)` tokens from the end of the conversation.
#[must_use]
pub fn evict_first_tail(xi_tokens: f64, next_prompt: Tokens) -> Tokens {
    // Longer than any context means all of it.
    Tokens((xi_tokens - next_prompt.as_f64()).clamp(0.0, 1e9) as u64)
}

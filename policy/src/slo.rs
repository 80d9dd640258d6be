//! From the objective to what a worker may drop first.
//!
//! A turn must start within T. On worker w that leaves room for ξ_w uncached tokens, `ttft(ξ_w) = T − wait`. A
//! conversation's next prompt adds about Q̂ tokens that are uncached in any case, so up to `ξ_w − Q̂` tokens of its
//! history may be missing from the cache without the next turn being late: the last tokens of it are *free*, and are
//! dropped before anything else (T-LRU, "Tail-Optimized Caching for LLM Inference", Algorithm 1, in tokens from the end:
//! exact whatever length the response turns out to have).
//!
//! How much of that tail is really given away is learned: see [`Controller`].
//!
//! **Load gate.** Dropping free tokens makes the worker compute them again. On one FIFO server that lowered p95 by 22 %
//! at low utilisation and raised it by 54 % at 0.8. So the free tail shrinks with utilisation: whole up to
//! [`GATE_OPENS_AT`], nothing from [`GATE_CLOSES_AT`].

mod cause;
mod controller;
mod ghost;
#[cfg(test)]
mod tests;

pub use cause::{Cause, EngineTimes, FirstToken, Parts};
pub use controller::{ArmState, Controller, ControllerState, ServedTurn};
pub use ghost::Ghosts;

use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

/// Utilisation up to which the whole free tail is given away.
pub const GATE_OPENS_AT: f64 = 0.4;
/// Utilisation from which nothing is.
pub const GATE_CLOSES_AT: f64 = 0.6;

/// Share of the free tail that is given away at this utilisation, in [0, 1].
#[must_use]
pub fn load_gate(utilisation: f64) -> f64 {
    ((GATE_CLOSES_AT - utilisation) / (GATE_CLOSES_AT - GATE_OPENS_AT)).clamp(0.0, 1.0)
}

/// Whether a worker is told that a conversation has moved away from it. As with the tail, what it drops too early is computed
/// again: a busy fleet sends conversations to and fro, and the old copy is what one comes back to.
#[must_use]
pub fn tells_of_moves(utilisation: f64) -> bool {
    load_gate(utilisation) > 0.0
}

/// How much of the free tail is given away, as one value that is published whole.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct TailRule {
    /// Multiplies the free tail.
    pub scale: f64,
    /// Whether the load gate stands before it: open where giving it away was measured to save work.
    pub gated: bool,
}

impl TailRule {
    /// Before anything was measured: the whole free tail, through the gate.
    pub const START: Self = Self {
        scale: 1.0,
        gated: true,
    };

    /// Tokens at the end of a conversation that a worker may drop first.
    #[must_use]
    pub fn tail(self, xi_tokens: f64, next_prompt: Tokens, utilisation: f64) -> Tokens {
        let whole = evict_first_tail(xi_tokens, next_prompt, 0.0).as_f64();
        Tokens((whole * self.scale * self.gate(utilisation)).min(1e9) as u64)
    }

    /// Share of the tail that passes at this utilisation.
    #[must_use]
    pub fn gate(self, utilisation: f64) -> f64 {
        if self.gated { load_gate(utilisation) } else { 1.0 }
    }
}

/// ξ_w: uncached tokens that a turn may have on this worker and still start within the objective.
#[must_use]
pub fn xi_tokens(cost: &PrefillCost, objective: Millis, wait: Millis, cached: Tokens) -> f64 {
    cost.tokens_within(objective.saturating_sub(wait), cached)
}

/// The evict-first tail: `max(0, ξ_w − Q̂)` tokens from the end of the conversation, through the load gate.
#[must_use]
pub fn evict_first_tail(xi_tokens: f64, next_prompt: Tokens, utilisation: f64) -> Tokens {
    // A tail longer than any context means "all of it"; infinity times a closed gate must not become a number.
    let free = (xi_tokens - next_prompt.as_f64()).clamp(0.0, 1e9) * load_gate(utilisation);
    Tokens(free.floor() as u64)
}

//! From the objective to what a worker may drop first.
//!
//! A turn must start within T. On worker w that leaves room for ξ_w uncached tokens, `ttft(ξ_w) = T − wait`. A
//! conversation's next prompt adds about Q̂ tokens that are uncached in any case, so up to `ξ_w − Q̂` tokens of its
//! history may be missing from the cache without the next turn being late: the last tokens of it are *free*, and are
//! dropped before anything else (T-LRU, "Tail-Optimized Caching for LLM Inference", Algorithm 1, in tokens from the end:
//! exact whatever length the response turns out to have).
//!
//! **Load gate.** Dropping free tokens makes the worker compute them again. On one FIFO server that lowered p95 by 22 %
//! at low utilisation and raised it by 54 % at 0.8. So the free tail shrinks with utilisation: whole up to
//! [`GATE_OPENS_AT`], nothing from [`GATE_CLOSES_AT`].

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

/// ξ_w: uncached tokens that a turn may have on this worker and still start within the objective.
#[must_use]
pub fn xi_tokens(cost: &PrefillCost, objective: Millis, wait: Millis, cached: Tokens) -> f64 {
    cost.tokens_within(objective.saturating_sub(wait), cached)
}

/// The evict-first tail: `max(0, ξ_w − Q̂)` tokens from the end of the conversation, through the load gate.
#[must_use]
pub fn evict_first_tail(xi_tokens: f64, next_prompt: Tokens, utilisation: f64) -> Tokens {
    // Bounded before the gate: a worker that costs nothing has no bound of its own, and a tail longer than any context
    // means "all of it".
    let free = (xi_tokens - next_prompt.as_f64()).clamp(0.0, 1e9) * load_gate(utilisation);
    Tokens(free.floor() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: PrefillCost = PrefillCost::linear(0.1, 20.0);

    #[test]
    fn the_tail_is_what_may_be_missing_without_being_late() {
        let xi = xi_tokens(&COST, Millis(120.0), Millis::ZERO, Tokens::ZERO);
        assert!((xi - 1000.0).abs() < 1e-9);
        assert_eq!(evict_first_tail(xi, Tokens(200), 0.0), Tokens(800));
        assert_eq!(evict_first_tail(xi, Tokens(2000), 0.0), Tokens::ZERO);
    }

    #[test]
    fn a_queue_leaves_less_room() {
        let idle = xi_tokens(&COST, Millis(120.0), Millis::ZERO, Tokens::ZERO);
        let busy = xi_tokens(&COST, Millis(120.0), Millis(50.0), Tokens::ZERO);
        assert!((idle - busy - 500.0).abs() < 1e-9);
        assert_eq!(xi_tokens(&COST, Millis(120.0), Millis(500.0), Tokens::ZERO), 0.0);
    }

    #[test]
    fn the_gate_closes_between_two_utilisations() {
        assert_eq!(load_gate(0.0), 1.0);
        assert!((load_gate(0.4) - 1.0).abs() < 1e-9);
        assert!((load_gate(0.5) - 0.5).abs() < 1e-9);
        assert!(load_gate(0.6) < 1e-9);
        assert_eq!(load_gate(3.0), 0.0);
        assert_eq!(evict_first_tail(f64::INFINITY, Tokens(1), 0.7), Tokens::ZERO);
    }

    #[test]
    fn a_worker_that_costs_nothing_may_drop_everything() {
        let xi = xi_tokens(
            &PrefillCost::linear(0.0, 0.0),
            Millis(1.0),
            Millis::ZERO,
            Tokens::ZERO,
        );
        assert_eq!(evict_first_tail(xi, Tokens(200), 0.0), Tokens(1_000_000_000));
    }
}

//! The prefill cost of `u` uncached and `h` cached tokens: `ttft = wait + max(floor, β + α·u + γ·u·(h + u/2))`.
//!
//! The cross term is attention over the history: on a small model, a straight line explained 65 % of the variance, this
//! form 99 %. The floor is the time to read the weights: 18 to 20 ms up to some 600 tokens of a 7B model on an H100.

use serde::{Deserialize, Serialize};

use crate::units::{Millis, Tokens};

/// The prefill coefficients of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillCost {
    /// α: milliseconds per uncached token.
    pub alpha_ms_per_token: f64,
    /// β: fixed milliseconds per request.
    pub beta_ms: f64,
    /// γ: milliseconds per (uncached token × context token).
    pub gamma_ms_per_token2: f64,
    /// Least time of a prompt in milliseconds; 0 without a floor.
    #[serde(default, skip_serializing_if = "is_none")]
    pub floor_ms: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_none(floor_ms: &f64) -> bool {
    *floor_ms == 0.0
}

impl PrefillCost {
    /// Creates a cost without attention term or floor: the paper's straight line.
    #[must_use]
    pub const fn linear(alpha_ms_per_token: f64, beta_ms: f64) -> Self {
        Self {
            alpha_ms_per_token,
            beta_ms,
            gamma_ms_per_token2: 0.0,
            floor_ms: 0.0,
        }
    }

    /// Returns the cost beyond β: `α·u + γ·u·(h + u/2)`, or the rest up to the floor.
    #[must_use]
    pub fn marginal(&self, uncached: Tokens, cached: Tokens) -> Millis {
        let u = uncached.as_f64();
        let line = self.alpha_ms_per_token * u + self.gamma_ms_per_token2 * u * (cached.as_f64() + u / 2.0);
        Millis(line.max(self.floor_ms - self.beta_ms))
    }

    /// Returns the time to first token on an idle worker: `max(floor, β + α·u + γ·u·(h + u/2))`.
    #[must_use]
    pub fn prefill(&self, uncached: Tokens, cached: Tokens) -> Millis {
        Millis(self.beta_ms) + self.marginal(uncached, cached)
    }

    /// Returns the cost of a worker that takes `factor` times as long for every prompt.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self {
            alpha_ms_per_token: self.alpha_ms_per_token * factor,
            beta_ms: self.beta_ms * factor,
            gamma_ms_per_token2: self.gamma_ms_per_token2 * factor,
            floor_ms: self.floor_ms * factor,
        }
    }

    /// Returns the cost that lies this share of the way to another.
    #[must_use]
    pub fn towards(&self, other: &Self, share: f64) -> Self {
        let between = |own: f64, other: f64| own + share * (other - own);
        Self {
            alpha_ms_per_token: between(self.alpha_ms_per_token, other.alpha_ms_per_token),
            beta_ms: between(self.beta_ms, other.beta_ms),
            gamma_ms_per_token2: between(self.gamma_ms_per_token2, other.gamma_ms_per_token2),
            floor_ms: between(self.floor_ms, other.floor_ms),
        }
    }

    /// Returns how many times as long a prefill takes as under `before`, where it took `typical`; 1 if undefined.
    #[must_use]
    pub fn times_as_long_as(&self, before: &Self, typical: Millis) -> f64 {
        let tokens = Tokens(before.tokens_within(typical, Tokens::ZERO).min(1e9) as u64);
        let factor = self.prefill(tokens, Tokens::ZERO).0 / before.prefill(tokens, Tokens::ZERO).0;
        if factor.is_finite() && factor > 0.0 {
            factor
        } else {
            1.0
        }
    }

    /// Returns ξ_w: the largest number of uncached tokens, after `cached` tokens of history, whose prefill stays within
    /// `threshold`. The positive root of `γ/2·u² + (α + γ·h)·u = threshold − β`; zero below the floor.
    #[must_use]
    pub fn tokens_within(&self, threshold: Millis, cached: Tokens) -> f64 {
        let room = threshold.0 - self.beta_ms;
        if room <= 0.0 || threshold.0 < self.floor_ms {
            return 0.0;
        }
        let slope = self.alpha_ms_per_token + self.gamma_ms_per_token2 * cached.as_f64();
        if self.gamma_ms_per_token2 <= 0.0 {
            return if slope > 0.0 { room / slope } else { f64::INFINITY };
        }
        // With the root in the denominator there is no cancellation when γ is small.
        2.0 * room / (slope + (slope * slope + 2.0 * self.gamma_ms_per_token2 * room).sqrt())
    }
}

/// Returns the TEL-safe budget: tokens of a conversation worth keeping, `max(0, L + Q̂ − ξ)`.
#[must_use]
pub fn tel_safe_budget(history: Tokens, next_prompt: Tokens, xi_tokens: f64) -> f64 {
    (history.as_f64() + next_prompt.as_f64() - xi_tokens).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_within_inverts_prefill() {
        for gamma in [0.0, 1e-9, 2.5e-6] {
            let cost = PrefillCost {
                alpha_ms_per_token: 0.05,
                beta_ms: 20.0,
                gamma_ms_per_token2: gamma,
                floor_ms: 50.0,
            };
            let u = cost.tokens_within(Millis(400.0), Tokens(3000));
            let whole = Tokens(u.floor() as u64);
            assert!(cost.prefill(whole, Tokens(3000)) <= Millis(400.0 + 1e-6));
            assert!(cost.prefill(Tokens(whole.0 + 1), Tokens(3000)).0 > 400.0);
        }
    }

    #[test]
    fn a_threshold_below_the_fixed_cost_leaves_no_tokens() {
        assert_eq!(
            PrefillCost::linear(0.1, 50.0).tokens_within(Millis(50.0), Tokens::ZERO),
            0.0
        );
    }

    #[test]
    fn a_short_prompt_takes_as_long_as_the_floor() {
        let cost = PrefillCost {
            floor_ms: 20.0,
            ..PrefillCost::linear(0.02, 6.0)
        };
        let prefill = |uncached| cost.prefill(Tokens(uncached), Tokens(5000)).0;
        assert_eq!([prefill(1), prefill(700), prefill(1000)], [20.0, 20.0, 26.0]);
        assert_eq!(cost.tokens_within(Millis(19.9), Tokens::ZERO), 0.0);
        assert!((cost.tokens_within(Millis(20.0), Tokens::ZERO) - 700.0).abs() < 1e-9);
    }

    #[test]
    fn a_worker_that_became_slower_takes_so_many_times_as_long() {
        let times = |now: PrefillCost, typical| {
            now.times_as_long_as(&PrefillCost::linear(0.1, 20.0), Millis(typical))
        };
        assert!((times(PrefillCost::linear(0.8, 160.0), 500.0) - 8.0).abs() < 1e-12);
        // β, half of a prefill of 40 ms, did not change.
        assert!((times(PrefillCost::linear(0.2, 20.0), 40.0) - 1.5).abs() < 1e-12);
        for cost in [PrefillCost::linear(0.0, 0.0), PrefillCost::linear(f64::NAN, 1.0)] {
            assert_eq!(times(cost, 40.0), 1.0);
        }
        let free = PrefillCost::linear(0.0, 0.0);
        assert_eq!(free.times_as_long_as(&free, Millis::ZERO), 1.0);
    }

    #[test]
    fn the_budget_is_never_negative() {
        assert_eq!(tel_safe_budget(Tokens(100), Tokens(50), 1000.0), 0.0);
        assert_eq!(tel_safe_budget(Tokens(1000), Tokens(50), 100.0), 950.0);
    }
}

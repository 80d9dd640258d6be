//! Checks of an estimator that an earlier process has written.

use super::{LearnedCost, MEASURED, PAIRS, TOKENS, diagonal};
use crate::cost::PrefillCost;

/// Largest entry of a covariance.
const MOST: f64 = 1e12;
/// Rounding that a covariance may have lost, relative to its entries.
const ROUNDING: f64 = 1e-6;

impl LearnedCost {
    /// Returns the estimator if observations can have led to its numbers. An invalid covariance is replaced by that of
    /// a measured prior, so that the next responses count for more.
    #[must_use]
    pub fn checked(mut self) -> Option<Self> {
        let spread = (0.0..=1e9).contains(&self.spread);
        let floor = (0.0..=1e9).contains(&self.floor);
        let bounds = [1e9, 1e6 * TOKENS, 1e6 * PAIRS];
        let theta = self.theta.iter().zip(bounds);
        if !(spread
            && floor
            && self.prior.is_sound()
            && theta.clone().all(|(value, most)| value.abs() <= most))
        {
            return None;
        }
        self.one_sided = self.one_sided.clamp(-super::CHANGE, super::CHANGE);
        self.since = self.since.min(self.seen);
        if !is_covariance(&self.covariance) {
            self.covariance = diagonal(MEASURED);
        }
        self.cost().is_sound().then_some(self)
    }
}

/// Returns whether a matrix is symmetric, positive semidefinite and bounded, up to rounding.
fn is_covariance(matrix: &[[f64; 3]; 3]) -> bool {
    let [[a, b, c], [d, e, f], [g, h, i]] = *matrix;
    let diagonal = [a, e, i];
    if !matrix.iter().flatten().all(|entry| entry.abs() <= MOST) || diagonal.iter().any(|entry| *entry < 0.0)
    {
        return false;
    }
    let near = |one: f64, other: f64, scale: f64| (one - other).abs() <= ROUNDING * scale;
    let root = |one: f64, other: f64| (one * other).sqrt() + f64::MIN_POSITIVE;
    let is_symmetric = near(b, d, root(a, e)) && near(c, g, root(a, i)) && near(f, h, root(e, i));
    let minors = [
        (a * e - b * d, a * e),
        (a * i - c * g, a * i),
        (e * i - f * h, e * i),
    ];
    let determinant = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g);
    let is_positive = |(minor, scale): &(f64, f64)| *minor >= -ROUNDING * scale;
    is_symmetric && minors.iter().all(is_positive) && is_positive(&(determinant, a * e * i))
}

impl PrefillCost {
    /// Returns whether a cost is one that the admin API accepts.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.alpha_ms_per_token > 0.0
            && self.alpha_ms_per_token <= 1e6
            && (0.0..=1e9).contains(&self.beta_ms)
            && (0.0..=1e6).contains(&self.gamma_ms_per_token2)
            && (0.0..=1e9).contains(&self.floor_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::{Millis, Tokens};

    fn after(responses: u64) -> LearnedCost {
        let mut learned = LearnedCost::guess(PrefillCost::linear(0.1, 20.0));
        for at in 0..responses {
            let uncached = 100 + at * 37 % 4_000;
            let took = 5.0 + 0.276 * uncached as f64;
            learned.observe(Tokens(uncached), Tokens(at * 91 % 9_000), Millis(took));
        }
        learned
    }

    #[test]
    fn an_estimator_is_the_same_after_it_was_written_and_read() {
        for responses in [0, 1, 20, 150, 5_000] {
            let learned = after(responses);
            let written = serde_json::to_string(&learned).unwrap();
            let read: LearnedCost = serde_json::from_str(&written).unwrap();
            let read = read.checked().unwrap();
            assert_eq!(read.seen(), learned.seen());
            let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * one.abs().max(1e-9);
            assert!(near(
                read.cost().alpha_ms_per_token,
                learned.cost().alpha_ms_per_token
            ));
            for (uncached, cached) in [(10, 0), (1_000, 0), (2_000, 30_000)] {
                let predict = |learned: &LearnedCost| learned.predict(Tokens(uncached), Tokens(cached));
                let (one, other) = (predict(&read), predict(&learned));
                assert!(near(one.0.0, other.0.0) && near(one.1.0, other.1.0));
            }
            // The covariance is kept, not opened.
            assert_eq!(
                read.covariance == diagonal(MEASURED),
                learned.covariance == diagonal(MEASURED)
            );
        }
    }

    #[test]
    fn a_covariance_that_is_none_is_opened_and_senseless_numbers_are_refused() {
        let mut learned = after(150);
        learned.covariance[0][1] = 1e6;
        assert_eq!(learned.checked().unwrap().covariance, diagonal(MEASURED));
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let mut learned = after(150);
            learned.spread = wrong;
            assert!(learned.checked().is_none(), "{wrong}");
            let mut learned = after(150);
            learned.prior.alpha_ms_per_token = wrong;
            assert!(learned.checked().is_none(), "{wrong}");
        }
        let mut learned = after(150);
        learned.theta[1] = f64::NAN;
        assert!(learned.checked().is_none());
    }

    proptest! {
        #[test]
        fn a_checked_estimator_predicts_finite_times_after_any_responses(
            numbers in prop::collection::vec(-1e9..1e9f64, 12),
            responses in prop::collection::vec((0..100_000u64, 0..100_000u64, 0.0..1e6f64), 0..50),
        ) {
            let mut learned = after(30);
            learned.theta = [numbers[0], numbers[1], numbers[2]];
            learned.covariance = std::array::from_fn(|i| std::array::from_fn(|j| numbers[3 + 3 * i + j]));
            if let Some(mut learned) = learned.checked() {
                for (uncached, cached, took) in responses {
                    learned.observe(Tokens(uncached), Tokens(cached), Millis(took));
                    let (time, error) = learned.predict(Tokens(1_000), Tokens(1_000));
                    prop_assert!(time.0.is_finite() && error.0.is_finite());
                }
            }
        }
    }
}

//! The widening of an estimate over time without a response. The estimate itself does not move.
//!
//! A worker believed to be slow is sent no requests, so no response shows that it has recovered. A default is no
//! evidence, so the estimate stays and only its error grows. After `t` without a response the truth is assumed to lie
//! within `estimate · (1 ± doubt)`, which is two standard errors either way, with
//!
//! ```text
//! doubt = 1 − 2^−(t/T)²
//! ```
//!
//! Within `T` a worker may have become twice as fast. Between responses a tenth of `T` apart the doubt is 0.7 %.

use crate::units::Millis;

/// Share of an estimate by which it may be off for lack of responses, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Doubt(f64);

impl Doubt {
    /// No doubt: an estimate as good as its evidence.
    pub const NONE: Self = Self(0.0);

    /// Returns the doubt after `idle` without a response, where it is a half after `half`.
    pub fn after(idle: Millis, half: Millis) -> Self {
        let passed = idle.0.max(0.0) / half.0.max(1.0);
        Self(1.0 - (-passed * passed).exp2())
    }

    /// Returns the share.
    pub fn share(self) -> f64 {
        self.0
    }

    /// Returns whether the estimate may be off by less than a half.
    pub fn is_small(self) -> bool {
        self.0 < 0.5
    }

    /// Returns the standard error of an estimate whose evidence alone has `error`.
    pub fn widens(self, estimate: f64, error: f64) -> f64 {
        error.hypot(estimate * self.0 / 2.0)
    }

    /// Returns the value nearest to `target` that the doubt allows.
    pub fn nearest(self, estimate: f64, target: f64) -> f64 {
        let reach = estimate.abs() * self.0;
        target.max(estimate - reach).min(estimate + reach)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HALF: Millis = Millis(60_000.0);

    #[test]
    fn a_fresh_estimate_has_none_and_one_that_is_as_old_as_the_half_time_a_half() {
        assert_eq!(Doubt::after(Millis::ZERO, HALF), Doubt::NONE);
        assert!((Doubt::after(HALF, HALF).share() - 0.5).abs() < 1e-12);
        assert!(Doubt::after(Millis(6_000.0), HALF).share() < 0.007);
    }

    proptest! {
        #[test]
        fn an_estimate_widens_with_any_time_that_passes(
            estimate in 0.0..1e9,
            error in 0.0..1e6,
            idle in 0.0..1e12f64,
            more in 0.0..1e12f64,
        ) {
            let (now, later) = (Doubt::after(Millis(idle), HALF), Doubt::after(Millis(idle + more), HALF));
            prop_assert!(now <= later && (0.0..=1.0).contains(&later.share()));
            prop_assert!(error <= now.widens(estimate, error));
            prop_assert!(now.widens(estimate, error) <= later.widens(estimate, error));
        }

        #[test]
        fn what_is_nearest_lies_between_the_estimate_and_the_target(
            estimate in 0.0..1e9,
            target in 0.0..1e9,
            idle in 0.0..1e12f64,
        ) {
            let doubt = Doubt::after(Millis(idle), HALF);
            let nearest = doubt.nearest(estimate, target);
            let (low, high) = (f64::min(estimate, target), f64::max(estimate, target));
            prop_assert!((low..=high).contains(&nearest), "{} {}", nearest, doubt.share());
            prop_assert_eq!(Doubt::NONE.nearest(estimate, target), estimate);
        }
    }
}

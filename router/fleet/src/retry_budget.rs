//! Retry budget: a share of recent traffic, and a constant rate besides.
//!
//! Retries add load just when capacity is short. With `R` requests and `T` retries, both decayed over seconds, one more
//! is allowed while `T + 1 ≤ share · R + floor · memory`, as in the retry budgets of Finagle and Linkerd. The floor
//! lets a router with little traffic retry at all. Hedges draw on the same budget.

use policy::units::Millis;

/// Time constant of the counts' decay, to 1/e.
const MEMORY_MS: f64 = 10_000.0;

/// A retry budget. It has no clock: `now` must not go backwards.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    share: f64,
    floor: f64,
    requests: f64,
    retries: f64,
    at: Millis,
}

impl RetryBudget {
    /// Creates a budget of a `share` of requests plus `floor_per_s` retries per second.
    pub fn new(share: f64, floor_per_s: f64) -> Self {
        Self {
            share,
            floor: floor_per_s * MEMORY_MS / 1e3,
            requests: 0.0,
            retries: 0.0,
            at: Millis::ZERO,
        }
    }

    pub fn request(&mut self, now: Millis) {
        self.fade(now);
        self.requests += 1.0;
    }

    /// Takes a retry out of the budget. Returns whether one was available.
    pub fn take(&mut self, now: Millis) -> bool {
        self.fade(now);
        let left = self.left();
        if left < 1.0 {
            return false;
        }
        self.retries += 1.0;
        true
    }

    /// Returns the number of retries available as of the last recorded time.
    pub fn left(&self) -> f64 {
        self.share * self.requests + self.floor - self.retries
    }

    fn fade(&mut self, now: Millis) {
        let fade = (-(now - self.at).0.max(0.0) / MEMORY_MS).exp();
        self.requests *= fade;
        self.retries *= fade;
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_traffic_the_floor_is_what_may_be_tried_again() {
        let mut budget = RetryBudget::new(0.2, 1.0);
        let taken = (0..100).filter(|_| budget.take(Millis::ZERO)).count();
        assert_eq!(taken, 10);
    }

    #[test]
    fn a_share_of_the_traffic_comes_on_top() {
        let mut budget = RetryBudget::new(0.2, 0.0);
        for _ in 0..100 {
            budget.request(Millis::ZERO);
        }
        let taken = (0..100).filter(|_| budget.take(Millis::ZERO)).count();
        assert_eq!(taken, 20);
    }

    #[test]
    fn what_was_used_up_comes_back_with_time() {
        let mut budget = RetryBudget::new(0.0, 1.0);
        while budget.take(Millis::ZERO) {}
        assert!(!budget.take(Millis(500.0)));
        assert!(budget.take(Millis(3_000.0)));
    }

    #[test]
    fn nothing_at_all_can_be_asked_for() {
        let mut budget = RetryBudget::new(0.0, 0.0);
        budget.request(Millis::ZERO);
        assert!(!budget.take(Millis::ZERO));
    }

    proptest! {
        /// Compared with a plain list of times: under steady traffic the share is never exceeded by more than the floor
        /// and one.
        #[test]
        fn retries_stay_within_the_share(share in 0.0_f64..1.0, gaps in prop::collection::vec(0.0_f64..200.0, 1..400)) {
            let mut budget = RetryBudget::new(share, 0.0);
            let mut now = Millis::ZERO;
            let (mut requests, mut taken): (Vec<f64>, Vec<f64>) = Default::default();
            let weigh = |times: &[f64], now: f64| -> f64 {
                times.iter().map(|at| (-(now - at) / MEMORY_MS).exp()).sum()
            };
            for gap in gaps {
                now += Millis(gap);
                budget.request(now);
                requests.push(now.0);
                while budget.take(now) {
                    taken.push(now.0);
                }
                let (asked, again) = (weigh(&requests, now.0), weigh(&taken, now.0));
                prop_assert!(again <= share * asked + 1e-6);
                prop_assert!(again + 1.0 > share * asked - 1e-6, "none is held back");
            }
        }
    }
}

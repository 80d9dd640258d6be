//! α, β, γ of a worker, learned from what its answers took.
//!
//! Recursive least squares with exponential forgetting (Ljung and Söderström, *Theory and Practice of Recursive
//! Identification*, 1983) on `ttft − wait = β + α·u + γ·u·(h + u/2)`. Features are scaled to the order of one, as
//! the raw ones span ten decades and the covariance would not survive it.
//!
//! - *Outliers*: a first token late for reasons that no prompt explains (a pause, a preemption, a client's network) must
//!   not bend the line. A residual beyond four times the running mean absolute residual is clipped to that, which is
//!   Huber's estimator; and where eight in a row lie on one side the worker has changed, so the covariance is opened
//!   again and they are believed.
//! - *Forgetting*: λ = 0.995, a memory of 200 answers. Forgetting winds the covariance up where inputs do not vary, so
//!   its trace is bounded.
//! - *Physics*: α, β and γ are not negative. A coefficient that comes out so is reported as zero; where α is not
//!   positive yet the prior's is used.
//!
//! A worker that was never benched begins with its pool's median: [`pooled`].

use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

/// λ: weight of the past, per answer.
const FORGETTING: f64 = 0.995;
/// Residuals beyond this many mean absolute residuals are clipped.
const CLIP: f64 = 4.0;
/// Clipped residuals of one sign in a row that mean a change, not an outlier.
const CHANGE: i32 = 8;
/// Bound of each of the covariance's diagonal entries, relative to the prior's.
const OPEN: f64 = 1.0;
/// Scales: thousand tokens, and ten million token pairs.
const TOKENS: f64 = 1e3;
const PAIRS: f64 = 1e7;

/// The estimator of one worker.
#[derive(Clone, Debug)]
pub struct LearnedCost {
    /// β, α per thousand tokens, γ per ten million pairs.
    theta: [f64; 3],
    covariance: [[f64; 3]; 3],
    prior: [f64; 3],
    spread: f64,
    one_sided: i32,
    seen: u64,
}

impl LearnedCost {
    /// Begins with what a bench, a configuration or [`pooled`] says.
    #[must_use]
    pub fn new(prior: PrefillCost) -> Self {
        let theta = [
            prior.beta_ms,
            prior.alpha_ms_per_token * TOKENS,
            prior.gamma_ms_per_token2 * PAIRS,
        ];
        Self {
            theta,
            covariance: open(),
            prior: theta,
            spread: 0.0,
            one_sided: 0,
            seen: 0,
        }
    }

    /// An answer: after `wait` in the queue its first token took `prefill` more. Nonsense is ignored.
    pub fn observe(&mut self, uncached: Tokens, cached: Tokens, prefill: Millis) {
        if !(prefill.0.is_finite() && prefill.0 >= 0.0) {
            return;
        }
        let u = uncached.as_f64();
        let x = [1.0, u / TOKENS, u * (cached.as_f64() + u / 2.0) / PAIRS];
        let predicted: f64 = (0..3).map(|i| self.theta[i] * x[i]).sum();
        let residual = self.clip(prefill.0 - predicted);
        let px: [f64; 3] = std::array::from_fn(|i| (0..3).map(|j| self.covariance[i][j] * x[j]).sum());
        let gain = FORGETTING + (0..3).map(|i| x[i] * px[i]).sum::<f64>();
        for (theta, step) in self.theta.iter_mut().zip(px) {
            *theta += step / gain * residual;
        }
        let mut wound = 1.0f64;
        for (i, row) in self.covariance.iter_mut().enumerate() {
            for (entry, other) in row.iter_mut().zip(px) {
                *entry = (*entry - px[i] * other / gain) / FORGETTING;
            }
            wound = wound.max(row[i] / OPEN);
        }
        for row in &mut self.covariance {
            row.iter_mut().for_each(|entry| *entry /= wound);
        }
        self.seen += 1;
    }

    /// Clips an outlier; believes a run of them.
    fn clip(&mut self, residual: f64) -> f64 {
        let bound = CLIP * self.spread;
        let outlier = self.seen > 16 && residual.abs() > bound;
        if !outlier {
            self.spread += (residual.abs() - self.spread) / (self.seen + 1).min(100) as f64;
            self.one_sided = 0;
            return residual;
        }
        let side = if residual > 0.0 { 1 } else { -1 };
        let same = self.one_sided * side > 0;
        self.one_sided = if same { self.one_sided + side } else { side };
        if self.one_sided.abs() >= CHANGE {
            self.one_sided = 0;
            self.covariance = open();
            self.spread = residual.abs();
            return residual;
        }
        bound * f64::from(side)
    }

    /// The cost as learned so far.
    #[must_use]
    pub fn cost(&self) -> PrefillCost {
        let alpha = if self.theta[1] > 0.0 {
            self.theta[1]
        } else {
            self.prior[1]
        };
        PrefillCost {
            beta_ms: self.theta[0].max(0.0),
            alpha_ms_per_token: alpha / TOKENS,
            gamma_ms_per_token2: self.theta[2].max(0.0) / PAIRS,
        }
    }

    /// Mean absolute residual: what a prediction is off by.
    #[must_use]
    pub fn error(&self) -> Millis {
        Millis(self.spread)
    }

    /// Answers learned from.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

fn open() -> [[f64; 3]; 3] {
    std::array::from_fn(|i| std::array::from_fn(|j| if i == j { OPEN } else { 0.0 }))
}

/// What a worker of a pool begins with: the median of each coefficient over the others. `None` for an empty pool.
#[must_use]
pub fn pooled(pool: &[PrefillCost]) -> Option<PrefillCost> {
    let median = |of: fn(&PrefillCost) -> f64| {
        let mut values: Vec<f64> = pool.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    Some(PrefillCost {
        alpha_ms_per_token: median(|cost| cost.alpha_ms_per_token)?,
        beta_ms: median(|cost| cost.beta_ms)?,
        gamma_ms_per_token2: median(|cost| cost.gamma_ms_per_token2)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: PrefillCost = PrefillCost {
        alpha_ms_per_token: 0.08,
        beta_ms: 25.0,
        gamma_ms_per_token2: 2e-6,
    };

    /// The `i`-th answer: sizes that vary, noise of ±2 ms, every 20th ten times too late if `outliers`.
    fn feed(learned: &mut LearnedCost, cost: PrefillCost, from: u64, count: u64, outliers: bool) {
        for i in from..from + count {
            let (u, h) = (Tokens(i * 7919 % 6000 + 10), Tokens(i * 104_729 % 20_000));
            let noise = (i * 31 % 41) as f64 / 10.0 - 2.0;
            let factor = if outliers && i % 20 == 19 { 10.0 } else { 1.0 };
            learned.observe(u, h, Millis((cost.prefill(u, h).0 + noise) * factor));
        }
    }

    fn off(learned: &LearnedCost, cost: PrefillCost) -> f64 {
        let (u, h) = (Tokens(3000), Tokens(8000));
        (learned.cost().prefill(u, h).0 / cost.prefill(u, h).0 - 1.0).abs()
    }

    #[test]
    fn it_learns_the_cost_from_a_wrong_prior() {
        let mut learned = LearnedCost::new(PrefillCost::linear(0.02, 0.0));
        feed(&mut learned, TRUE, 0, 400, false);
        assert!(off(&learned, TRUE) < 0.02, "{:?}", learned.cost());
        assert!(learned.error().0 < 10.0);
    }

    #[test]
    fn outliers_hardly_bend_it() {
        let mut learned = LearnedCost::new(TRUE);
        feed(&mut learned, TRUE, 0, 600, true);
        assert!(off(&learned, TRUE) < 0.06, "{:?}", learned.cost());
    }

    #[test]
    fn a_worker_that_halves_its_speed_is_followed_within_two_hundred_answers() {
        let mut learned = LearnedCost::new(TRUE);
        feed(&mut learned, TRUE, 0, 400, false);
        let slow = PrefillCost {
            alpha_ms_per_token: 0.16,
            ..TRUE
        };
        feed(&mut learned, slow, 400, 200, false);
        assert!(off(&learned, slow) < 0.05, "{:?}", learned.cost());
    }

    #[test]
    fn coefficients_stay_physical_and_nonsense_changes_nothing() {
        let mut learned = LearnedCost::new(TRUE);
        learned.observe(Tokens(5), Tokens(5), Millis(f64::NAN));
        assert_eq!(learned.seen(), 0);
        for i in 0..300 {
            learned.observe(Tokens(6000 - i * 20), Tokens(0), Millis(i as f64));
        }
        let cost = learned.cost();
        assert!(cost.alpha_ms_per_token > 0.0 && cost.beta_ms >= 0.0 && cost.gamma_ms_per_token2 >= 0.0);
    }

    #[test]
    fn a_pool_lends_its_median() {
        let pool = [0.1, 0.5, 0.2].map(|alpha| PrefillCost::linear(alpha, alpha * 10.0));
        let begin = pooled(&pool).unwrap();
        assert_eq!((begin.alpha_ms_per_token, begin.beta_ms), (0.2, 2.0));
        assert_eq!(pooled(&[]), None);
    }
}

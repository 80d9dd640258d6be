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
//! - *Physics*: α, β and γ are not negative. Where one comes out so, the others are what they would be given that it is
//!   zero: `θ − P·eᵢ·θᵢ/Pᵢᵢ`, the conditional mean. (Merely reporting it as zero misses the answers by what it was.) Where
//!   α is not positive yet the prior's is used.
//! - *The floor* is where it was measured or written, and follows what answers on it take: a prompt whose line lies below it says
//!   nothing of the line. (On a GPU most turns of a warm conversation are such; learned from, they would lie the line flat.) One
//!   that takes far longer than the floor is taken for a change of the line.
//! - *Time*: a worker that was not used for long may have become faster or slower as a whole. The first answers after that
//!   meet a covariance that is opened along the estimate itself, by its [`Doubt`], and an outlier is what lies beyond the
//!   doubt: one answer can scale all three coefficients. Without an answer nothing moves.
//!
//! A worker that was never benched begins with its pool's median: [`pooled`].

use super::Doubt;
use crate::cost::PrefillCost;
use crate::units::{Millis, Tokens};

/// λ: weight of the past, per answer.
const FORGETTING: f64 = 0.995;
/// Residuals beyond this many mean absolute residuals are clipped.
const CLIP: f64 = 4.0;
/// Clipped residuals of one sign in a row that mean a change, not an outlier.
const CHANGE: i32 = 8;
/// Bound to which forgetting may wind the covariance up, relative to that of an answer: what is believed is worth one
/// answer in each direction at least.
const WOUND: f64 = 1.0;
/// Covariance of a prior that somebody measured, and after a change.
const MEASURED: f64 = 10.0;
/// Times the floor that an answer on it takes at the most.
const ON_FLOOR: f64 = 1.5;
/// Answers that the floor remembers.
const FLOOR_MEMORY: f64 = 50.0;
/// Of a guess, which the first answers may well overturn.
const GUESSED: f64 = 100.0;
/// A normal variable's deviation in mean absolute deviations: `√(π/2)`.
const DEVIATION: f64 = 1.2533;
/// Least noise that answers are taken to have, as a share of the coefficients: without any the covariance would have no scale.
const NOISE: f64 = 1e-3;
/// Scales: thousand tokens, and ten million token pairs.
const TOKENS: f64 = 1e3;
const PAIRS: f64 = 1e7;

/// What a prefill's cost depends on: of one prompt, or the means over several, which cost the mean of what each costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillSize {
    /// u: tokens to compute.
    pub uncached: f64,
    /// u·(h + u/2): pairs of a token and one before it.
    pub pairs: f64,
}

impl PrefillSize {
    /// Of one prompt.
    #[must_use]
    pub fn of(uncached: Tokens, cached: Tokens) -> Self {
        let u = uncached.as_f64();
        Self {
            uncached: u,
            pairs: u * (cached.as_f64() + u / 2.0),
        }
    }

    /// h: the cached tokens that such a prompt has.
    #[must_use]
    pub fn cached(self) -> f64 {
        if self.uncached > 0.0 {
            (self.pairs / self.uncached - self.uncached / 2.0).max(0.0)
        } else {
            0.0
        }
    }

    fn features(self) -> [f64; 3] {
        [1.0, self.uncached / TOKENS, self.pairs / PAIRS]
    }
}

/// The estimator of one worker.
#[derive(Clone, Debug)]
pub struct LearnedCost {
    /// β, α per thousand tokens, γ per ten million pairs.
    theta: [f64; 3],
    covariance: [[f64; 3]; 3],
    prior: PrefillCost,
    /// What short prompts all take; 0 where no floor is known.
    floor: f64,
    spread: f64,
    one_sided: i32,
    seen: u64,
    /// Answers since the last change: the error is that of what is believed now.
    since: u64,
}

impl LearnedCost {
    /// Begins with what a bench, a configuration or [`pooled`] says.
    #[must_use]
    pub fn new(prior: PrefillCost) -> Self {
        Self::with_covariance(prior, MEASURED)
    }

    /// Begins with a default that nobody vouches for.
    #[must_use]
    pub fn guess(prior: PrefillCost) -> Self {
        Self::with_covariance(prior, GUESSED)
    }

    fn with_covariance(prior: PrefillCost, covariance: f64) -> Self {
        let theta = [
            prior.beta_ms,
            prior.alpha_ms_per_token * TOKENS,
            prior.gamma_ms_per_token2 * PAIRS,
        ];
        Self {
            theta,
            covariance: diagonal(covariance),
            prior,
            floor: prior.floor_ms,
            spread: 0.0,
            one_sided: 0,
            seen: 0,
            since: 0,
        }
    }

    /// An answer: after `wait` in the queue its first token took `prefill` more. Nonsense is ignored.
    pub fn observe(&mut self, uncached: Tokens, cached: Tokens, prefill: Millis) {
        self.observe_size(PrefillSize::of(uncached, cached), prefill);
    }

    /// An answer, or, where there is no floor, the mean of several: then the cost is linear in what it depends on, so means lie
    /// on it as well. Nonsense is ignored.
    pub fn observe_size(&mut self, size: PrefillSize, prefill: Millis) {
        self.observe_after(Doubt::NONE, size, prefill);
    }

    /// The same of a worker whose estimate has become doubtful for want of answers.
    pub fn observe_after(&mut self, doubt: Doubt, size: PrefillSize, prefill: Millis) {
        let x = size.features();
        let is_sound = |value: f64| value.is_finite() && value >= 0.0;
        if !(is_sound(prefill.0) && x.into_iter().all(is_sound)) {
            return;
        }
        let predicted: f64 = (0..3).map(|i| self.theta[i] * x[i]).sum();
        if predicted < self.floor && prefill.0 <= ON_FLOOR * self.floor {
            self.floor += self.clip(prefill.0 - self.floor, 0.0) / FLOOR_MEMORY;
            self.seen += 1;
            self.since += 1;
            return;
        }
        let residual = self.clip(prefill.0 - predicted, doubt.share() * predicted.abs());
        self.open(doubt);
        let px: [f64; 3] = std::array::from_fn(|i| (0..3).map(|j| self.covariance[i][j] * x[j]).sum());
        let gain = FORGETTING + (0..3).map(|i| x[i] * px[i]).sum::<f64>();
        for (theta, step) in self.theta.iter_mut().zip(px) {
            *theta += step / gain * residual;
        }
        let mut wound = 1.0f64;
        for (i, row) in self.covariance.iter_mut().enumerate() {
            let bound = row[i].max(WOUND);
            for (entry, other) in row.iter_mut().zip(px) {
                *entry = (*entry - px[i] * other / gain) / FORGETTING;
            }
            wound = wound.max(row[i] / bound);
        }
        for row in &mut self.covariance {
            row.iter_mut().for_each(|entry| *entry /= wound);
        }
        self.seen += 1;
        self.since += 1;
    }

    /// Opens the covariance along the estimate: the worker may have become faster or slower as a whole.
    fn open(&mut self, doubt: Doubt) {
        let size = self.theta.iter().map(|theta| theta * theta).sum::<f64>().sqrt();
        let noise = (DEVIATION * self.spread).max(NOISE * size);
        if doubt == Doubt::NONE || noise <= 0.0 {
            return;
        }
        let by = self
            .theta
            .map(|theta| doubt.widens(theta, 0.0) / noise * theta.signum());
        for (row, own) in self.covariance.iter_mut().zip(by) {
            row.iter_mut()
                .zip(by)
                .for_each(|(entry, other)| *entry += own * other);
        }
    }

    /// Clips an outlier, which is beyond what doubt explains (`doubtful`, in milliseconds); believes a run of them.
    fn clip(&mut self, residual: f64, doubtful: f64) -> f64 {
        let noise = CLIP * self.spread;
        let bound = noise + doubtful;
        let outlier = self.since > 16 && residual.abs() > bound;
        if !outlier {
            // What doubt explains is no noise.
            let explained = if self.since > 16 { noise } else { f64::INFINITY };
            let surprise = residual.abs().min(explained);
            self.spread += (surprise - self.spread) / (self.since + 1).min(100) as f64;
            self.one_sided = 0;
            return residual;
        }
        let side = if residual > 0.0 { 1 } else { -1 };
        let same = self.one_sided * side > 0;
        self.one_sided = if same { self.one_sided + side } else { side };
        if self.one_sided.abs() >= CHANGE {
            self.one_sided = 0;
            self.covariance = diagonal(MEASURED);
            self.spread = residual.abs();
            self.since = 0;
            return residual;
        }
        bound * f64::from(side)
    }

    /// The cost as learned so far.
    #[must_use]
    pub fn cost(&self) -> PrefillCost {
        let theta = self.physical();
        let alpha = if theta[1] > 0.0 {
            theta[1] / TOKENS
        } else {
            self.prior.alpha_ms_per_token
        };
        PrefillCost {
            beta_ms: theta[0],
            alpha_ms_per_token: alpha,
            gamma_ms_per_token2: theta[2] / PAIRS,
            floor_ms: self.floor,
        }
    }

    /// The coefficients given that none is negative.
    fn physical(&self) -> [f64; 3] {
        let (mut theta, mut covariance) = (self.theta, self.covariance);
        let mut fixed = [false; 3];
        // Each round fixes one at zero, so three are enough; one that was fixed stays there.
        while let Some(i) = (0..3).find(|&i| theta[i] < 0.0 && !fixed[i]) {
            let by = covariance[i][i];
            let column: [f64; 3] =
                std::array::from_fn(|j| if by > 0.0 { covariance[j][i] / by } else { 0.0 });
            let (value, row) = (theta[i], covariance[i]);
            for j in 0..3 {
                if !fixed[j] {
                    theta[j] -= column[j] * value;
                }
                for (entry, other) in covariance[j].iter_mut().zip(row) {
                    *entry -= column[j] * other;
                }
            }
            theta[i] = 0.0;
            fixed[i] = true;
        }
        theta
    }

    /// What it predicts for a prompt, and the standard error of that: how far the truth may be for want of answers like it.
    #[must_use]
    pub fn predict(&self, uncached: Tokens, cached: Tokens) -> (Millis, Millis) {
        let x = PrefillSize::of(uncached, cached).features();
        let variance: f64 = (0..3)
            .map(|i| x[i] * (0..3).map(|j| self.covariance[i][j] * x[j]).sum::<f64>())
            .sum();
        let error = DEVIATION * self.spread * variance.max(0.0).sqrt();
        (self.cost().prefill(uncached, cached), Millis(error))
    }

    /// Begins again from another prior: for a worker that nothing is known of yet. Ignored once it has answered.
    pub fn begin_with(&mut self, prior: PrefillCost) {
        if self.seen == 0 {
            *self = Self::new(prior);
        }
    }

    /// Where it began: what somebody measured or wrote, or what the pool lent.
    #[must_use]
    pub fn began(&self) -> PrefillCost {
        self.prior
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

fn diagonal(value: f64) -> [[f64; 3]; 3] {
    std::array::from_fn(|i| std::array::from_fn(|j| if i == j { value } else { 0.0 }))
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
        floor_ms: median(|cost| cost.floor_ms)?,
    })
}

#[cfg(test)]
mod tests;

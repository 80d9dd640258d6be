//! The coefficients α, β, γ of a worker, learned from its responses.
//!
//! Recursive least squares with exponential forgetting (Ljung and Söderström, *Theory and Practice of Recursive
//! Identification*, 1983) on `ttft − wait = β + α·u + γ·u·(h + u/2)`. Features are scaled to the order of one, since
//! the covariance would not survive the ten decades of the raw ones.
//!
//! - *Outliers*: a residual beyond four times the running mean absolute residual is clipped to that (Huber's
//!   estimator). Eight in a row of one sign mean that the worker has changed: the covariance is opened again.
//! - *Forgetting*: λ = 0.995 remembers 200 responses. Constant inputs wind up the covariance, so its diagonal is
//!   bounded.
//! - *Physics*: a negative coefficient is fixed at zero and the others take their conditional mean `θ − P·eᵢ·θᵢ/Pᵢᵢ`,
//!   since clamping alone would bias the predictions. While α is not positive the prior's is used.
//! - *The floor* starts at its measured or configured value and follows the responses on it. A prompt whose line lies
//!   below the floor is no evidence about the line, unless it takes far longer than the floor.
//! - *Time*: a worker not used for long may have become faster or slower as a whole. For the first responses after
//!   that, the covariance is opened along the estimate itself, and only a residual beyond the [`Doubt`] is clipped.

mod kept;

use serde::{Deserialize, Serialize};

use super::Doubt;
use crate::cost::PrefillCost;
use crate::stats::upper_median;
use crate::units::{Millis, Tokens};

const FORGETTING: f64 = 0.995;
const CLIP: f64 = 4.0;
const CHANGE: i32 = 8;
/// Upper bound to which forgetting may wind up the covariance, relative to that of a response.
const WOUND: f64 = 1.0;
/// Initial covariance of a measured prior, also after a change.
const MEASURED: f64 = 10.0;
/// Multiple of the floor up to which a response counts as on it.
const ON_FLOOR: f64 = 1.5;
/// Time constant of the floor, in responses.
const FLOOR_MEMORY: f64 = 50.0;
/// Initial covariance of a guess, which the first responses may override.
const GUESSED: f64 = 100.0;
/// Standard deviation of a normal variable in mean absolute deviations: `√(π/2)`.
const DEVIATION: f64 = 1.2533;
/// Least noise assumed, as a share of the coefficients: without any, the covariance would have no scale.
const NOISE: f64 = 1e-3;
/// Feature scales: thousand tokens, and ten million token pairs.
const TOKENS: f64 = 1e3;
const PAIRS: f64 = 1e7;

/// The size of a prefill: of one prompt, or the mean over several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillSize {
    /// u: tokens to compute.
    pub uncached: f64,
    /// u·(h + u/2): pairs of a token and an earlier one.
    pub pairs: f64,
}

impl PrefillSize {
    /// Returns the size of one prompt.
    pub fn of(uncached: Tokens, cached: Tokens) -> Self {
        let u = uncached.as_f64();
        Self {
            uncached: u,
            pairs: u * (cached.as_f64() + u / 2.0),
        }
    }

    /// Returns h: the cached tokens of such a prompt.
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

/// The cost estimator of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedCost {
    /// β, α per thousand tokens, γ per ten million pairs.
    theta: [f64; 3],
    covariance: [[f64; 3]; 3],
    prior: PrefillCost,
    /// Time that all short prompts take; 0 without a known floor.
    floor: f64,
    spread: f64,
    one_sided: i32,
    seen: u64,
    /// Responses since the worker last changed, on which the error is based.
    since: u64,
}

impl LearnedCost {
    /// Creates an estimator from a measured or configured prior, or from [`pooled`].
    pub fn new(prior: PrefillCost) -> Self {
        Self::with_covariance(prior, MEASURED)
    }

    /// Creates an estimator from a default.
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

    /// Adds a response whose first token took `prefill` after its wait. Invalid values are ignored.
    pub fn observe(&mut self, uncached: Tokens, cached: Tokens, prefill: Millis) {
        self.observe_size(PrefillSize::of(uncached, cached), prefill);
    }

    /// Adds a response or, without a floor, the mean of several, since the cost is then linear. Ignores invalid values.
    pub fn observe_size(&mut self, size: PrefillSize, prefill: Millis) {
        self.observe_after(Doubt::NONE, size, prefill);
    }

    /// Adds a response of a worker whose estimate is in doubt after a time without responses.
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

    /// Clips an outlier beyond what doubt explains (`doubtful`, in ms), unless it is one of a run.
    fn clip(&mut self, residual: f64, doubtful: f64) -> f64 {
        let noise = CLIP * self.spread;
        let bound = noise + doubtful;
        let outlier = self.since > 16 && residual.abs() > bound;
        if !outlier {
            // The part explained by doubt is no noise.
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

    /// Returns the cost as learned so far.
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

    fn physical(&self) -> [f64; 3] {
        let (mut theta, mut covariance) = (self.theta, self.covariance);
        let mut fixed = [false; 3];
        // Each round fixes one more at zero, so three rounds suffice.
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

    /// Returns the predicted time for a prompt, and its standard error for lack of similar responses.
    pub fn predict(&self, uncached: Tokens, cached: Tokens) -> (Millis, Millis) {
        let x = PrefillSize::of(uncached, cached).features();
        let variance: f64 = (0..3)
            .map(|i| x[i] * (0..3).map(|j| self.covariance[i][j] * x[j]).sum::<f64>())
            .sum();
        let error = DEVIATION * self.spread * variance.max(0.0).sqrt();
        (self.cost().prefill(uncached, cached), Millis(error))
    }

    /// Restarts from another prior. Ignored after the first response.
    pub fn begin_with(&mut self, prior: PrefillCost) {
        if self.seen == 0 {
            *self = Self::new(prior);
        }
    }

    /// Returns the cost from which the estimator started.
    pub fn began(&self) -> PrefillCost {
        self.prior
    }

    /// Returns the mean absolute residual: the typical prediction error.
    pub fn error(&self) -> Millis {
        Millis(self.spread)
    }

    /// Returns the number of responses learned from.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

fn diagonal(value: f64) -> [[f64; 3]; 3] {
    std::array::from_fn(|i| std::array::from_fn(|j| if i == j { value } else { 0.0 }))
}

/// Returns the prior of a new worker: the median of each coefficient over the pool. `None` for an empty pool.
pub fn pooled(pool: &[PrefillCost]) -> Option<PrefillCost> {
    let median = |of: fn(&PrefillCost) -> f64| upper_median(pool.iter().map(of));
    Some(PrefillCost {
        alpha_ms_per_token: median(|cost| cost.alpha_ms_per_token)?,
        beta_ms: median(|cost| cost.beta_ms)?,
        gamma_ms_per_token2: median(|cost| cost.gamma_ms_per_token2)?,
        floor_ms: median(|cost| cost.floor_ms)?,
    })
}

#[cfg(test)]
mod tests;

//! α, β, γ out of samples, and whether they can be believed.
//!
//! Model: `ttft = β + α·u + γ·u·(h + u/2)`, linear in its three coefficients. Least squares alone would let one
//! garbage collection bend the line, so residuals beyond 1.345 robust standard deviations count linearly instead of
//! squared (Huber 1964; solved by iteratively reweighted least squares, the scale re-estimated from the median absolute
//! residual). 1.345 keeps 95 % of the efficiency if the noise is normal after all. A negative γ, which no attention
//! has, is noise around none: it is set to zero and the rest is fitted again; α and β likewise.
//!
//! Intervals are percentiles of 500 bootstrap resamples. `R²` is of the weighted residuals, and the share of
//! samples that were weighed down is reported beside it: a fit that explains what it did not throw away is no fit if
//! it threw away a quarter.

use nalgebra::{DMatrix, DVector};
use policy::cost::PrefillCost;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::probe::Sample;

/// Residuals of more robust standard deviations than this are weighed down.
const HUBER: f64 = 1.345;
/// Rounds of reweighting; a handful suffice.
const ROUNDS: usize = 30;
const RESAMPLES: usize = 500;
/// Samples that a fit of three coefficients needs to mean anything.
pub const FEWEST_SAMPLES: usize = 12;

/// A range that holds the true value in 95 of 100 repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A fitted cost and how well it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The coefficients.
    pub cost: PrefillCost,
    /// 95 % interval of α.
    pub alpha: Interval,
    /// 95 % interval of β.
    pub beta: Interval,
    /// 95 % interval of γ.
    pub gamma: Interval,
    /// Share of the (weighted) variance that the model explains.
    pub r_squared: f64,
    /// Share of samples that were weighed to less than a half.
    pub outlier_share: f64,
    /// Median of |residual| / measured.
    pub relative_error_p50: f64,
    /// 95th percentile of |residual| / measured.
    pub relative_error_p95: f64,
    /// Samples that it rests on.
    pub samples: usize,
}

/// Why there is no fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FitError {
    /// Too few samples.
    #[error("{0} samples are too few; at least {FEWEST_SAMPLES} are needed")]
    TooFew(usize),
    /// The samples do not tell the coefficients apart.
    #[error("the samples do not tell α, β and γ apart; measure more different histories and lengths")]
    Degenerate,
}

/// Fits `samples`; `seed` decides the resamples.
///
/// # Errors
/// If there are too few samples, or they do not determine the coefficients.
pub fn fit(samples: &[Sample], seed: u64) -> Result<Fit, FitError> {
    if samples.len() < FEWEST_SAMPLES {
        return Err(FitError::TooFew(samples.len()));
    }
    let rows: Vec<Row> = samples.iter().map(Row::of).collect();
    let (beta, weights) = robust(&rows).ok_or(FitError::Degenerate)?;
    let [b, a, g] = beta;
    let cost = PrefillCost {
        alpha_ms_per_token: a,
        beta_ms: b,
        gamma_ms_per_token2: g,
    };
    let resampled = resample(&rows, seed);
    let interval = |at: usize| {
        let mut values: Vec<f64> = resampled.iter().map(|beta| beta[at]).collect();
        values.sort_unstable_by(f64::total_cmp);
        Interval {
            low: percentile(&values, 0.025),
            high: percentile(&values, 0.975),
        }
    };
    let mut relative: Vec<f64> = rows
        .iter()
        .map(|row| (row.residual(&beta) / row.y.max(1e-9)).abs())
        .collect();
    relative.sort_unstable_by(f64::total_cmp);
    Ok(Fit {
        cost,
        beta: interval(0),
        alpha: interval(1),
        gamma: interval(2),
        r_squared: r_squared(&rows, &weights, &beta),
        outlier_share: weights.iter().filter(|weight| **weight < 0.5).count() as f64 / rows.len() as f64,
        relative_error_p50: percentile(&relative, 0.5),
        relative_error_p95: percentile(&relative, 0.95),
        samples: rows.len(),
    })
}

/// One sample as regressors `[1, u, u·(h + u/2)]` and outcome.
#[derive(Clone, Copy)]
struct Row {
    x: [f64; 3],
    y: f64,
}

impl Row {
    fn of(sample: &Sample) -> Self {
        let (u, h) = (sample.uncached.as_f64(), sample.cached.as_f64());
        Self {
            x: [1.0, u, u * (h + u / 2.0)],
            y: sample.ttft.0,
        }
    }

    fn residual(&self, beta: &[f64; 3]) -> f64 {
        self.y - self.x.iter().zip(beta).map(|(x, b)| x * b).sum::<f64>()
    }
}

/// Coefficients, none negative, and the weights that they rest on.
fn robust(rows: &[Row]) -> Option<([f64; 3], Vec<f64>)> {
    let mut weights = vec![1.0; rows.len()];
    let mut beta = nonnegative(rows, &weights)?;
    for _ in 0..ROUNDS {
        let residuals: Vec<f64> = rows.iter().map(|row| row.residual(&beta).abs()).collect();
        let mut sorted = residuals.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        // 1.4826 makes the median absolute residual the standard deviation of a normal distribution.
        let limit = HUBER * (1.4826 * percentile(&sorted, 0.5)).max(1e-9);
        weights = residuals
            .iter()
            .map(|residual| if *residual <= limit { 1.0 } else { limit / residual })
            .collect();
        let next = nonnegative(rows, &weights)?;
        let moved = next
            .iter()
            .zip(&beta)
            .any(|(new, old)| (new - old).abs() > 1e-9 * old.abs().max(1e-12));
        beta = next;
        if !moved {
            break;
        }
    }
    Some((beta, weights))
}

/// Weighted least squares, leaving out the coefficients that would come out negative, worst first.
fn nonnegative(rows: &[Row], weights: &[f64]) -> Option<[f64; 3]> {
    let mut columns = vec![0, 1, 2];
    loop {
        let solved = solve(rows, weights, &columns)?;
        // Weighed by their column's size: the worst is the one that takes the most away from predictions.
        let scale = |column: usize| rows.iter().map(|row| row.x[column]).fold(0.0, f64::max);
        let worst = (0..columns.len())
            .filter(|at| solved[*at] < 0.0)
            .min_by(|one, two| {
                (solved[*one] * scale(columns[*one])).total_cmp(&(solved[*two] * scale(columns[*two])))
            });
        match worst {
            Some(at) if columns.len() > 1 => drop(columns.remove(at)),
            Some(_) => return None,
            None => {
                let mut beta = [0.0; 3];
                columns
                    .iter()
                    .zip(&solved)
                    .for_each(|(column, value)| beta[*column] = *value);
                return Some(beta);
            }
        }
    }
}

/// Weighted least squares over some columns. u·(h + u/2) is a million times u, so columns are scaled to their largest
/// value first; that leaves the normal equations well enough conditioned to be solved as they stand.
fn solve(rows: &[Row], weights: &[f64], columns: &[usize]) -> Option<Vec<f64>> {
    let scale = |column: &usize| {
        rows.iter()
            .map(|row| row.x[*column].abs())
            .fold(f64::MIN_POSITIVE, f64::max)
    };
    let scales: Vec<f64> = columns.iter().map(scale).collect();
    let mut normal = DMatrix::<f64>::zeros(columns.len(), columns.len());
    let mut right = DVector::<f64>::zeros(columns.len());
    for (row, weight) in rows.iter().zip(weights) {
        for (i, (column, scale)) in columns.iter().zip(&scales).enumerate() {
            let x = weight * row.x[*column] / scale;
            right[i] += x * row.y;
            for (j, (column, scale)) in columns.iter().zip(&scales).enumerate() {
                normal[(i, j)] += x * row.x[*column] / scale;
            }
        }
    }
    let spectrum = normal.symmetric_eigenvalues();
    if spectrum.min() <= 1e-12 * spectrum.max() {
        return None;
    }
    let solved = normal.cholesky()?.solve(&right);
    Some(
        solved
            .iter()
            .zip(&scales)
            .map(|(value, scale)| value / scale)
            .collect(),
    )
}

fn resample(rows: &[Row], seed: u64) -> Vec<[f64; 3]> {
    let mut rng = Pcg64::seed_from_u64(seed);
    let draw = |rng: &mut Pcg64| -> Vec<Row> {
        (0..rows.len())
            .map(|_| rows[rng.random_range(0..rows.len())])
            .collect()
    };
    (0..RESAMPLES)
        .filter_map(|_| robust(&draw(&mut rng)).map(|(beta, _)| beta))
        .collect()
}

fn r_squared(rows: &[Row], weights: &[f64], beta: &[f64; 3]) -> f64 {
    let total: f64 = weights.iter().sum();
    let mean = rows
        .iter()
        .zip(weights)
        .map(|(row, weight)| weight * row.y)
        .sum::<f64>()
        / total;
    let sum = |value: &dyn Fn(&Row) -> f64| -> f64 {
        rows.iter()
            .zip(weights)
            .map(|(row, weight)| weight * value(row).powi(2))
            .sum()
    };
    let (left, spread) = (sum(&|row| row.residual(beta)), sum(&|row| row.y - mean));
    if spread > 0.0 { 1.0 - left / spread } else { 0.0 }
}

/// The `share` quantile of sorted values, by linear interpolation; 0 of none.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let rank = share * last as f64;
    let (below, above) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[below] + (sorted[above.min(last)] - sorted[below]) * (rank - below as f64)
}

#[cfg(test)]
mod tests {
    use policy::units::{Millis, Tokens};

    use super::*;

    /// A grid measured on a worker of a known cost; `noise(n)` ms are added to the n-th sample.
    fn measured(cost: &PrefillCost, noise: impl Fn(usize) -> f64) -> Vec<Sample> {
        let mut samples = Vec::new();
        for history in [0, 1024, 4096, 16_384] {
            for uncached in [64, 256, 1024, 4096] {
                for _ in 0..4 {
                    let (uncached, cached) = (Tokens(uncached), Tokens(history));
                    let ttft = cost.prefill(uncached, cached) + Millis(noise(samples.len()));
                    samples.push(Sample {
                        cached,
                        uncached,
                        ttft,
                    });
                }
            }
        }
        samples
    }

    const COST: PrefillCost = PrefillCost {
        alpha_ms_per_token: 0.08,
        beta_ms: 15.0,
        gamma_ms_per_token2: 2e-6,
    };

    /// Within ±`size`, without a pattern.
    fn jitter(at: usize, size: f64) -> f64 {
        (((at as f64 * 12.9898).sin() * 43_758.545_3).fract()) * size
    }

    #[test]
    fn exact_samples_give_the_exact_cost() {
        let fit = fit(&measured(&COST, |_| 0.0), 1).unwrap();
        assert!((fit.cost.alpha_ms_per_token / 0.08 - 1.0).abs() < 1e-6, "{fit:?}");
        assert!((fit.cost.beta_ms / 15.0 - 1.0).abs() < 1e-6, "{fit:?}");
        assert!(
            (fit.cost.gamma_ms_per_token2 / 2e-6 - 1.0).abs() < 1e-6,
            "{fit:?}"
        );
        assert!(fit.r_squared > 0.999_999);
    }

    #[test]
    fn intervals_hold_the_true_cost_under_noise() {
        let fit = fit(&measured(&COST, |at| jitter(at, 4.0)), 1).unwrap();
        for (interval, truth) in [(fit.alpha, 0.08), (fit.beta, 15.0), (fit.gamma, 2e-6)] {
            assert!(
                interval.low <= truth && truth <= interval.high,
                "{truth} in {interval:?}"
            );
        }
        assert!(fit.r_squared > 0.99);
    }

    #[test]
    fn stalls_do_not_bend_the_fit() {
        let stalls = |at: usize| jitter(at, 1.0) + if at.is_multiple_of(10) { 2_000.0 } else { 0.0 };
        let fit = fit(&measured(&COST, stalls), 1).unwrap();
        assert!((fit.cost.alpha_ms_per_token / 0.08 - 1.0).abs() < 0.05, "{fit:?}");
        assert!((0.05..0.2).contains(&fit.outlier_share), "{fit:?}");
    }

    #[test]
    fn a_worker_without_attention_cost_has_no_negative_one() {
        let cost = PrefillCost::linear(0.1, 20.0);
        let fit = fit(&measured(&cost, |at| -jitter(at, 3.0).abs() * (at % 3) as f64), 1).unwrap();
        assert!(
            fit.cost.gamma_ms_per_token2 >= 0.0 && fit.gamma.low >= 0.0,
            "{fit:?}"
        );
        assert!((fit.cost.alpha_ms_per_token - 0.1).abs() < 0.01, "{fit:?}");
    }

    #[test]
    fn noise_has_no_r_squared() {
        let noise = |at: usize| jitter(at, 5_000.0).abs();
        let fit = fit(&measured(&PrefillCost::linear(1e-6, 1.0), noise), 1).unwrap();
        assert!(fit.r_squared < 0.5, "{fit:?}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        let sample = Sample {
            cached: Tokens(10),
            uncached: Tokens(100),
            ttft: Millis(30.0),
        };
        assert_eq!(fit(&[sample; 40], 1), Err(FitError::Degenerate));
        assert_eq!(fit(&[sample; 3], 1), Err(FitError::TooFew(3)));
    }
}

//! Fits α, β, γ to samples and decides whether the fit is reliable.
//!
//! Model: `ttft = β + α·u + γ·u·(h + u/2)`, linear in its three coefficients. Samples are weighted by the noise of
//! their time ([`noise`]) and by Tukey's biweight (1974), which falls to zero at 4.685 standard deviations and keeps 95
//! % of least squares' efficiency under normal noise ([`robust`]). Least absolute deviations only provide its start:
//! they never drop an outlier, and stalls are all on one side. Intervals are percentiles of 500 bootstrap resamples
//! ([`bootstrap`]). A floor and a break of the slope are detected, and too many cells that are off reject a fit
//! ([`shape`]).
//!
//! A negative coefficient, which no worker has, is noise around zero: it is set to zero and the others are fitted
//! again. `R²` excludes outliers, so a fit that drops a quarter of the samples is not reliable, whatever its `R²`.

mod bootstrap;
mod noise;
mod robust;
mod shape;

use policy::cost::PrefillCost;
use policy::stats::Sorted;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::noise::Noise;
use self::robust::{ALL, PLAIN, Robust};
pub use self::shape::{Break, Floor};
use crate::sample::Sample;

/// Fewest samples for a fit of three coefficients.
pub const FEWEST_SAMPLES: usize = 12;
/// Largest share of outliers in a reliable fit.
const MOST_OUTLIERS: f64 = 0.25;

/// A 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Returns half of the width.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Returns whether a value lies within the interval.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// Fitted coefficients and their quality.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The fitted coefficients.
    pub cost: PrefillCost,
    /// 95 % interval of α.
    pub alpha: Interval,
    /// 95 % interval of β.
    pub beta: Interval,
    /// 95 % interval of γ.
    pub gamma: Interval,
    /// Share of the variance that the model explains, without outliers.
    pub r_squared: f64,
    /// Share of samples with a weight below one half.
    pub outlier_share: f64,
    /// Median of |residual| / measured.
    pub relative_error_p50: f64,
    /// 95th percentile of |residual| / measured.
    pub relative_error_p95: f64,
    /// Number of samples that the line was fitted to: without those on the floor.
    pub samples: usize,
    /// The fitted noise model.
    pub noise: Noise,
    /// The floor under small prompts, if one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
    /// The change of the slope, if one was found.
    #[serde(default, rename = "break", skip_serializing_if = "Option::is_none")]
    pub bend: Option<Break>,
    /// The fit without γ to the same samples.
    pub plain: Plain,
    /// The most that an error of one millisecond in α, β or γ moves a prediction, as a share of it.
    #[serde(skip)]
    pub reach: [f64; 3],
}

/// The paper's linear model, `ttft = β + α·u`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plain {
    /// α: milliseconds per uncached token.
    pub alpha_ms_per_token: f64,
    /// β: fixed milliseconds per prompt.
    pub beta_ms: f64,
    /// Share of the variance that the linear model explains.
    pub r_squared: f64,
    /// Median of |residual| / measured.
    pub relative_error_p50: f64,
}

/// Why samples cannot be fitted, or why a fit is rejected.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FitError {
    /// Too few samples.
    #[error("{0} samples are too few; at least {FEWEST_SAMPLES} are needed")]
    TooFew(usize),
    /// The samples do not determine the coefficients.
    #[error("the samples do not determine α, β and γ; measure more different histories and lengths")]
    Degenerate,
    /// The model explains too little of the variance.
    #[error(
        "the model explains {:.1} % of the variance, less than the {:.1} % asked for (--min-r2); is the worker idle? \
         longer prompts (--uncached) help against noise", .explained * 100.0, .asked * 100.0
    )]
    Unexplained {
        /// R² of the fit.
        explained: f64,
        /// The requested minimum.
        asked: f64,
    },
    /// Too many samples are outliers.
    #[error("{:.0} % of the samples lie far from the fit; is the worker idle?", .0 * 100.0)]
    Outliers(f64),
    /// Time does not grow with tokens.
    #[error("time does not grow with the prompt; try longer --uncached")]
    Flat,
    /// The medians of too many cells are off.
    #[error(
        "the model does not fit: {off} of {cells} cells deviate systematically; the worst, {cached} cached and \
         {uncached} uncached tokens, took {measured:.3} ms where the model predicts {predicted:.3} ms"
    )]
    Crooked {
        /// Number of cells that are off.
        off: usize,
        /// Number of cells.
        cells: usize,
        /// Cached tokens of the worst cell.
        cached: u64,
        /// Uncached tokens of the worst cell.
        uncached: u64,
        /// Median time of the worst cell in ms.
        measured: f64,
        /// Predicted time of the worst cell in ms.
        predicted: f64,
    },
}

/// The role of one sample in the fit, for plots.
#[derive(Clone, Copy, Debug)]
pub struct Diagnosis {
    /// Predicted time in ms.
    pub predicted_ms: f64,
    /// Residual (measured minus predicted) in standard deviations of the noise.
    pub standardised: f64,
    /// Leverage, from 0 to 1.
    pub leverage: f64,
    /// Weight, from 0 (an outlier) to 1.
    pub weight: f64,
}

/// Fits `samples`; `seed` determines the resamples. Fails if they are too few or do not determine the coefficients.
pub fn fit(samples: &[Sample], seed: u64) -> Result<Fit, FitError> {
    let all: Vec<Row> = samples.iter().map(Row::of).collect();
    if all.len() < FEWEST_SAMPLES {
        return Err(FitError::TooFew(all.len()));
    }
    let whole = robust::robust(&all, ALL).ok_or(FitError::Degenerate)?;
    let floor = shape::floor(&all);
    let rows = floor
        .as_ref()
        .map_or_else(|| all.clone(), |floor| floor.above(&all));
    let robust = match floor {
        Some(_) => robust::robust(&rows, ALL).ok_or(FitError::Degenerate)?,
        None => whole,
    };
    let [alpha, beta, gamma] = bootstrap::intervals(&rows, &robust, seed);
    let predict = |row: &Row| {
        floor
            .map_or(0.0, |floor| floor.ms)
            .max(row.predicted(&robust.beta))
    };
    let relative = relative_errors(&all, predict);
    let plain = robust::robust(&rows, PLAIN).ok_or(FitError::Degenerate)?;
    let reach = |column: usize| {
        rows.iter()
            .map(|row| row.x[column] / row.predicted(&robust.beta))
            .fold(0.0, f64::max)
    };
    Ok(Fit {
        cost: robust.cost(),
        alpha,
        beta,
        gamma,
        r_squared: r_squared(&rows, &robust),
        outlier_share: robust.outlier_share(),
        relative_error_p50: relative.percentile(50.0),
        relative_error_p95: relative.percentile(95.0),
        samples: rows.len(),
        noise: robust.noise,
        floor,
        bend: shape::bend(&rows, &robust),
        plain: Plain {
            alpha_ms_per_token: plain.beta[1],
            beta_ms: plain.beta[0],
            r_squared: r_squared(&rows, &plain),
            relative_error_p50: relative_errors(&rows, |row| row.predicted(&plain.beta)).percentile(50.0),
        },
        reach: [reach(1), reach(0), reach(2)],
    })
}

/// Fails, with the reason, if the fit of these samples is not reliable.
pub fn accept(fit: &Fit, samples: &[Sample], min_r2: f64) -> Result<(), FitError> {
    if fit.cost.alpha_ms_per_token <= 0.0 || fit.alpha.low <= 0.0 && fit.gamma.low <= 0.0 {
        return Err(FitError::Flat);
    }
    if fit.outlier_share > MOST_OUTLIERS {
        return Err(FitError::Outliers(fit.outlier_share));
    }
    if fit.r_squared < min_r2 {
        return Err(FitError::Unexplained {
            explained: fit.r_squared,
            asked: min_r2,
        });
    }
    let rows: Vec<Row> = samples.iter().map(Row::of).collect();
    shape::straight(&rows, fit)
}

/// Returns the role of each sample in the fit.
pub fn diagnose(fit: &Fit, samples: &[Sample]) -> Vec<Diagnosis> {
    let rows: Vec<Row> = samples.iter().map(Row::of).collect();
    robust::diagnose(&rows, fit)
}

/// One sample as regressors `[1, u, u·(h + u/2)]` and outcome.
#[derive(Clone, Copy, Debug)]
struct Row {
    x: [f64; 3],
    y: f64,
    cached: f64,
}

impl Row {
    fn of(sample: &Sample) -> Self {
        let (u, h) = (sample.uncached.as_f64(), sample.cached.as_f64());
        Self {
            x: [1.0, u, u * (h + u / 2.0)],
            y: sample.prefill.0,
            cached: h,
        }
    }

    fn uncached(&self) -> f64 {
        self.x[1]
    }

    fn predicted(&self, beta: &[f64; 3]) -> f64 {
        self.x.iter().zip(beta).map(|(x, b)| x * b).sum()
    }

    fn residual(&self, beta: &[f64; 3]) -> f64 {
        self.y - self.predicted(beta)
    }
}

impl Fit {
    /// Returns the predicted time of a sample, including the floor.
    pub fn predict(&self, sample: &Sample) -> f64 {
        let line = self.cost.prefill(sample.uncached, sample.cached).0;
        self.floor.map_or(line, |floor| line.max(floor.ms))
    }

    fn coefficients(&self) -> [f64; 3] {
        let cost = &self.cost;
        [cost.beta_ms, cost.alpha_ms_per_token, cost.gamma_ms_per_token2]
    }
}

/// Fits robust, non-negative coefficients; those not `fitted` are 0. `None` if the points do not determine them.
pub fn line(points: &[([f64; 3], f64)], fitted: [bool; 3]) -> Option<[f64; 3]> {
    let rows: Vec<Row> = points.iter().map(|&(x, y)| Row { x, y, cached: 0.0 }).collect();
    robust::robust(&rows, fitted).map(|robust| robust.beta)
}

fn relative_errors(rows: &[Row], predict: impl Fn(&Row) -> f64) -> Sorted {
    let relative = |row: &Row| ((row.y - predict(row)) / row.y.max(1e-9)).abs();
    Sorted::new(rows.iter().map(relative).collect())
}

fn r_squared(rows: &[Row], robust: &Robust) -> f64 {
    let total: f64 = robust.trust.iter().sum();
    let sum = |value: &dyn Fn(&Row) -> f64| -> f64 {
        rows.iter()
            .zip(&robust.trust)
            .map(|(row, trust)| trust * value(row))
            .sum()
    };
    let mean = sum(&|row| row.y) / total.max(f64::MIN_POSITIVE);
    let (left, spread) = (
        sum(&|row| row.residual(&robust.beta).powi(2)),
        sum(&|row| (row.y - mean).powi(2)),
    );
    if spread > 0.0 { 1.0 - left / spread } else { 0.0 }
}

#[cfg(test)]
mod tests;

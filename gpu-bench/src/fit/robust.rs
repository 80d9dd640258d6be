//! Iteratively reweighted least squares with non-negative coefficients.

use nalgebra::{Matrix3, Vector3};
use policy::cost::PrefillCost;

use super::noise::Noise;
use super::{Diagnosis, Fit, Row};

/// Flags of the fitted coefficients: β, α, γ.
pub(super) type Columns = [bool; 3];
pub(super) const ALL: Columns = [true; 3];
/// The model without attention.
pub(super) const PLAIN: Columns = [true, true, false];

/// Residuals beyond this many standard deviations have no weight.
const TUKEY: f64 = 4.685;
/// Rounds of the robust start.
const LEADING_ROUNDS: usize = 12;
const NO_DEVIATION: f64 = 1e-3;
const ROUNDS: usize = 40;
/// First rounds, in which the noise is estimated again.
const JUDGED_ROUNDS: usize = 6;

#[derive(Clone, Debug)]
pub(super) struct Robust {
    pub(super) beta: [f64; 3],
    pub(super) noise: Noise,
    /// Weight of each row: 1 within the noise, 0 far outside.
    pub(super) trust: Vec<f64>,
    pub(super) columns: Columns,
}

impl Robust {
    pub(super) fn cost(&self) -> PrefillCost {
        let [beta_ms, alpha_ms_per_token, gamma_ms_per_token2] = self.beta;
        PrefillCost {
            alpha_ms_per_token,
            beta_ms,
            gamma_ms_per_token2,
            floor_ms: 0.0,
        }
    }

    pub(super) fn outlier_share(&self) -> f64 {
        self.trust.iter().filter(|trust| **trust < 0.5).count() as f64 / self.trust.len().max(1) as f64
    }
}

/// Fits some of the coefficients; `None` if the rows do not determine them.
pub(super) fn robust(rows: &[Row], columns: Columns) -> Option<Robust> {
    let mut beta = start(rows, columns)?;
    let mut noise = Noise::around(rows, &beta);
    let mut weights = vec![0.0; rows.len()];
    for round in 1..=ROUNDS {
        for (row, weight) in rows.iter().zip(&mut weights) {
            let sigma = noise.sigma_ms(row.predicted(&beta));
            *weight = tukey(row.residual(&beta).abs() / sigma) / (sigma * sigma);
        }
        let next = nonnegative(rows, &weights, columns)?;
        let settled = !moved(&next, &beta);
        beta = next;
        if settled {
            break;
        }
        // In the last rounds the noise stays fixed, so that the fit converges.
        if round <= JUDGED_ROUNDS {
            noise = Noise::around(rows, &beta);
        }
    }
    let trust = rows
        .iter()
        .map(|row| tukey(row.residual(&beta).abs() / noise.sigma_ms(row.predicted(&beta))))
        .collect();
    Some(Robust {
        beta,
        noise,
        trust,
        columns,
    })
}

/// Minimises absolute relative deviations: a start that neither stalls nor long prompts dominate.
fn start(rows: &[Row], columns: Columns) -> Option<[f64; 3]> {
    let sizes: Vec<f64> = rows.iter().map(|row| row.y.abs().max(1e-9)).collect();
    let mut weights: Vec<f64> = sizes.iter().map(|size| size.powi(-2)).collect();
    let mut beta = nonnegative(rows, &weights, columns)?;
    for _ in 0..LEADING_ROUNDS {
        for ((row, size), weight) in rows.iter().zip(&sizes).zip(&mut weights) {
            let share = row.residual(&beta).abs() / size;
            *weight = size.powi(-2) / share.max(NO_DEVIATION);
        }
        beta = nonnegative(rows, &weights, columns)?;
    }
    Some(beta)
}

/// Runs more rounds on other rows with known noise.
pub(super) fn settle(rows: &[Row], from: &Robust, rounds: usize) -> Option<[f64; 3]> {
    let mut beta = from.beta;
    let mut weights = vec![0.0; rows.len()];
    for _ in 0..rounds {
        for (row, weight) in rows.iter().zip(&mut weights) {
            let sigma = from.noise.sigma_ms(row.predicted(&beta));
            *weight = tukey(row.residual(&beta).abs() / sigma) / (sigma * sigma);
        }
        let next = nonnegative(rows, &weights, from.columns)?;
        let settled = !moved(&next, &beta);
        beta = next;
        if settled {
            break;
        }
    }
    Some(beta)
}

/// Returns the role of each row. The leverage of a row is the diagonal of `X·(XᵀWX)⁻¹·XᵀW`.
pub(super) fn diagnose(rows: &[Row], fit: &Fit) -> Vec<Diagnosis> {
    let beta = fit.coefficients();
    let scales = scales(rows);
    let scaled = |row: &Row| Vector3::from_fn(|at, _| row.x[at] / scales[at]);
    let weigh = |row: &Row| {
        let sigma = fit.noise.sigma_ms(row.predicted(&beta));
        let z = row.residual(&beta) / sigma;
        (z, tukey(z.abs()), sigma)
    };
    let mut normal = Matrix3::zeros();
    for row in rows {
        let (_, trust, sigma) = weigh(row);
        let x = scaled(row);
        normal += x * x.transpose() * (trust / (sigma * sigma));
    }
    let inverse = normal.try_inverse().unwrap_or_else(Matrix3::zeros);
    let diagnosis = |row: &Row| {
        let (standardised, weight, sigma) = weigh(row);
        let x = scaled(row);
        Diagnosis {
            predicted_ms: fit.floor.map_or(0.0, |floor| floor.ms).max(row.predicted(&beta)),
            standardised,
            leverage: (x.transpose() * inverse * x)[(0, 0)] * weight / (sigma * sigma),
            weight,
        }
    };
    rows.iter().map(diagnosis).collect()
}

fn tukey(z: f64) -> f64 {
    if z >= TUKEY {
        0.0
    } else {
        (1.0 - (z / TUKEY).powi(2)).powi(2)
    }
}

fn moved(next: &[f64; 3], last: &[f64; 3]) -> bool {
    next.iter()
        .zip(last)
        .any(|(new, old)| (new - old).abs() > 1e-7 * old.abs().max(1e-12))
}

/// Solves weighted least squares. Coefficients that would be negative are dropped, the worst first.
fn nonnegative(rows: &[Row], weights: &[f64], mut columns: Columns) -> Option<[f64; 3]> {
    let scales = scales(rows);
    let normal = Normal::of(rows, weights, &scales);
    loop {
        let solved = normal.solve(columns)?;
        // Scaled by the column's size, so that the worst one is the one that lowers predictions most.
        let worst = (0..3)
            .filter(|at| columns[*at] && solved[*at] < 0.0)
            .min_by(|one, two| solved[*one].total_cmp(&solved[*two]));
        match worst {
            Some(at) => columns[at] = false,
            None => {
                return Some([
                    solved[0] / scales[0],
                    solved[1] / scales[1],
                    solved[2] / scales[2],
                ]);
            }
        }
        if columns == [false; 3] {
            return None;
        }
    }
}

/// Returns the largest value of each column, for scaling: u·(h + u/2) may be a million times u, which is
/// ill-conditioned.
fn scales(rows: &[Row]) -> [f64; 3] {
    let mut scales = [f64::MIN_POSITIVE; 3];
    for row in rows {
        for (scale, x) in scales.iter_mut().zip(&row.x) {
            *scale = scale.max(x.abs());
        }
    }
    scales
}

/// The normal equations of all three columns.
struct Normal {
    left: Matrix3<f64>,
    right: Vector3<f64>,
}

impl Normal {
    fn of(rows: &[Row], weights: &[f64], scales: &[f64; 3]) -> Self {
        let mut left = [[0.0; 3]; 3];
        let mut right = [0.0; 3];
        for (row, weight) in rows.iter().zip(weights) {
            let x = [row.x[0] / scales[0], row.x[1] / scales[1], row.x[2] / scales[2]];
            for i in 0..3 {
                let wx = weight * x[i];
                right[i] += wx * row.y;
                for j in i..3 {
                    left[i][j] += wx * x[j];
                }
            }
        }
        Self {
            left: Matrix3::from_fn(|i, j| left[i.min(j)][i.max(j)]),
            right: Vector3::from(right),
        }
    }

    /// Solves for some of the columns; the others are 0.
    fn solve(&self, columns: Columns) -> Option<Vector3<f64>> {
        let (mut left, mut right) = (self.left, self.right);
        let largest = (0..3).map(|at| left[(at, at)]).fold(0.0, f64::max);
        for (at, fitted) in columns.into_iter().enumerate() {
            if !fitted {
                left.row_mut(at).fill(0.0);
                left.column_mut(at).fill(0.0);
                left[(at, at)] = largest;
                right[at] = 0.0;
            }
        }
        // Columns scaled to unit norm, so that the test for collinearity does not depend on their sizes.
        let unit = Matrix3::from_fn(|i, j| left[(i, j)] / (left[(i, i)] * left[(j, j)]).sqrt());
        let told_apart = unit.determinant();
        if !told_apart.is_finite() || told_apart <= 1e-9 {
            return None;
        }
        left.cholesky().map(|cholesky| cholesky.solve(&right))
    }
}

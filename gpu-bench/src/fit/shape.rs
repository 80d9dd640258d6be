//! Deviations from the model: a floor under small prompts, a change of the slope, cells that are off.
//! - *Floor*: reported if `max(floor, β + α·u + …)`, with the line fitted above a length, explains the samples better
//!   than the line alone by more than chance allows for two more parameters, and the prompts below it take the same
//!   time. The line is then fitted to the longer prompts.
//! - *Break*: one more regressor, `max(0, u − k)`, for each k between measured lengths. It is reported if it is
//!   significant (four standard errors, as many k are tried) and matters (5 % of the longest prompt).
//! - *Straightness*: a fit is rejected, however high its R², if the medians of too many cells deviate from the model by
//!   more than their noise explains.

use nalgebra::{DMatrix, DVector};
use policy::stats::median;
use serde::{Deserialize, Serialize};

use super::robust::{ALL, Robust, robust};
use super::{FEWEST_SAMPLES, Fit, FitError, Row};

/// A length below which all prompts take the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// The time of these prompts in ms.
    pub ms: f64,
    /// Uncached tokens up to which prompts take that time. The fit uses the longer ones.
    pub uncached_tokens: f64,
}

impl Floor {
    pub(super) fn above(&self, rows: &[Row]) -> Vec<Row> {
        rows.iter()
            .filter(|row| row.uncached() > self.uncached_tokens)
            .copied()
            .collect()
    }
}

/// A change of the slope.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Break {
    /// Uncached tokens from which on the second slope applies.
    pub uncached_tokens: f64,
    /// α below the break.
    pub alpha_before_ms_per_token: f64,
    /// α above the break.
    pub alpha_after_ms_per_token: f64,
}

const BEYOND_CHANCE: f64 = 10.0;
/// Largest rise within the floor, as a share of what the slope above it would give.
const MOST_RISE: f64 = 0.35;
const STANDARD_ERRORS: f64 = 4.0;
/// Residuals beyond this many standard deviations have linear weight in the test for a break.
const FAR: f64 = 2.0;
/// Smallest effect of a break on the longest prompt, as a share.
const LEAST_EFFECT: f64 = 0.05;
/// Share of the prediction by which the median of a cell that is off deviates at least.
const CELL_OFF: f64 = 0.25;
const MOST_CELLS_OFF: f64 = 0.25;
const MOST_LENGTHS: usize = 24;

pub(super) fn floor(rows: &[Row]) -> Option<Floor> {
    let plain = robust(rows, ALL)?;
    let between = between_lengths(rows);
    let candidates = between.iter().filter_map(|&length| {
        let (below, above): (Vec<Row>, Vec<Row>) = rows.iter().partition(|row| row.uncached() <= length);
        let enough = below.len() >= FEWEST_SAMPLES / 2
            && above.len() >= FEWEST_SAMPLES
            && below.len() < 2 * above.len();
        let line = enough.then(|| robust(&above, ALL)).flatten()?;
        let ms = median(below.iter().map(|row| row.y));
        let flat = is_flat(&below, &line);
        let loss = |predict: &dyn Fn(&Row) -> f64| -> f64 {
            let sum = |row: &Row| {
                cost_of((row.y - predict(row)).abs() / line.noise.sigma_ms(predict(row)))
                    + line.noise.sigma_ms(predict(row)).ln()
            };
            rows.iter().map(sum).sum()
        };
        let with = loss(&|row| {
            if row.uncached() <= length {
                ms
            } else {
                row.predicted(&line.beta)
            }
        });
        let without = loss(&|row| row.predicted(&plain.beta));
        let higher = median(below.iter().map(|row| row.y - row.predicted(&line.beta))) > 0.0;
        (flat && higher && with + BEYOND_CHANCE < without).then_some((
            with,
            Floor {
                ms,
                uncached_tokens: length,
            },
        ))
    });
    candidates
        .min_by(|one, two| one.0.total_cmp(&two.0))
        .map(|(_, floor)| floor)
}

/// Returns whether the longer half of the short prompts takes as long as the shorter, where the line has a slope.
fn is_flat(below: &[Row], line: &Robust) -> bool {
    let middle = median(below.iter().map(Row::uncached));
    let (short, long): (Vec<&Row>, Vec<&Row>) = below.iter().partition(|row| row.uncached() < middle);
    if short.is_empty() || long.is_empty() {
        return false;
    }
    let of = |rows: &[&Row], value: &dyn Fn(&Row) -> f64| median(rows.iter().map(|row| value(row)));
    let rise = of(&long, &|row| row.y) - of(&short, &|row| row.y);
    let expected = of(&long, &|row| row.predicted(&line.beta)) - of(&short, &|row| row.predicted(&line.beta));
    expected > 0.0 && rise < MOST_RISE * expected
}

pub(super) fn bend(rows: &[Row], robust: &Robust) -> Option<Break> {
    let longest = rows.iter().map(Row::uncached).fold(0.0, f64::max);
    let of_longest = rows
        .iter()
        .filter(|row| row.uncached() >= 0.9 * longest)
        .map(|row| row.predicted(&robust.beta));
    let typical = median(of_longest);
    let between = between_lengths(rows);
    // A break after the last but one length, or before the second, would only follow the noise of one length.
    let inner = between
        .get(1..between.len().saturating_sub(1))
        .unwrap_or_default();
    let hinges = inner
        .iter()
        .filter_map(|&at| hinge(rows, robust, at).map(|(beta, errors)| (at, beta, errors)));
    let (at, beta, _) = hinges
        .filter(|(at, beta, errors)| {
            errors.abs() > STANDARD_ERRORS && (beta[3] * (longest - at)).abs() > LEAST_EFFECT * typical
        })
        .max_by(|one, two| one.2.abs().total_cmp(&two.2.abs()))?;
    Some(Break {
        uncached_tokens: at,
        alpha_before_ms_per_token: beta[1],
        alpha_after_ms_per_token: beta[1] + beta[3],
    })
}

/// Fits the coefficients with a break at `at`. Returns them with the significance of the break in standard errors.
fn hinge(rows: &[Row], robust: &Robust, at: f64) -> Option<([f64; 4], f64)> {
    let columns = |row: &Row| [row.x[0], row.x[1], row.x[2], (row.uncached() - at).max(0.0)];
    let mut scales = [f64::MIN_POSITIVE; 4];
    for row in rows {
        scales
            .iter_mut()
            .zip(columns(row))
            .for_each(|(scale, x)| *scale = scale.max(x.abs()));
    }
    let mut normal = DMatrix::<f64>::zeros(4, 4);
    let mut right = DVector::<f64>::zeros(4);
    // Samples beyond a break look like outliers to the line, so they keep a reduced weight here.
    let weigh = |row: &Row| {
        let sigma = robust.noise.sigma_ms(row.predicted(&robust.beta));
        let z = row.residual(&robust.beta).abs() / sigma;
        (FAR / z).min(1.0) / (sigma * sigma)
    };
    for row in rows {
        let (x, weight) = (columns(row), weigh(row));
        for i in 0..4 {
            right[i] += weight * x[i] / scales[i] * row.y;
            for j in 0..4 {
                normal[(i, j)] += weight * x[i] / scales[i] * x[j] / scales[j];
            }
        }
    }
    let inverse = normal.try_inverse()?;
    let solved = &inverse * right;
    let beta = [0, 1, 2, 3].map(|column| solved[column] / scales[column]);
    let left = |row: &Row| row.y - columns(row).iter().zip(&beta).map(|(x, b)| x * b).sum::<f64>();
    let spread: f64 = rows.iter().map(|row| weigh(row) * left(row).powi(2)).sum();
    let freedom = (rows.len() as f64 - 4.0).max(1.0);
    let error = (inverse[(3, 3)].max(0.0) * spread / freedom).sqrt();
    let errors = solved[3] / error;
    errors.is_finite().then_some((beta, errors))
}

/// Checks that the cells' medians lie on the model.
pub(super) fn straight(rows: &[Row], fit: &Fit) -> Result<(), FitError> {
    let beta = fit.coefficients();
    let floor = fit.floor.map_or(0.0, |floor| floor.ms);
    let predict = |row: &Row| row.predicted(&beta).max(floor);
    let lengths = clusters(rows.iter().map(Row::uncached));
    let histories = clusters(rows.iter().map(|row| row.cached));
    let mut cells: std::collections::BTreeMap<(usize, usize), Vec<&Row>> = std::collections::BTreeMap::new();
    for row in rows {
        let within = |starts: &[f64], value: f64| starts.partition_point(|start| *start <= value);
        cells
            .entry((within(&histories, row.cached), within(&lengths, row.uncached())))
            .or_default()
            .push(row);
    }
    let counted: Vec<&Vec<&Row>> = cells.values().filter(|cell| cell.len() >= 3).collect();
    let shares = |cell: &Vec<&Row>| {
        cell.iter()
            .map(|row| (row.y - predict(row)) / predict(row).max(1e-9))
            .collect::<Vec<f64>>()
    };
    // The spread within cells, because the spread around the model includes the model's own errors.
    let within = median(counted.iter().map(|cell| {
        let middle = median(shares(cell));
        1.4826 * median(shares(cell).into_iter().map(|share| (share - middle).abs()))
    }));
    let off = |cell: &&Vec<&Row>| {
        let share = median(shares(cell)).abs();
        // The standard error of a median is 1.25 σ/√n.
        (share > CELL_OFF.max(4.0 * 1.25 * within / (cell.len() as f64).sqrt())).then_some(share)
    };
    let wrong: Vec<(f64, &Vec<&Row>)> = counted
        .iter()
        .filter_map(|cell| Some((off(cell)?, *cell)))
        .collect();
    let worst = wrong.iter().max_by(|one, two| one.0.total_cmp(&two.0));
    match worst {
        Some((_, cell)) if wrong.len() as f64 > MOST_CELLS_OFF * counted.len() as f64 => {
            Err(FitError::Crooked {
                off: wrong.len(),
                cells: counted.len(),
                cached: median(cell.iter().map(|row| row.cached)) as u64,
                uncached: median(cell.iter().map(|row| row.uncached())) as u64,
                measured: median(cell.iter().map(|row| row.y)),
                predicted: median(cell.iter().map(|row| predict(row))),
            })
        }
        _ => Ok(()),
    }
}

/// Returns the starts of groups of nearly equal values: measured counts differ from requested ones by a block or two.
fn clusters(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let mut starts: Vec<f64> = Vec::new();
    for value in values {
        if starts.last().is_none_or(|start| value > 1.25 * start + 16.0) {
            starts.push(value);
        }
    }
    starts
}

/// Returns the lengths between groups: the last value of each group but the last.
fn between_lengths(rows: &[Row]) -> Vec<f64> {
    let starts = clusters(rows.iter().map(Row::uncached));
    let last_below = |next: &f64| {
        rows.iter()
            .map(Row::uncached)
            .filter(|length| length < next)
            .fold(0.0, f64::max)
    };
    starts.iter().skip(1).take(MOST_LENGTHS).map(last_below).collect()
}

fn cost_of(z: f64) -> f64 {
    z.min(4.0).powi(2) / 2.0
}

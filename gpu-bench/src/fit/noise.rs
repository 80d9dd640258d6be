//! The growth of the noise with the predicted time t: `σ(t) = √(constant² + (share·t)²)`. Timers and schedulers add the
//! same to every prefill; clocks and memory that change speed add a share of it. The ratio of the two is the likeliest
//! of a coarse grid: neighbouring ratios differ by a factor of about three, and an error of half a step costs the fit at
//! most a tenth of its efficiency. The size comes from the median absolute residual, which a few stalls do not move.

use policy::stats::median;
use serde::{Deserialize, Serialize};

use super::Row;

/// The standard deviation around the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// The part that all prefills share, in ms.
    pub constant_ms: f64,
    /// The part that grows with the time, as a share of it.
    pub share: f64,
}

/// Degrees of freedom of the t distribution of residuals; its tails are heavy enough for a few stalls.
const FREEDOM: f64 = 4.0;
/// Ratios of constant to proportional noise at the median time.
const RATIOS: [f64; 8] = [0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, f64::INFINITY];

impl Noise {
    /// Returns the standard deviation at a predicted time.
    pub fn sigma_ms(&self, predicted_ms: f64) -> f64 {
        // The floors avoid a division by zero: samples may have no noise, and a prediction may be 0.
        self.constant_ms
            .hypot(self.share * predicted_ms)
            .max(1e-9 * predicted_ms.abs())
            .max(1e-12)
    }

    pub(super) fn around(rows: &[Row], beta: &[f64; 3]) -> Self {
        let pairs: Vec<(f64, f64)> = rows
            .iter()
            .map(|row| (row.predicted(beta), row.residual(beta)))
            .collect();
        Self::of(&pairs)
    }

    /// Estimates the noise from (predicted, residual) pairs.
    fn of(pairs: &[(f64, f64)]) -> Self {
        let typical = median(pairs.iter().map(|(predicted, _)| predicted.abs())).max(1e-9);
        let candidate = |ratio: f64| {
            let shape = if ratio.is_finite() {
                Self {
                    constant_ms: ratio * typical,
                    share: 1.0,
                }
            } else {
                Self {
                    constant_ms: 1.0,
                    share: 0.0,
                }
            };
            let scaled = pairs
                .iter()
                .map(|(predicted, residual)| residual.abs() / shape.sigma_ms(*predicted));
            // 1.4826 scales the median absolute residual to the standard deviation of a normal distribution.
            let scale = 1.4826 * median(scaled);
            let noise = Self {
                constant_ms: shape.constant_ms * scale,
                share: shape.share * scale,
            };
            let unlikely = |(predicted, residual): &(f64, f64)| {
                let sigma = noise.sigma_ms(*predicted);
                sigma.ln() + (FREEDOM + 1.0) / 2.0 * ((residual / sigma).powi(2) / FREEDOM).ln_1p()
            };
            (pairs.iter().map(unlikely).sum::<f64>(), noise)
        };
        let best = RATIOS
            .into_iter()
            .map(candidate)
            .min_by(|one, two| one.0.total_cmp(&two.0));
        best.map_or(
            Self {
                constant_ms: 1.0,
                share: 0.0,
            },
            |(_, noise)| noise,
        )
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand_distr::{Distribution as _, StandardNormal};

    use super::*;

    fn found(sigma: impl Fn(f64) -> f64) -> Noise {
        let mut rng = rand_pcg::Pcg64::seed_from_u64(5);
        let pairs: Vec<(f64, f64)> = (0..400)
            .map(|at| {
                let predicted = 10.0 * 1.7_f64.powi(at % 10);
                let normal: f64 = StandardNormal.sample(&mut rng);
                (predicted, normal * sigma(predicted))
            })
            .collect();
        Noise::of(&pairs)
    }

    #[test]
    fn proportional_and_constant_noise_are_distinguished() {
        let share = found(|predicted| 0.1 * predicted);
        assert!(
            (share.share - 0.1).abs() < 0.02 && share.constant_ms < 3.0,
            "{share:?}"
        );
        let constant = found(|_| 8.0);
        assert!(
            constant.share < 0.02 && (constant.sigma_ms(10.0) - 8.0).abs() < 1.5,
            "{constant:?}"
        );
    }
}

//! Percentiles by linear interpolation between order statistics, as in most tools.

/// Samples in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    /// Sorts the samples. NaNs go last.
    pub fn new(mut samples: Vec<f64>) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        Self(samples)
    }

    /// Returns the `p`-th percentile, `p` from 0 to 100: position `(n − 1)·p/100`, interpolated. 0 without samples.
    pub fn percentile(&self, p: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else {
            return 0.0;
        };
        let position = last as f64 * p.clamp(0.0, 100.0) / 100.0;
        let below = position.floor() as usize;
        let (low, high) = (self.0[below], self.0[(below + 1).min(last)]);
        low + (high - low) * (position - below as f64)
    }

    /// Returns the number of samples above `limit`.
    pub fn above(&self, limit: f64) -> usize {
        self.0.len() - self.0.partition_point(|sample| *sample <= limit)
    }
}

/// Returns the mean and the sample standard deviation; the latter is 0 for fewer than two samples.
pub fn mean_and_spread(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    if samples.is_empty() {
        return (0.0, 0.0);
    }
    let mean = samples.iter().sum::<f64>() / n;
    if samples.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate_linearly() {
        let sorted = Sorted::new(vec![40.0, 10.0, 30.0, 20.0]);
        assert_eq!(sorted.percentile(0.0), 10.0);
        assert_eq!(sorted.percentile(50.0), 25.0);
        assert!((sorted.percentile(90.0) - 37.0).abs() < 1e-12);
        assert_eq!(sorted.percentile(100.0), 40.0);
        assert_eq!(Sorted::new(Vec::new()).percentile(50.0), 0.0);
    }

    #[test]
    fn only_what_exceeds_a_limit_violates_it() {
        assert_eq!(Sorted::new(vec![1.0, 2.0, 2.0, 3.0]).above(2.0), 1);
    }

    #[test]
    fn spread_is_the_sample_deviation() {
        assert_eq!(mean_and_spread(&[1.0, 3.0]), (2.0, 2.0f64.sqrt()));
        assert_eq!(mean_and_spread(&[7.0]), (7.0, 0.0));
    }
}

//! Order statistics. [`Sorted::percentile`] and [`median`] interpolate linearly between the two nearest values, as most
//! tools do. [`lower_median`] and [`upper_median`] differ from them for an even number of values: they are the lower and
//! the upper of the middle two.

/// Samples in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    /// Sorts the samples. NaNs go last.
    pub fn new(mut samples: Vec<f64>) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        Self(samples)
    }

    /// Returns the samples.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Returns the `p`-th percentile, `p` from 0 to 100: position `(n − 1)·p/100`, interpolated. 0 without samples.
    pub fn percentile(&self, p: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else {
            return 0.0;
        };
        let position = last as f64 * p.clamp(0.0, 100.0) / 100.0;
        let (below, above) = (position.floor() as usize, position.ceil() as usize);
        let (low, high) = (self.0[below], self.0[above]);
        low + (high - low) * (position - below as f64)
    }

    /// Returns the number of samples above `limit`.
    pub fn above(&self, limit: f64) -> usize {
        self.0.len() - self.0.partition_point(|sample| *sample <= limit)
    }
}

/// Returns the median: of an even number of values, the mean of the middle two. 0 without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Sorted::new(values.into_iter().collect()).percentile(50.0)
}

/// Returns the median value: of an even number, the lower of the middle two. `None` without values.
pub fn lower_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let sorted = Sorted::new(values.into_iter().collect());
    sorted.0.get(sorted.0.len().saturating_sub(1) / 2).copied()
}

/// Returns the median value: of an even number, the upper of the middle two. `None` without values.
pub fn upper_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let sorted = Sorted::new(values.into_iter().collect());
    sorted.0.get(sorted.0.len() / 2).copied()
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
    fn medians_differ_in_an_even_number_of_values() {
        let of = |values: &[f64]| {
            let values = || values.iter().copied();
            (lower_median(values()), median(values()), upper_median(values()))
        };
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), (Some(2.0), 2.5, Some(3.0)));
        assert_eq!(of(&[5.0, 1.0, 2.0]), (Some(2.0), 2.0, Some(2.0)));
        assert_eq!(of(&[]), (None, 0.0, None));
    }

    #[test]
    fn only_what_exceeds_a_limit_violates_it() {
        assert_eq!(Sorted::new(vec![1.0, 2.0, 2.0, 3.0]).above(2.0), 1);
    }
}

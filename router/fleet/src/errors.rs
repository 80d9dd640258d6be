//! Recent errors of a worker's predicted times to first token.

use policy::units::Millis;

/// Number of first tokens whose errors are kept.
const KEPT: usize = 256;

/// Ring of the last differences between actual and predicted times, in milliseconds.
#[derive(Debug)]
pub struct Errors {
    kept: Box<[f32; KEPT]>,
    seen: usize,
}

impl Default for Errors {
    fn default() -> Self {
        Self {
            kept: Box::new([0.0; KEPT]),
            seen: 0,
        }
    }
}

impl Errors {
    /// Adds the error of a first token: positive if it was later than predicted.
    pub fn push(&mut self, error: Millis) {
        self.kept[self.seen % KEPT] = error.0 as f32;
        self.seen += 1;
    }

    /// Returns the 10th, 50th and 90th percentile with their label values; `None` before the first sample.
    #[must_use]
    pub fn percentiles(&self) -> Option<[(&'static str, Millis); 3]> {
        let mut kept = self.kept[..self.seen.min(KEPT)].to_vec();
        let last = kept.len().checked_sub(1)?;
        kept.sort_unstable_by(f32::total_cmp);
        let at = |share: f64| Millis(f64::from(kept[(share * last as f64).round() as usize]));
        Some([("10", at(0.1)), ("50", at(0.5)), ("90", at(0.9))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_ones_count() {
        let mut errors = Errors::default();
        assert_eq!(errors.percentiles(), None);
        for _ in 0..KEPT {
            errors.push(Millis(1e6));
        }
        for error in 0..KEPT {
            errors.push(Millis(error as f64 - 100.0));
        }
        let found = errors.percentiles().unwrap().map(|(_, error)| error.0);
        assert_eq!(found, [-74.0, 28.0, 130.0]);
    }
}

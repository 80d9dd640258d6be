//! How far off a worker's predicted times to first token were of late.

use policy::units::Millis;

/// First tokens that are remembered.
const KEPT: usize = 256;

/// Differences between actual and predicted times, in milliseconds: the last so many.
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
    /// A first token came so much later than predicted; below zero, earlier.
    pub fn push(&mut self, error: Millis) {
        self.kept[self.seen % KEPT] = error.0 as f32;
        self.seen += 1;
    }

    /// The tenth, fiftieth and ninetieth percentile, as labels name them; `None` before the first.
    #[must_use]
    pub fn quantiles(&self) -> Option<[(&'static str, Millis); 3]> {
        let mut kept = self.kept[..self.seen.min(KEPT)].to_vec();
        let last = kept.len().checked_sub(1)?;
        kept.sort_unstable_by(f32::total_cmp);
        let at = |share: f64| Millis(f64::from(kept[(share * last as f64).round() as usize]));
        Some([("0.1", at(0.1)), ("0.5", at(0.5)), ("0.9", at(0.9))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_ones_count() {
        let mut errors = Errors::default();
        assert_eq!(errors.quantiles(), None);
        for _ in 0..KEPT {
            errors.push(Millis(1e6));
        }
        for error in 0..KEPT {
            errors.push(Millis(error as f64 - 100.0));
        }
        let found = errors.quantiles().unwrap().map(|(_, error)| error.0);
        assert_eq!(found, [-74.0, 28.0, 130.0]);
    }
}

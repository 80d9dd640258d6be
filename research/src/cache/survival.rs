//! The distribution of the next prompt's length: `P(Q ≥ z)` as a step function. Between two steps all tokens of a
//! conversation have the same value and are evicted together. A learned distribution has one step per bin of a
//! histogram whose bins widen by a quarter each: 60 bins from one token to a million.

/// A non-increasing step function from 1 to 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Survival {
    /// Positions of the steps, ascending, without duplicates.
    edges: Vec<f64>,
    /// `P(Q ≥ z)` for `z` in `(edges[k − 1], edges[k]]`.
    values: Vec<f64>,
}

impl Survival {
    /// Returns the distribution of a known length.
    pub fn constant(tokens: f64) -> Self {
        Self {
            edges: vec![tokens],
            values: vec![1.0],
        }
    }

    /// Returns the distribution of a sample. Without samples, the length is zero.
    pub fn from_samples(samples: &[u64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let mut survival = Self {
            edges: Vec::new(),
            values: Vec::new(),
        };
        for (at, &tokens) in sorted.iter().enumerate() {
            if at == 0 || sorted[at - 1] != tokens {
                survival.edges.push(tokens as f64);
                survival
                    .values
                    .push((sorted.len() - at) as f64 / sorted.len() as f64);
            }
        }
        if survival.edges.is_empty() {
            Self::constant(0.0)
        } else {
            survival
        }
    }

    /// Returns `P(Q ≥ z)`, and the `z` below which it is greater, if there is one.
    pub fn level(&self, z: f64) -> (f64, Option<f64>) {
        let at = self.edges.partition_point(|edge| *edge < z);
        let value = self.values.get(at).copied().unwrap_or(0.0);
        (value, at.checked_sub(1).map(|below| self.edges[below]))
    }
}

/// Ratio of a bin's end to its beginning.
const GROWTH: f64 = 1.25;
const BINS: usize = 62;

const REFRESH: u32 = 256;

/// Share of the counts that the histogram keeps at each refresh: a memory of some 5,000 turns.
const KEEP: f64 = 0.95;

#[derive(Clone, Debug)]
pub(super) struct LearnedSurvival {
    counts: [f64; BINS],
    since: u32,
    looks: u32,
    current: Survival,
}

impl LearnedSurvival {
    pub(super) fn new(expected: f64) -> Self {
        Self {
            counts: [0.0; BINS],
            since: 0,
            looks: 0,
            current: Survival::constant(expected),
        }
    }

    pub(super) fn current(&self) -> &Survival {
        &self.current
    }

    pub(super) fn observe(&mut self, tokens: u64) {
        let bin = (tokens as f64).max(1.0).ln() / GROWTH.ln();
        self.counts[(bin as usize).min(BINS - 1)] += 1.0;
        self.since += 1;
        // Early refreshes are frequent, since the initial expectation is a guess.
        let due = if self.looks < 4 { 32 << self.looks } else { REFRESH };
        if self.since >= due {
            self.look();
        }
    }

    fn look(&mut self) {
        self.since = 0;
        self.looks += 1;
        let total: f64 = self.counts.iter().sum();
        let mut left = total;
        let (mut edges, mut values) = (Vec::with_capacity(BINS), Vec::with_capacity(BINS));
        for (bin, count) in self.counts.iter().enumerate() {
            if *count > 0.0 {
                // A bin's prompts count as its geometric middle.
                edges.push(GROWTH.powf(bin as f64 + 0.5));
                values.push(left / total);
                left -= count;
            }
        }
        self.current = Survival { edges, values };
        if self.looks > 8 {
            self.counts.iter_mut().for_each(|count| *count *= KEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_probabilities_and_say_where_they_change() {
        let survival = Survival::from_samples(&[10, 20, 20, 40]);
        assert_eq!(survival.level(-5.0), (1.0, None));
        assert_eq!(survival.level(10.0), (1.0, None));
        assert_eq!(survival.level(10.5), (0.75, Some(10.0)));
        assert_eq!(survival.level(40.0), (0.25, Some(20.0)));
        assert_eq!(survival.level(41.0), (0.0, Some(40.0)));
        assert_eq!(Survival::constant(5.0).level(6.0), (0.0, Some(5.0)));
    }

    #[test]
    fn learning_converges_to_the_sample_within_a_bin() {
        let mut learned = LearnedSurvival::new(50.0);
        assert_eq!(learned.current().level(60.0).0, 0.0);
        for at in 0..20_000u64 {
            learned.observe(if at % 4 == 0 { 1000 } else { 10 });
        }
        assert!((learned.current().level(100.0).0 - 0.25).abs() < 0.02);
        assert_eq!(learned.current().level(2000.0).0, 0.0);
    }
}

//! The time to first token beyond queue and prefill: HTTP on both sides, tokenizing, and the engine's hand-over.
//!
//! An engine that reports its own times excludes this overhead, and so does a β learned from them. It takes no time of
//! the prefill server, so it is part of every time to first token, but not of the pending work. It hardly grows with
//! the prompt, so it is a decaying mean of samples, clipped at [`CUT`] times the mean against network stalls.

use serde::{Deserialize, Serialize};

use super::Doubt;
use super::conversations::Mean;
use crate::units::Millis;

const CUT: f64 = 4.0;
/// Lower bound on the clipping threshold, so that a mean near zero can grow.
const LEAST_CUT_MS: f64 = 5.0;

/// The mean overhead of one worker's first tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    mean: Mean,
    seen: u64,
}

impl Overhead {
    /// Adds a first token's time beyond what its engine reported; negative times count as zero. `doubt` is that of the
    /// mean.
    pub fn observe(&mut self, doubt: Doubt, beside: Millis) {
        if !beside.0.is_finite() {
            return;
        }
        self.mean.widen(doubt.widens(self.mean.value(), 0.0));
        let most = (CUT * self.mean.value()).max(LEAST_CUT_MS);
        self.mean.observe(beside.0.clamp(0.0, most));
        self.seen += 1;
    }

    /// Returns whether observations can have led to these numbers, which another process wrote.
    pub fn is_sound(&self) -> bool {
        self.mean.is_sound()
    }

    /// Returns the expected overhead; zero before the first sample.
    pub fn expected(&self) -> Millis {
        Millis(self.mean.value())
    }

    /// Returns the number of samples.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(samples: impl IntoIterator<Item = f64>) -> Overhead {
        let mut overhead = Overhead::default();
        for sample in samples {
            overhead.observe(Doubt::NONE, Millis(sample));
        }
        overhead
    }

    #[test]
    fn what_was_never_seen_is_nothing() {
        assert_eq!(Overhead::default().expected(), Millis::ZERO);
    }

    #[test]
    fn it_is_the_mean_of_what_was_seen() {
        let overhead = after((0..100).map(|at| if at % 2 == 0 { 3.0 } else { 5.0 }));
        assert!((overhead.expected().0 - 4.0).abs() < 0.1, "{overhead:?}");
    }

    #[test]
    fn it_follows_a_network_that_has_become_slower() {
        let overhead = after(std::iter::repeat_n(2.0, 500).chain(std::iter::repeat_n(40.0, 2000)));
        assert!((overhead.expected().0 - 40.0).abs() < 2.0, "{overhead:?}");
    }

    #[test]
    fn after_a_long_silence_a_few_samples_are_believed_and_none_moves_nothing() {
        let mut overhead = after((0..500).map(|at| f64::from(400 + at % 9)));
        let before = overhead.expected();
        overhead.observe(Doubt::after(Millis(600_000.0), Millis(60_000.0)), before);
        assert!((overhead.expected().0 - before.0).abs() < 1e-6);
        let mut overhead = after((0..500).map(|at| f64::from(400 + at % 9)));
        for idle in [600_000.0, 300_000.0, 150_000.0] {
            overhead.observe(Doubt::after(Millis(idle), Millis(60_000.0)), Millis(4.0));
        }
        assert!((overhead.expected().0 - 4.0).abs() < 1.0, "{overhead:?}");
    }

    #[test]
    fn a_stall_counts_as_four_times_the_mean_at_most() {
        let before = after(std::iter::repeat_n(4.0, 99));
        let mut with_stall = before;
        with_stall.observe(Doubt::NONE, Millis(60_000.0));
        assert!(
            with_stall.expected().0 <= 4.0 + 3.0 * 4.0 / 100.0 + 1e-9,
            "{with_stall:?}"
        );
    }

    proptest! {
        #[test]
        fn whatever_comes_it_stays_finite_and_not_below_zero(samples in prop::collection::vec(any::<f64>(), 0..200)) {
            let expected = after(samples).expected().0;
            prop_assert!(expected.is_finite() && expected >= 0.0);
        }
    }
}

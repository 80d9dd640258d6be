//! Habits of a class of traffic: the lengths of prompts and responses, and whether conversations return.
//!
//! - *Lengths*: exponentially weighted mean and mean absolute deviation, which is exported as the error.
//! - *Return*: that a turn was the last shows only by silence, so returns and exposure are counted. The hazard is
//!   `returns / exposed time`, the maximum-likelihood rate of an exponential gap under censoring. By Bayes, a
//!   conversation silent for `t` is over with probability
//!
//! ```text
//! P(over | silent t) = (1 − p) / (1 − p + p·e^{−t/g}),    p = share of turns followed by another, g = mean gap
//! ```
//!
//! `p` counts a turn as the last after eight mean gaps of silence. The error of this belief is measured at the outcome.

use serde::{Deserialize, Serialize};

use crate::units::{Millis, Tokens};

/// Time constant of a mean, in turns.
const MEMORY: f64 = 500.0;
const SILENCE: f64 = 8.0;
const PRIOR_TURNS: f64 = 10.0;
/// Largest number that a restored mean may have.
const MOST: f64 = 1e15;

/// A decaying mean with its mean absolute error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    value: f64,
    error: f64,
    seen: f64,
}

impl Mean {
    /// Creates a mean from a guess worth `weight` samples.
    pub fn new(guess: f64, weight: f64) -> Self {
        Self {
            value: guess,
            error: 0.0,
            seen: weight,
        }
    }

    /// Returns whether observations can have led to these numbers, which another process wrote.
    pub(super) fn is_sound(&self) -> bool {
        let sound = |number: f64| (0.0..=MOST).contains(&number);
        sound(self.value) && sound(self.error) && (0.0..=MEMORY).contains(&self.seen)
    }

    /// Adds a sample; non-finite ones are ignored.
    pub fn observe(&mut self, sample: f64) {
        if sample.is_finite() {
            self.seen = (self.seen + 1.0).min(MEMORY);
            self.error += ((sample - self.value).abs() - self.error) / self.seen;
            self.value += (sample - self.value) / self.seen;
        }
    }

    /// Widens the error by `error`: past samples count for less, and the mean does not move.
    pub(super) fn widen(&mut self, error: f64) {
        let off = error / self.error.max(f64::MIN_POSITIVE);
        if off > 0.0 && self.seen > 0.0 {
            self.seen = 1.0 / (1.0 / self.seen + off * off);
        }
    }

    /// Returns the mean.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Returns the mean absolute error of predicting the mean.
    pub fn error(&self) -> f64 {
        self.error
    }
}

/// The habits of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Habits {
    next_prompt: Mean,
    response: Mean,
    gap_ms: Mean,
    /// |belief that the conversation was over − whether it was|, at the time of the outcome.
    over: Mean,
    followed: f64,
    turns: f64,
}

impl Habits {
    /// Creates habits from guesses worth ten turns: Q̂, a response length, a mean gap, and even odds of a return.
    pub fn new(next_prompt: Tokens, response: Tokens, gap: Millis) -> Self {
        Self {
            next_prompt: Mean::new(next_prompt.as_f64(), PRIOR_TURNS),
            response: Mean::new(response.as_f64(), PRIOR_TURNS),
            gap_ms: Mean::new(gap.0.max(1.0), PRIOR_TURNS),
            over: Mean::default(),
            followed: PRIOR_TURNS / 2.0,
            turns: PRIOR_TURNS,
        }
    }

    /// Returns whether observations can have led to these numbers, which another process wrote.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let means = [self.next_prompt, self.response, self.gap_ms, self.over];
        means.iter().all(Mean::is_sound)
            && (1.0..=2.0 * MEMORY).contains(&self.turns)
            && (0.0..=self.turns).contains(&self.followed)
    }

    /// Records a return after `gap` with a prompt that added `prompt` tokens.
    pub fn returned(&mut self, gap: Millis, prompt: Tokens) {
        self.over.observe(self.over(gap));
        self.next_prompt.observe(prompt.as_f64());
        self.gap_ms.observe(gap.0.max(0.0));
        self.count(1.0);
    }

    /// Records a turn that was the last: its conversation has been silent past [`Self::patience`].
    pub fn ended(&mut self) {
        self.over.observe(1.0 - self.over(Millis::ZERO));
        self.count(0.0);
    }

    /// Records the length of a response.
    pub fn answered(&mut self, response: Tokens) {
        self.response.observe(response.as_f64());
    }

    fn count(&mut self, followed: f64) {
        let keep = if self.turns >= MEMORY {
            1.0 - 1.0 / MEMORY
        } else {
            1.0
        };
        self.followed = self.followed * keep + followed;
        self.turns = self.turns * keep + 1.0;
    }

    /// Returns the silence after which a turn counts as the last.
    pub fn patience(&self) -> Millis {
        Millis(SILENCE * self.gap_ms.value())
    }

    /// Returns Q̂ and its error, in tokens.
    #[must_use]
    pub fn next_prompt(&self) -> (Tokens, f64) {
        (
            Tokens(self.next_prompt.value().max(0.0).round() as u64),
            self.next_prompt.error(),
        )
    }

    /// Returns the expected response length and its error, in tokens.
    pub fn response(&self) -> (Tokens, f64) {
        (
            Tokens(self.response.value().max(0.0).round() as u64),
            self.response.error(),
        )
    }

    /// Returns the share of turns followed by another, and its standard error.
    pub fn return_share(&self) -> (f64, f64) {
        let p = self.followed / self.turns;
        (p, (p * (1.0 - p) / self.turns).sqrt())
    }

    /// Returns the probability that a conversation silent for this long is over.
    pub fn over(&self, silent: Millis) -> f64 {
        let (p, _) = self.return_share();
        let alive = p * (-silent.0.max(0.0) / self.gap_ms.value().max(1.0)).exp();
        (1.0 - p) / (1.0 - p + alive).max(f64::MIN_POSITIVE)
    }

    /// Returns the mean gap between a response and the next turn, and its error.
    pub fn gap(&self) -> (Millis, Millis) {
        (Millis(self.gap_ms.value()), Millis(self.gap_ms.error()))
    }

    /// Returns the mean error of the belief that a conversation was over, at the outcome; 0.5 is no better than chance.
    pub fn over_error(&self) -> f64 {
        self.over.value()
    }

    /// Returns the turns with a known outcome, decayed.
    pub fn turns(&self) -> f64 {
        self.turns - PRIOR_TURNS
    }

    /// Returns the hazard of return per millisecond of a conversation silent for this long.
    pub fn hazard(&self, silent: Millis) -> f64 {
        (1.0 - self.over(silent)) / self.gap_ms.value().max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn habits() -> Habits {
        Habits::new(Tokens(200), Tokens(300), Millis(60_000.0))
    }

    #[test]
    fn it_learns_lengths_with_their_errors() {
        let mut class = habits();
        for i in 0..2000u64 {
            class.returned(Millis(10_000.0), Tokens(500 + i % 2 * 200));
            class.answered(Tokens(80));
        }
        let (next, error) = class.next_prompt();
        assert!((595..=605).contains(&next.0), "{next}");
        assert!((error - 100.0).abs() < 5.0, "{error}");
        assert_eq!(class.response().0, Tokens(80));
    }

    #[test]
    fn silence_is_evidence_that_it_is_over() {
        let mut class = habits();
        for i in 0..1000 {
            if i % 4 == 0 {
                class.ended();
            } else {
                class.returned(Millis(10_000.0), Tokens(10));
            }
        }
        let (share, error) = class.return_share();
        assert!((share - 0.75).abs() < 0.02 && error < 0.03, "{share} {error}");
        let over: Vec<f64> = [0.0, 10_000.0, 40_000.0, 1e9]
            .map(|t| class.over(Millis(t)))
            .into();
        assert!((over[0] - 0.25).abs() < 0.02 && over[3] > 0.999, "{over:?}");
        assert!(over.is_sorted());
        assert!(class.hazard(Millis(0.0)) > class.hazard(Millis(50_000.0)));
        assert!(class.over_error() < 0.6 && class.turns() > 100.0);
    }

    #[test]
    fn a_change_of_traffic_is_followed() {
        let mut class = habits();
        (0..3000).for_each(|_| class.returned(Millis(1000.0), Tokens(100)));
        (0..2500).for_each(|_| class.returned(Millis(1000.0), Tokens(900)));
        assert!(class.next_prompt().0.0 > 880);
    }
}

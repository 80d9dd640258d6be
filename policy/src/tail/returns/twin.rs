//! Formulas of the module above that only tests evaluate.

use super::{Class, Millis, Returns, bin, edge};

impl Returns {
    /// Returns P(returns within τ | silent for `age`).
    pub(in crate::tail) fn probability(&self, class: Class, age: Millis) -> f64 {
        let at = bin(age);
        let share = self.share[class.index()];
        (share * self.within[at].0 / (1.0 - share * self.before(at))).clamp(0.0, 1.0)
    }

    /// Returns G and its definition evaluated in 20,000 steps, for a conversation at the lower edge of its bin.
    pub(in crate::tail) fn rate_and_twin(&self, class: Class, age: Millis, horizon: f64) -> (f64, f64) {
        let at = bin(age);
        let begin = if at == 0 { 0.0 } else { edge(at - 1) };
        let share = self.share[class.index()];
        let steps = 20_000;
        let step = horizon / f64::from(steps);
        let stays = |time: f64| 1.0 - share * self.at(time).0;
        let returns = stays(begin) - stays(begin + horizon);
        let room: f64 = (0..steps)
            .map(|at| stays(begin + (f64::from(at) + 0.5) * step) * step)
            .sum();
        (self.rate(class, age), returns / room)
    }
}

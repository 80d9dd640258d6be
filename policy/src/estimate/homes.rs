//! Counts, for each worker, the conversations whose home it is.
//!
//! A conversation's home is the worker of its last turn. Its end is not announced, so its weight decays: `e^{−t/τ}`
//! after `t` without a turn. The counts are only compared with each other, so they are stored without decay: a turn at
//! `t` adds `e^{(t − base)/τ}`, and all counts are rescaled together from time to time.

use crate::ids::WorkerId;
use crate::units::Millis;

/// Multiple of τ above the base at which the counts are rescaled.
const REBASE: f64 = 64.0;

/// The worker and time of a conversation's last turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastTurn {
    /// Worker that served the turn.
    pub worker: WorkerId,
    /// Time of the turn's first token.
    pub at: Millis,
}

/// The conversation counts of all workers, by slot.
#[derive(Clone, Debug)]
pub struct ConversationCounts {
    tau: Millis,
    base: Millis,
    counts: Vec<f64>,
}

impl ConversationCounts {
    /// Creates empty counts with time constant `tau` (at least one millisecond).
    pub fn new(tau: Millis) -> Self {
        Self {
            tau: tau.max(Millis(1.0)),
            base: Millis::ZERO,
            counts: Vec::new(),
        }
    }

    /// Records a turn that `worker` has begun to answer. `last` is the conversation's home before it, if any.
    pub fn placed(&mut self, now: Millis, worker: WorkerId, last: Option<LastTurn>) {
        if (now.0 - self.base.0) > REBASE * self.tau.0 {
            let by = self.weight(now);
            self.counts.iter_mut().for_each(|count| *count /= by);
            self.base = now;
        }
        if let Some(last) = last {
            let left = self.weight(last.at);
            if let Some(count) = self.counts.get_mut(last.worker.index()) {
                *count = (*count - left).max(0.0);
            }
        }
        if self.counts.len() <= worker.index() {
            self.counts.resize(worker.index() + 1, 0.0);
        }
        self.counts[worker.index()] += self.weight(now);
    }

    /// Clears a worker's count: it is gone, or another takes its slot.
    pub fn left(&mut self, worker: WorkerId) {
        if let Some(count) = self.counts.get_mut(worker.index()) {
            *count = 0.0;
        }
    }

    /// Returns a worker's conversations, in a unit that all workers share at one moment.
    pub fn of(&self, worker: WorkerId) -> f64 {
        self.counts.get(worker.index()).copied().unwrap_or(0.0)
    }

    fn weight(&self, at: Millis) -> f64 {
        ((at.0 - self.base.0) / self.tau.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAU: Millis = Millis(60_000.0);
    const HERE: WorkerId = WorkerId(0);
    const THERE: WorkerId = WorkerId(1);

    fn home(worker: WorkerId, at: f64) -> LastTurn {
        LastTurn {
            worker,
            at: Millis(at),
        }
    }

    #[test]
    fn each_conversation_counts_once_however_often_it_speaks() {
        let mut homes = ConversationCounts::new(TAU);
        homes.placed(Millis(0.0), HERE, None);
        for turn in 1..100 {
            let at = f64::from(turn);
            homes.placed(Millis(at), HERE, Some(home(HERE, at - 1.0)));
        }
        homes.placed(Millis(99.0), THERE, None);
        assert!((homes.of(HERE) / homes.of(THERE) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_conversation_that_moves_counts_where_it_went() {
        let mut homes = ConversationCounts::new(TAU);
        homes.placed(Millis(0.0), HERE, None);
        homes.placed(Millis(5.0), THERE, Some(home(HERE, 0.0)));
        assert_eq!(homes.of(HERE), 0.0);
        assert!(homes.of(THERE) > 0.0);
        homes.left(THERE);
        assert_eq!(homes.of(THERE), 0.0);
        assert_eq!(homes.of(WorkerId(9)), 0.0);
    }

    #[test]
    fn one_that_is_silent_counts_less_and_less_and_the_counts_stay_finite() {
        let mut homes = ConversationCounts::new(TAU);
        homes.placed(Millis(0.0), HERE, None);
        homes.placed(Millis(60_000.0), THERE, None);
        let share = homes.of(HERE) / homes.of(THERE);
        assert!((share - (-1.0f64).exp()).abs() < 1e-9, "{share}");
        let month = 30.0 * 86_400e3;
        homes.placed(Millis(month), HERE, None);
        assert!(homes.of(HERE).is_finite() && homes.of(THERE) < 1e-9 * homes.of(HERE));
        homes.placed(Millis(month), THERE, Some(home(HERE, 0.0)));
        assert!(
            (homes.of(HERE) / homes.of(THERE) - 1.0).abs() < 1e-9,
            "it was forgotten long ago"
        );
    }

    #[test]
    fn what_is_taken_back_long_after_it_was_scaled_down_leaves_nothing_behind() {
        let mut homes = ConversationCounts::new(Millis(10.0));
        homes.placed(Millis(0.0), HERE, None);
        homes.placed(Millis(700.0), THERE, None);
        homes.placed(Millis(700.0), THERE, Some(home(HERE, 0.0)));
        assert!(homes.of(HERE) <= 1e-9 * homes.of(THERE));
    }
}

//! Predicted wait where the worker's queue is not first come first served: a turn waits for the running prefill and for
//! all turns with a lower key, whatever their arrival, which [`PendingWork`](policy::estimate::PendingWork) does not
//! model. The router sets the key, so it can keep the same list.

use super::Order;
use policy::route;
use policy::units::Millis;

#[derive(Clone, Debug, Default)]
pub(super) struct OrderedWork {
    /// Turn, predicted prefill, and start time of the running prefill.
    running: Option<(u32, Millis, Millis)>,
    /// Turn, key and predicted prefill of each waiting turn, in the order of sending.
    waiting: Vec<(u32, f64, Millis)>,
}

impl Order {
    /// Returns the sort key of a turn; the least is taken first, ties in order of arrival.
    pub(super) fn key(self, arrived: Millis, predicted: Millis, objective: Millis) -> f64 {
        match self {
            Self::Fifo => 0.0,
            Self::Sjf => predicted.0,
            Self::Edf => route::Patience::AT_ENGINE.due(arrived, predicted, objective).0,
        }
    }
}

impl OrderedWork {
    pub(super) fn sent(&mut self, now: Millis, turn: u32, key: f64, predicted: Millis) {
        if self.running.is_none() {
            self.running = Some((turn, predicted, now));
        } else {
            self.waiting.push((turn, key, predicted));
        }
    }

    pub(super) fn done(&mut self, now: Millis, turn: u32) {
        self.waiting.retain(|waiting| waiting.0 != turn);
        if self.running.is_some_and(|running| running.0 != turn) {
            return;
        }
        let least = (0..self.waiting.len()).min_by(|&a, &b| self.waiting[a].1.total_cmp(&self.waiting[b].1));
        self.running = least.map(|at| {
            let (turn, _, predicted) = self.waiting.remove(at);
            (turn, predicted, now)
        });
    }

    /// Returns the time until a turn of this key, sent now, would start if nothing came after it. A running prefill
    /// that is late by x is expected to need another x, as in [`PendingWork`](policy::estimate::PendingWork).
    pub(super) fn wait(&self, now: Millis, key: f64) -> Millis {
        let running = self.running.map_or(0.0, |(_, predicted, began)| {
            (predicted - now.saturating_sub(began)).0.abs()
        });
        let ahead = self.waiting.iter().filter(|waiting| waiting.1 <= key);
        Millis(running + ahead.map(|waiting| waiting.2.0).sum::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_goes_first_is_waited_for() {
        let mut work = OrderedWork::default();
        work.sent(Millis(0.0), 1, 9.0, Millis(100.0));
        work.sent(Millis(0.0), 2, 300.0, Millis(300.0));
        work.sent(Millis(0.0), 3, 50.0, Millis(50.0));
        assert_eq!(work.wait(Millis(40.0), 10.0), Millis(60.0));
        assert_eq!(work.wait(Millis(40.0), 50.0), Millis(110.0));
        assert_eq!(work.wait(Millis(40.0), 1e9), Millis(410.0));
        work.done(Millis(100.0), 1);
        assert_eq!(
            work.wait(Millis(100.0), 10.0),
            Millis(50.0),
            "the shorter one runs now"
        );
        work.done(Millis(110.0), 2);
        assert_eq!(
            work.wait(Millis(110.0), 1e9),
            Millis(40.0),
            "the other was given up"
        );
        work.done(Millis(150.0), 3);
        assert_eq!(work.wait(Millis(150.0), 1e9), Millis::ZERO);
    }
}

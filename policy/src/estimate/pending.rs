//! Predicted wait: prefill work that was sent to a worker and has not produced its first token yet.
//!
//! The worker is taken for one prefill server in arrival order. Its head started when it was sent, or when the one
//! before it produced its first token, whichever came later; every millisecond since then is work done. So
//!
//! ```text
//! wait(now) = Σ predicted of those behind the head + |predicted of head − (now − head started)|
//! ```
//!
//! A head that is late by x is expected to need another x: what has lasted longer than anyone thought is not about to
//! end (Lindy's law). So a worker that is slower than predicted looks busier by the moment, and one that hangs is soon
//! given nothing, without waiting for its probes to fail.
//!
//! A first token is proof that everything queued before it is done, so earlier tickets still pending stop counting:
//! one lost outcome can then never make a worker look busy for ever.

use std::collections::VecDeque;

use crate::units::Millis;

/// Names one piece of pending work. Tickets grow in the order the work was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

#[derive(Clone, Debug)]
struct Item {
    ticket: Ticket,
    predicted: Millis,
    done: bool,
}

/// The pending prefill work of one worker.
#[derive(Clone, Debug, Default)]
pub struct PendingWork {
    items: VecDeque<Item>,
    total: f64,
    head_started: Millis,
    next: u64,
}

impl PendingWork {
    /// Nothing pending.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A request whose prefill is predicted to take `predicted` was sent.
    pub fn sent(&mut self, now: Millis, predicted: Millis) -> Ticket {
        if self.items.is_empty() {
            self.head_started = now;
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.total += predicted.0;
        self.items.push_back(Item {
            ticket,
            predicted,
            done: false,
        });
        ticket
    }

    /// Its first token arrived: it and everything sent before it no longer waits.
    pub fn first_token(&mut self, now: Millis, ticket: Ticket) {
        let Ok(index) = self.items.binary_search_by_key(&ticket, |item| item.ticket) else {
            return;
        };
        for item in self.items.drain(..=index) {
            if !item.done {
                self.total -= item.predicted.0;
            }
        }
        self.restart_head(now);
    }

    /// It failed or was aborted before its first token: only it stops counting.
    pub fn gone(&mut self, now: Millis, ticket: Ticket) {
        let Ok(index) = self.items.binary_search_by_key(&ticket, |item| item.ticket) else {
            return;
        };
        if let Some(item) = self.items.get_mut(index)
            && !item.done
        {
            item.done = true;
            self.total -= item.predicted.0;
        }
        if index == 0 {
            self.restart_head(now);
        }
    }

    /// Predicted time until everything pending has produced its first token.
    #[must_use]
    pub fn wait(&self, now: Millis) -> Millis {
        let Some(head) = self.items.front() else {
            return Millis::ZERO;
        };
        let elapsed = now.saturating_sub(self.head_started);
        let behind = self.total - head.predicted.0;
        Millis((behind + (head.predicted - elapsed).0.abs()).max(0.0))
    }

    /// How many requests are pending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.iter().filter(|item| !item.done).count()
    }

    /// Whether nothing is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn restart_head(&mut self, now: Millis) {
        while self.items.front().is_some_and(|item| item.done) {
            self.items.pop_front();
        }
        self.head_started = now;
        if self.items.is_empty() {
            self.total = 0.0; // sheds rounding errors
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_idle_worker_has_no_wait() {
        assert_eq!(PendingWork::new().wait(Millis(5.0)), Millis::ZERO);
    }

    #[test]
    fn wait_shrinks_as_the_head_is_computed_and_grows_again_once_it_is_late() {
        let mut work = PendingWork::new();
        work.sent(Millis(0.0), Millis(100.0));
        work.sent(Millis(10.0), Millis(50.0));
        assert_eq!(work.wait(Millis(10.0)), Millis(140.0));
        assert_eq!(work.wait(Millis(90.0)), Millis(60.0));
        assert_eq!(work.wait(Millis(100.0)), Millis(50.0));
        // Late by 400 ms: another 400 are expected, and then the one behind it.
        assert_eq!(work.wait(Millis(500.0)), Millis(450.0));
    }

    #[test]
    fn a_first_token_starts_the_next_prefill() {
        let mut work = PendingWork::new();
        let first = work.sent(Millis(0.0), Millis(100.0));
        work.sent(Millis(0.0), Millis(50.0));
        work.first_token(Millis(130.0), first);
        assert_eq!(work.wait(Millis(130.0)), Millis(50.0));
        assert_eq!(work.wait(Millis(150.0)), Millis(30.0));
    }

    #[test]
    fn a_first_token_clears_what_was_sent_before_it() {
        let mut work = PendingWork::new();
        let _lost = work.sent(Millis(0.0), Millis(100.0));
        let second = work.sent(Millis(0.0), Millis(50.0));
        work.first_token(Millis(70.0), second);
        assert!(work.is_empty());
        assert_eq!(work.wait(Millis(70.0)), Millis::ZERO);
    }

    #[test]
    fn an_aborted_request_stops_counting_alone() {
        let mut work = PendingWork::new();
        work.sent(Millis(0.0), Millis(100.0));
        let second = work.sent(Millis(0.0), Millis(50.0));
        let third = work.sent(Millis(0.0), Millis(25.0));
        work.gone(Millis(10.0), second);
        work.gone(Millis(10.0), second);
        assert_eq!(work.wait(Millis(10.0)), Millis(115.0));
        work.first_token(Millis(90.0), third);
        assert_eq!(work.wait(Millis(90.0)), Millis::ZERO);
    }

    proptest! {
        /// Whatever happens in whatever order, the books balance and end at zero.
        #[test]
        fn the_wait_is_never_negative_and_ends_at_zero(ops in prop::collection::vec((0u8..4, 0u64..20, 0.0f64..100.0), 0..200)) {
            let mut work = PendingWork::new();
            let mut tickets = Vec::new();
            let mut now = Millis::ZERO;
            for (op, pick, amount) in ops {
                now += Millis(amount / 3.0);
                let ticket = tickets.get(pick as usize % tickets.len().max(1)).copied();
                match (op, ticket) {
                    (0 | 1, _) => tickets.push(work.sent(now, Millis(amount))),
                    (2, Some(ticket)) => work.first_token(now, ticket),
                    (3, Some(ticket)) => work.gone(now, ticket),
                    _ => {}
                }
                let counted: f64 = work.items.iter().filter(|item| !item.done).map(|item| item.predicted.0).sum();
                prop_assert!((work.total - counted).abs() < 1e-6);
                prop_assert!(work.wait(now).0 >= 0.0);
            }
            for ticket in tickets {
                work.gone(now, ticket);
            }
            prop_assert!(work.is_empty());
            prop_assert_eq!(work.wait(now), Millis::ZERO);
        }
    }
}

//! Predicted wait: prefill work sent to a worker whose first tokens have not arrived yet.
//!
//! The worker is modelled as one prefill server in arrival order. Its head started when it was sent, or at the first
//! token of the one before it, whichever came later. So
//!
//! ```text
//! wait(now) = Σ predicted of those behind the head + |predicted of head − (now − head started)| + elsewhere(now)
//! ```
//!
//! A head that is late by x is expected to need another x, since what has lasted longer than predicted is not about to
//! end (Lindy's law). So a worker that hangs soon gets no work, before its probes fail. A first token proves that
//! everything queued before it is done, so one lost outcome cannot make a worker look busy for ever.
//!
//! # The engine's own queue figures
//! The books cover only what this router sent. [`PendingWork::reconcile`] compares them with the engine's figures,
//! `waiting` and `running` requests at one moment:
//!
//! - *Work sent by others.* Of `waiting + running − in flight here` requests that are not ours, at most `waiting` have
//!   their prefill ahead: as many mean prefills, or the engine's count of waiting uncached tokens beyond our own. It is
//!   worked off in parallel to ours, in proportion.
//! - *A head that has not begun.* If `waiting` is at least what is pending here, our head's time starts at the figure.
//! - *Lost counts.* `waiting + (running − ours that decode)` requests can be ours and without a first token. If more
//!   have been pending since before the *previous* figure, the oldest excess ones are gone. Two figures are needed,
//!   because a request may be on its way to the engine during one.
//!
//! Rejected: using the engine's count alone. It ignores sizes, is older than the last decision, and causes herding.

use std::collections::VecDeque;

use crate::units::Millis;

/// Number of items up to which done ones are not removed.
const LEAST_TIDIED: usize = 64;

/// Id of one piece of pending work. Tickets increase in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// An engine's queue figures, and the requests in flight there at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueFigure {
    /// Time of the query.
    pub asked: Millis,
    /// How long after that the figure is used.
    pub good_for: Millis,
    /// Requests whose prefill has not begun.
    pub waiting: u32,
    /// Requests in prefill or decode.
    pub running: u32,
    /// Uncached tokens of the waiting requests, as predicted prefill time, where the engine counts them.
    pub waiting_work: Option<Millis>,
    /// Largest number of this router's requests on the worker while the figure was on its way.
    pub in_flight: u32,
    /// Predicted prefill of an unknown request.
    pub mean_work: Millis,
}

/// The result of a reconciliation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reconciled {
    /// Waiting requests that this router did not send.
    pub elsewhere: u32,
    /// Requests of this router that the engine no longer has.
    pub lost: u32,
}

#[derive(Clone, Debug)]
struct Item {
    ticket: Ticket,
    sent: Millis,
    predicted: Millis,
    done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Elsewhere {
    work: Millis,
    /// Share of the server's time spent on it.
    share: f64,
    since: Millis,
    until: Millis,
}

/// The pending prefill work of one worker.
#[derive(Clone, Debug, Default)]
pub struct PendingWork {
    items: VecDeque<Item>,
    /// Number of items at which done ones are removed; they stay behind a pending head.
    tidied_at: usize,
    total: f64,
    head_started: Millis,
    next: u64,
    elsewhere: Option<Elsewhere>,
    last_figure: Option<Millis>,
}

impl PendingWork {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a sent request whose prefill is predicted to take `predicted`.
    pub fn sent(&mut self, now: Millis, predicted: Millis) -> Ticket {
        if self.items.is_empty() {
            self.head_started = now;
        }
        if self.items.len() >= self.tidied_at.max(LEAST_TIDIED) {
            self.items.retain(|item| !item.done);
            self.tidied_at = 2 * self.items.len();
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.total += predicted.0;
        self.items.push_back(Item {
            ticket,
            sent: now,
            predicted,
            done: false,
        });
        ticket
    }

    /// Records a first token: it and everything sent before it no longer waits. Returns the worker's prefill time if
    /// that is known: the request was the head all the time, and no work of others is known to have delayed it.
    pub fn first_token(&mut self, now: Millis, ticket: Ticket) -> Option<Millis> {
        let index = self
            .items
            .binary_search_by_key(&ticket, |item| item.ticket)
            .ok()?;
        let alone = index == 0 && self.elsewhere(now) == Millis::ZERO;
        let took = alone.then(|| now.saturating_sub(self.head_started));
        for item in self.items.drain(..=index) {
            if !item.done {
                self.total -= item.predicted.0;
            }
        }
        self.restart_head(now);
        took
    }

    /// Removes a request that failed or was aborted before its first token.
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

    /// Scales the pending predictions after the worker's cost changed by `factor`.
    pub fn repriced(&mut self, factor: f64) {
        for item in &mut self.items {
            item.predicted = Millis(item.predicted.0 * factor);
        }
        self.total *= factor;
    }

    /// Returns the predicted time until everything pending has produced its first token.
    pub fn wait(&self, now: Millis) -> Millis {
        self.own(now) + self.elsewhere(now)
    }

    fn own(&self, now: Millis) -> Millis {
        let Some(head) = self.items.front() else {
            return Millis::ZERO;
        };
        let elapsed = now.saturating_sub(self.head_started);
        let behind = self.total - head.predicted.0;
        Millis((behind + (head.predicted - elapsed).0.abs()).max(0.0))
    }

    /// Returns the remaining work of others, by the last fresh figure.
    pub fn elsewhere(&self, now: Millis) -> Millis {
        let Some(other) = self.elsewhere.filter(|other| now < other.until) else {
            return Millis::ZERO;
        };
        other
            .work
            .saturating_sub(Millis(now.saturating_sub(other.since).0 * other.share))
    }

    /// Reconciles the books with the engine's figure. A figure older than the last one, or no longer fresh, is ignored.
    pub fn reconcile(&mut self, now: Millis, figure: &QueueFigure) -> Reconciled {
        let until = figure.asked + figure.good_for;
        if now >= until || self.last_figure.is_some_and(|last| figure.asked < last) {
            return Reconciled::default();
        }
        let lost = self.strike_out_lost(now, figure);
        let pending = self.len() as u32;
        let others = figure
            .waiting
            .saturating_add(figure.running)
            .saturating_sub(figure.in_flight);
        let elsewhere = others.min(figure.waiting);
        if pending > 0 && elsewhere > 0 && figure.waiting >= pending {
            self.head_started = self.head_started.max(figure.asked);
        }
        let counted = Millis(f64::from(elsewhere) * figure.mean_work.0.max(0.0));
        let own = self.own(now);
        let work = match figure.waiting_work {
            Some(all) if elsewhere > 0 => all.saturating_sub(own),
            _ => counted,
        };
        self.elsewhere = (work > Millis::ZERO).then(|| Elsewhere {
            work,
            share: work.0 / (work.0 + own.0),
            since: figure.asked,
            until,
        });
        self.last_figure = Some(figure.asked);
        Reconciled { elsewhere, lost }
    }

    /// Removes the excess requests that have been pending since before the last figure. Returns how many.
    fn strike_out_lost(&mut self, now: Millis, figure: &QueueFigure) -> u32 {
        let Some(last) = self.last_figure else { return 0 };
        let pending = self.len() as u32;
        let decoding = figure.in_flight.saturating_sub(pending);
        let room = figure
            .waiting
            .saturating_add(figure.running.saturating_sub(decoding));
        let old = |item: &&mut Item| !item.done && item.sent < last;
        let count = self.items.iter_mut().filter(old).count() as u32;
        let lost = count.saturating_sub(room);
        for item in self.items.iter_mut().filter(old).take(lost as usize) {
            item.done = true;
            self.total -= item.predicted.0;
        }
        if lost > 0 && self.items.front().is_some_and(|head| head.done) {
            self.restart_head(now);
        }
        lost
    }

    /// Returns the number of pending requests.
    pub fn len(&self) -> usize {
        self.items.iter().filter(|item| !item.done).count()
    }

    /// Returns whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn restart_head(&mut self, now: Millis) {
        while self.items.front().is_some_and(|item| item.done) {
            self.items.pop_front();
        }
        self.head_started = now;
        if self.items.is_empty() {
            self.total = 0.0; // drops rounding errors
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
    fn what_waits_takes_as_long_as_the_worker_is_found_to_take() {
        let mut work = PendingWork::new();
        let head = work.sent(Millis(0.0), Millis(100.0));
        work.sent(Millis(0.0), Millis(50.0));
        let gone = work.sent(Millis(0.0), Millis(70.0));
        work.gone(Millis(10.0), gone);
        work.repriced(8.0);
        assert_eq!(work.wait(Millis(20.0)), Millis(780.0 + 400.0));
        work.first_token(Millis(800.0), head);
        assert_eq!(work.wait(Millis(800.0)), Millis(400.0));
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
    fn aborted_requests_behind_a_head_that_never_begins_take_no_room() {
        let mut work = PendingWork::new();
        let head = work.sent(Millis(0.0), Millis(100.0));
        for _ in 0..10_000 {
            let aborted = work.sent(Millis(0.0), Millis(50.0));
            work.gone(Millis(0.0), aborted);
        }
        assert!(work.items.len() <= LEAST_TIDIED, "{}", work.items.len());
        work.sent(Millis(0.0), Millis(25.0));
        work.first_token(Millis(100.0), head);
        assert_eq!(work.wait(Millis(100.0)), Millis(25.0));
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

    fn figure(asked: f64, waiting: u32, running: u32, in_flight: u32) -> QueueFigure {
        QueueFigure {
            asked: Millis(asked),
            good_for: Millis(1000.0),
            waiting,
            running,
            waiting_work: None,
            in_flight,
            mean_work: Millis(100.0),
        }
    }

    #[test]
    fn a_first_token_of_a_request_that_was_the_head_tells_what_its_prefill_took() {
        let mut work = PendingWork::new();
        let first = work.sent(Millis(0.0), Millis(100.0));
        let second = work.sent(Millis(10.0), Millis(50.0));
        let overtaken = work.sent(Millis(20.0), Millis(50.0));
        let overtaker = work.sent(Millis(30.0), Millis(10.0));
        assert_eq!(work.first_token(Millis(130.0), first), Some(Millis(130.0)));
        assert_eq!(work.first_token(Millis(190.0), second), Some(Millis(60.0)));
        assert_eq!(work.first_token(Millis(200.0), overtaker), None);
        assert_eq!(work.first_token(Millis(260.0), overtaken), None);
    }

    #[test]
    fn what_others_sent_counts_while_the_figure_is_fresh() {
        let mut work = PendingWork::new();
        let found = work.reconcile(Millis(10.0), &figure(0.0, 3, 1, 0));
        assert_eq!((found.elsewhere, found.lost), (3, 0));
        assert_eq!(work.wait(Millis(10.0)), Millis(290.0));
        assert_eq!(work.wait(Millis(200.0)), Millis(100.0));
        assert_eq!(work.wait(Millis(900.0)), Millis::ZERO, "worked off");
        work.reconcile(Millis(910.0), &figure(900.0, 50, 1, 0));
        assert_eq!(work.wait(Millis(1899.0)), Millis(5000.0 - 999.0));
        assert_eq!(work.wait(Millis(1900.0)), Millis::ZERO, "stale");
    }

    /// Engines' request counts used in place of work: <https://github.com/smg-project/smg/issues/1621>.
    #[test]
    fn an_engine_that_counts_its_waiting_tokens_is_believed_on_their_size() {
        let mut work = PendingWork::new();
        work.sent(Millis(0.0), Millis(100.0));
        let told = QueueFigure {
            waiting_work: Some(Millis(1000.0)),
            ..figure(0.0, 2, 1, 1)
        };
        work.reconcile(Millis(0.0), &told);
        assert_eq!(work.wait(Millis(0.0)), Millis(1000.0));
    }

    #[test]
    fn our_own_requests_are_not_taken_for_others() {
        let mut work = PendingWork::new();
        work.sent(Millis(0.0), Millis(100.0));
        work.sent(Millis(0.0), Millis(50.0));
        assert_eq!(
            work.reconcile(Millis(10.0), &figure(5.0, 1, 1, 2)),
            Reconciled::default()
        );
        assert_eq!(work.wait(Millis(10.0)), Millis(140.0));
        // A request that decodes here is running there.
        assert_eq!(
            work.reconcile(Millis(10.0), &figure(6.0, 1, 2, 3)),
            Reconciled::default()
        );
    }

    #[test]
    fn a_head_behind_the_work_of_others_is_not_late() {
        let mut work = PendingWork::new();
        work.sent(Millis(0.0), Millis(100.0));
        work.reconcile(Millis(500.0), &figure(500.0, 2, 1, 1));
        // Two prefills of others, and all of ours: none of them is late.
        assert_eq!(work.wait(Millis(500.0)), Millis(300.0));
    }

    #[test]
    fn what_two_figures_in_a_row_have_no_room_for_is_gone() {
        let mut work = PendingWork::new();
        let lost = work.sent(Millis(0.0), Millis(100.0));
        assert_eq!(
            work.reconcile(Millis(2.0), &figure(1.0, 0, 0, 1)).lost,
            0,
            "it may be on its way"
        );
        let late = work.sent(Millis(50.0), Millis(30.0));
        assert_eq!(work.reconcile(Millis(60.0), &figure(55.0, 0, 0, 2)).lost, 1);
        assert_eq!(work.wait(Millis(60.0)), Millis(30.0));
        assert_eq!(work.first_token(Millis(65.0), lost), None);
        assert!(work.first_token(Millis(70.0), late).is_some());
        assert!(work.is_empty());
    }

    #[test]
    fn stale_and_overtaken_figures_are_ignored() {
        let mut work = PendingWork::new();
        assert_eq!(
            work.reconcile(Millis(2000.0), &figure(0.0, 9, 0, 0)),
            Reconciled::default()
        );
        work.reconcile(Millis(2000.0), &figure(1500.0, 1, 0, 0));
        work.reconcile(Millis(2000.0), &figure(1400.0, 9, 0, 0));
        assert_eq!(work.elsewhere(Millis(1500.0)), Millis(100.0));
    }

    proptest! {
        #[test]
        fn the_wait_is_never_negative_and_ends_at_zero(ops in prop::collection::vec((0u8..5, 0u64..20, 0.0f64..100.0), 0..200)) {
            let mut work = PendingWork::new();
            let mut tickets = Vec::new();
            let mut now = Millis::ZERO;
            for (op, pick, amount) in ops {
                now += Millis(amount / 3.0);
                let ticket = tickets.get(pick as usize % tickets.len().max(1)).copied();
                match (op, ticket) {
                    (0 | 1, _) => tickets.push(work.sent(now, Millis(amount))),
                    (2, Some(ticket)) => {
                        work.first_token(now, ticket);
                    }
                    (3, Some(ticket)) => work.gone(now, ticket),
                    (4, _) => {
                        let in_flight = work.len() as u32 + pick as u32 % 3;
                        work.reconcile(now, &figure(now.0 - amount / 9.0, pick as u32 % 5, pick as u32 % 4, in_flight));
                    }
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
            prop_assert_eq!(work.wait(now + Millis(1e6)), Millis::ZERO);
        }
    }
}

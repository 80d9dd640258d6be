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
//! - *No figure.* An overloaded engine may stop reporting. Others' work by the last figure is kept past the time for
//!   which the figure is good, decays by the factor e each [`SILENCE`], and is forgotten after [`FORGOTTEN`] times that.
//! - *Lost counts.* `waiting + (running − ours that decode)` requests can be ours and without a first token. If more
//!   have been pending since before the *previous* figure, the oldest excess ones are gone. Two figures are needed,
//!   because a request may be on its way to the engine during one.
//!
//! Rejected: using the engine's count alone. It ignores sizes, is older than the last decision, and causes herding.

use std::collections::VecDeque;

use crate::units::Millis;

/// Time constant with which others' work decays while the engine reports no figures.
const SILENCE: Millis = Millis(30_000.0);
/// Time constants after which others' work is forgotten, when less than 1 % of it would be left.
const FORGOTTEN: f64 = 5.0;
/// Upper bound on others' work: an hour, beyond which no wait changes a choice.
const MOST_ELSEWHERE: Millis = Millis(3_600_000.0);
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
    /// Time after `asked` for which the figure is used.
    pub good_for: Millis,
    /// Requests whose prefill has not begun.
    pub waiting: u32,
    /// Requests in prefill or decode.
    pub running: u32,
    /// Uncached tokens of the waiting requests, as predicted prefill time, where the engine counts them.
    pub waiting_work: Option<Millis>,
    /// Largest number of this router's requests on the worker while the figure was on its way.
    pub in_flight: u32,
    /// Predicted prefill of a request that this router did not send.
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
    /// Share of the server's time spent on this work.
    share: f64,
    since: Millis,
    until: Millis,
}

/// The pending prefill work of one worker.
#[derive(Clone, Debug, Default)]
pub struct PendingWork {
    items: VecDeque<Item>,
    /// Number of items at which done ones behind a pending head are removed.
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

    /// Records a first token: its request and all those sent before no longer wait. Returns the worker's prefill time
    /// if the request was the head all the time and no work of others is known to have delayed it.
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

    /// Returns the remaining work of others by the last figure. It is worked off while the figure is good, and then
    /// decays.
    pub fn elsewhere(&self, now: Millis) -> Millis {
        let Some(other) = self.elsewhere else {
            return Millis::ZERO;
        };
        let fresh = now.min(other.until).saturating_sub(other.since);
        let left = other.work.saturating_sub(Millis(fresh.0 * other.share));
        let silent = now.saturating_sub(other.until).0 / SILENCE.0;
        if silent <= 0.0 {
            left
        } else if silent < FORGOTTEN {
            Millis(left.0 * (-silent).exp())
        } else {
            Millis::ZERO
        }
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
        let work = work.min(MOST_ELSEWHERE);
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
mod tests;

//! A guard for a request in flight: dropping it ends its accounting exactly once, however the request ended. Nothing
//! expires by age: a stream may take an hour, and is counted for an hour.

use std::sync::Arc;
use std::time::Duration;

use policy::estimate::Ticket;
use policy::units::Millis;
use tracing::info;

use super::breaker::BreakerPass;
use super::worker::Worker;
use crate::clock::Clock;

#[derive(Debug)]
pub struct InFlight {
    worker: Arc<Worker>,
    clock: Clock,
    ticket: Option<Ticket>,
    /// The breaker's pass, until the outcome is reported.
    pass: Option<BreakerPass>,
    answered: bool,
}

impl Worker {
    /// Starts the accounting of a request that was admitted `now` as [`Worker::admit`] returned, until the guard is
    /// dropped.
    #[must_use]
    pub fn send(
        self: &Arc<Self>,
        clock: Clock,
        now: Millis,
        prefill: Option<Millis>,
        pass: BreakerPass,
    ) -> InFlight {
        InFlight {
            ticket: self.sent(now, prefill),
            worker: Arc::clone(self),
            clock,
            pass: Some(pass),
            answered: false,
        }
    }

    /// Returns an admission whose request says nothing about the worker, or was never sent.
    pub fn withdraw(&self, now: Millis, pass: BreakerPass) {
        if pass == BreakerPass::Trial {
            self.with_breaker(now, |breaker| breaker.undecided(pass));
        }
    }
}

impl InFlight {
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Records the first token. Returns the prefill time, if the request had the worker to itself.
    pub fn first_token(&mut self, now: Millis) -> Option<Millis> {
        let ticket = self.ticket.take()?;
        self.worker.prefilled(now, ticket)
    }

    /// Records a successful response. Returns whether it closed the breaker.
    #[must_use]
    pub fn answered(&mut self, now: Millis) -> bool {
        let Some(pass) = self.pass.take() else {
            return false;
        };
        self.answered = true;
        let closed = self
            .worker
            .with_breaker(now, |breaker| breaker.answered(now, pass));
        if closed {
            info!(
                worker = self.worker.name(),
                "breaker closed: the worker responds again"
            );
            self.worker.starts_anew(now);
        }
        self.worker.made_room(now);
        closed
    }

    /// Records a failure of the worker. `source` identifies the request's prompt and client, if they are known. Returns
    /// whether the breaker may open: [`Worker::open_unless_alike`] decides.
    #[must_use]
    pub fn failed(&mut self, source: Option<u64>) -> bool {
        let now = self.clock.now();
        let answered = std::mem::take(&mut self.answered);
        let pass = self.pass.take();
        self.worker.with_breaker(now, |breaker| match pass {
            Some(pass) => breaker.failed(now, pass, source),
            None => answered && breaker.broke_off(now, source),
        })
    }

    /// Records that the worker declined the request for lack of room, and the time that it asks to wait.
    pub fn declined(&mut self, after: Option<Duration>) {
        let now = self.clock.now();
        self.withdraw(now);
        self.answered = false;
        let after = after.map(|after| Millis(after.as_secs_f64() * 1e3));
        self.worker.declined(now, after);
    }

    /// Withdraws a trial whose outcome is undecided.
    fn withdraw(&mut self, now: Millis) {
        if let Some(pass) = self.pass.take() {
            self.worker.withdraw(now, pass);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let now = self.clock.now();
        self.worker.ended(now, self.ticket.take());
        self.withdraw(now);
        if self.answered {
            self.worker.made_room(now);
        }
    }
}

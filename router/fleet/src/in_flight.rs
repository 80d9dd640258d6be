//! A guard for a request in flight: dropping it ends its accounting exactly once, however the request ended. Nothing
//! expires by age: a stream may take an hour, and is counted for an hour.

use std::sync::Arc;

use policy::estimate::Ticket;
use policy::units::Millis;
use tracing::{info, warn};

use super::breaker::BreakerPass;
use super::worker::Worker;
use crate::clock::Clock;

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    worker: Arc<Worker>,
    clock: Clock,
    ticket: Option<Ticket>,
    /// Taken when the outcome is reported to the breaker.
    pass: Option<BreakerPass>,
    answered: bool,
}

impl Worker {
    /// Starts the accounting of a request that was admitted as [`Worker::admit`] returned, until the guard is dropped.
    #[must_use]
    pub fn send(self: &Arc<Self>, clock: Clock, prefill: Option<Millis>, pass: BreakerPass) -> InFlight {
        InFlight {
            ticket: self.sent(clock.now(), prefill),
            worker: Arc::clone(self),
            clock,
            pass: Some(pass),
            answered: false,
        }
    }
}

impl InFlight {
    /// Returns the worker of the request.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Records the first token. Returns the prefill time, if the request had the worker to itself.
    pub fn first_token(&mut self) -> Option<Millis> {
        let ticket = self.ticket.take()?;
        self.worker.prefilled(self.clock.now(), ticket)
    }

    /// Records a successful response. Returns whether it closed the breaker.
    #[must_use]
    pub fn answered(&mut self) -> bool {
        let Some(pass) = self.pass.take() else {
            return false;
        };
        self.answered = true;
        let now = self.clock.now();
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
        closed
    }

    /// Records a failure of the worker. Returns whether it opened the breaker.
    pub fn failed(&mut self) -> bool {
        let now = self.clock.now();
        let opened = match self.pass.take() {
            Some(pass) => self.worker.with_breaker(now, |breaker| breaker.failed(now, pass)),
            None if std::mem::take(&mut self.answered) => {
                self.worker.with_breaker(now, |breaker| breaker.broke_off(now))
            }
            None => false,
        };
        if opened {
            warn!(
                worker = self.worker.name(),
                "breaker opened: the worker fails its requests"
            );
        }
        opened
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let now = self.clock.now();
        self.worker.ended(now, self.ticket.take());
        if let Some(pass @ BreakerPass::Trial) = self.pass.take() {
            self.worker.with_breaker(now, |breaker| breaker.undecided(pass));
        }
    }
}

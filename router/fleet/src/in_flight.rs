//! A request in flight, as a guard: however it ends, dropping it ends its counting, once.
//!
//! It holds the request's place in the worker's count, its predicted prefill, and what the breaker let it through as. None
//! of these has a sweeper that takes back what looks old: a stream may take an hour, and is counted for an hour.

use std::sync::Arc;

use policy::estimate::Ticket;
use policy::units::Millis;
use tracing::{info, warn};

use super::breaker::Pass;
use super::worker::Worker;
use crate::clock::Clock;

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    worker: Arc<Worker>,
    clock: Clock,
    ticket: Option<Ticket>,
    /// Taken when the breaker is told.
    pass: Option<Pass>,
    answered: bool,
}

impl Worker {
    /// The request goes out, let through as [`Worker::admit`] said: from here on its work counts, until the guard is
    /// dropped.
    #[must_use]
    pub fn send(self: &Arc<Self>, clock: Clock, prefill: Option<Millis>, pass: Pass) -> InFlight {
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
    /// The worker it is on.
    #[must_use]
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Its first token arrived. Returns how long its prefill took, if it had the worker to itself.
    pub fn first_token(&mut self) -> Option<Millis> {
        let ticket = self.ticket.take()?;
        self.worker.prefilled(self.clock.now(), ticket)
    }

    /// The worker answers it as it should. Returns whether that closed its breaker.
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
            info!(worker = self.worker.name(), "answers again: its breaker closes");
            self.worker.starts_anew(now);
        }
        closed
    }

    /// The worker failed it. Returns whether that opened its breaker.
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
                "fails its requests: its breaker opens"
            );
        }
        opened
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let now = self.clock.now();
        self.worker.ended(now, self.ticket.take());
        if let Some(pass @ Pass::Trial) = self.pass.take() {
            self.worker.with_breaker(now, |breaker| breaker.undecided(pass));
        }
    }
}

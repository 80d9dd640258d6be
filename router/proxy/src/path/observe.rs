//! Observes a turn's response as this router or a gateway relays it.
//!
//! What a stream says after its first token is needed only at its end, so some ten events are parsed at a time: between
//! two tokens, other work would evict the parser from the processor's caches.

use std::sync::Arc;

use http::StatusCode;

use super::flight::{AttemptEnd, AttemptOutcome, Flight};
use super::watchdog::Overrun;
use fleet::Worker;
use protocol::api::Family;
use protocol::verdict::Verdict;
use protocol::watch::{Step, Watch};
use telemetry::logs::request::RequestIdentity;
use telemetry::traces::Trace;

/// Most stream bytes buffered: some ten tokens' events.
const ASIDE_BYTES: usize = 4096;

/// Observes a response. Dropping it before the end counts as a client disconnect.
#[derive(Debug)]
pub struct Observer {
    watch: Watch,
    /// Bytes that passed and were not parsed yet.
    aside: Vec<u8>,
    is_flowing: bool,
    worker: Arc<Worker>,
    flight: Option<Box<Flight>>,
    status: StatusCode,
    /// The outcome of the response by its head, if it completes.
    outcome: AttemptOutcome,
    whose: Option<RequestIdentity>,
    /// Keeps the request's trace open until the body is dropped, though the attempt may end before.
    _trace: Trace,
}

impl Observer {
    /// Observes the response of an attempt, whose accounting ends with it.
    pub fn new(watch: Watch, flight: Box<Flight>, status: StatusCode, verdict: Verdict) -> Self {
        let trace = flight.trace().clone();
        Self {
            watch,
            aside: Vec::new(),
            is_flowing: false,
            worker: Arc::clone(flight.worker()),
            flight: Some(flight),
            status,
            outcome: AttemptOutcome::of(status, verdict),
            whose: RequestIdentity::current(),
            _trace: trace,
        }
    }

    /// Returns the attempt, until it ends.
    pub fn flight(&self) -> Option<&Flight> {
        self.flight.as_deref()
    }

    /// Returns the API family of the response.
    pub fn family(&self) -> Family {
        self.watch.family()
    }

    /// Returns the parsed position in the event stream; `None` for other responses.
    pub fn position(&self) -> Option<sse::StreamPosition<'_>> {
        self.watch.position()
    }

    /// Records bytes that pass. Returns how far they advance the response.
    pub fn passed(&mut self, data: &[u8]) -> Step {
        if self.flight.is_none() {
            return Step::Token;
        }
        if self.is_flowing && self.aside.len() + data.len() <= ASIDE_BYTES {
            if self.aside.capacity() == 0 {
                self.aside.reserve_exact(ASIDE_BYTES);
            }
            self.aside.extend_from_slice(data);
            self.worker.count_bytes(data.len());
            return Step::Token;
        }
        self.catch_up();
        let step = self.read(data);
        if step == Step::Token {
            self.worker.count_bytes(data.len());
        }
        step
    }

    /// Parses the buffered bytes.
    pub fn catch_up(&mut self) {
        if self.aside.is_empty() {
            return;
        }
        let mut aside = std::mem::take(&mut self.aside);
        self.read(&aside);
        aside.clear();
        self.aside = aside;
    }

    fn read(&mut self, data: &[u8]) -> Step {
        let Some(flight) = &mut self.flight else {
            return Step::Token;
        };
        let step = self.watch.push(data, |piece| flight.reply(piece));
        flight.passed(self.watch.passed);
        if let Some(key) = self.watch.response_key.take() {
            flight.record_stored(key);
        }
        let is_good = self.outcome == AttemptOutcome::Ok && self.watch.error.is_none();
        if self.watch.first_token && is_good && !self.watch.is_in_doubt() {
            flight.first_token(self.watch.is_stream());
            flight.span.first_token();
        }
        self.is_flowing = self.watch.first_token && self.watch.is_stream();
        step
    }

    /// Does what the client of a complete response may rely on at once, before the response is sent and
    /// [`finish`](Self::finish) is called: releases the permit and records a stored response.
    pub fn on_complete(&mut self) {
        self.catch_up();
        let Some(flight) = &mut self.flight else { return };
        flight.release_permit();
        if self.watch.keeps() {
            self.watch.end(|piece| flight.reply(piece));
            if let Some(key) = self.watch.response_key.take() {
                flight.record_stored(key);
            }
        }
    }

    /// Ends the attempt after its response has passed completely.
    pub fn finish(&mut self) {
        self.catch_up();
        let Some(mut flight) = self.flight.take() else {
            return;
        };
        self.watch.end(|piece| flight.reply(piece));
        flight.passed(self.watch.passed);
        if let Some(key) = self.watch.response_key.take() {
            flight.record_stored(key);
        }
        let outcome = self.outcome_by_body();
        let complete = self.watch.complete || self.watch.finished || outcome != AttemptOutcome::Ok;
        let outcome = if complete { outcome } else { AttemptOutcome::Broken };
        self.settle(flight, outcome, complete);
    }

    /// Returns the outcome, with regard to an error in the body.
    fn outcome_by_body(&self) -> AttemptOutcome {
        match self.watch.error {
            Some(error) if self.outcome == AttemptOutcome::Ok => AttemptOutcome::of(self.status, error),
            Some(error @ Verdict::Declined(_)) if self.status == StatusCode::SERVICE_UNAVAILABLE => {
                AttemptOutcome::of(self.status, error)
            }
            _ => self.outcome,
        }
    }

    /// Returns whether the worker has sent an error in the body.
    pub fn has_error(&self) -> bool {
        self.watch.error.is_some()
    }

    /// Ends the attempt after its response has passed completely, of which only the head was observed.
    pub fn ended_unseen(&mut self) {
        let Some(mut flight) = self.flight.take() else {
            return;
        };
        if self.outcome == AttemptOutcome::Ok {
            flight.first_token(false);
        }
        self.settle(flight, self.outcome, false);
    }

    /// Ends the attempt of a response that exceeded a time limit or was cut. Calls `say` with the attempt first.
    pub fn overran(&mut self, overrun: Overrun, say: impl FnOnce(&Flight)) {
        if let Some(flight) = &mut self.flight {
            flight.spare_if_busy(overrun);
        }
        self.fail(overrun.outcome(), say);
    }

    /// Ends the attempt of a response that broke off. Calls `say` with the attempt first.
    pub fn fail(&mut self, outcome: AttemptOutcome, say: impl FnOnce(&Flight)) {
        self.catch_up();
        let Some(flight) = self.flight.take() else { return };
        self.within(|| say(&flight));
        let outcome = match self.outcome_by_body() {
            by_body if self.has_error() => by_body,
            _ => outcome,
        };
        self.settle(flight, outcome, false);
    }

    /// Returns whether a stream ended in HTTP but not in its API, as when an engine's generator fails. A client that
    /// does not wait for `[DONE]` would take the partial reply as complete. Call [`catch_up`](Self::catch_up) first.
    pub fn stops_short(&self) -> bool {
        let is_complete = self.aside.is_empty() && (self.watch.complete || self.watch.finished);
        self.outcome == AttemptOutcome::Ok
            && self.watch.is_stream()
            && !is_complete
            && !self.has_error()
            && self
                .flight
                .as_ref()
                .is_some_and(|flight| flight.is_ended_by_done())
    }

    fn settle(&self, flight: Box<Flight>, outcome: AttemptOutcome, complete: bool) {
        let end = AttemptEnd {
            outcome,
            of_attempt: None,
            seen: Some(flight.believed(self.watch.seen())),
            keeps_reply: complete,
        };
        self.within(|| flight.end(end));
    }

    fn within(&self, work: impl FnOnce()) {
        match &self.whose {
            Some(whose) => whose.in_scope(work),
            None => work(),
        }
    }
}

impl Drop for Observer {
    /// Ends an unfinished attempt, because the client left or ended the exchange at an error, within the request's log
    /// scope.
    fn drop(&mut self) {
        self.catch_up();
        let Some(flight) = self.flight.take() else { return };
        if self.has_error() {
            // The client left because of it.
            self.settle(flight, self.outcome_by_body(), false);
            return;
        }
        self.within(|| drop(flight));
    }
}

#[cfg(test)]
mod tests;

//! Finishes an attempt: span, breaker, token counts, the key's charge, cache state, the decision's account, metrics of a
//! complete response, captures, the observation for the learner, and the request's metrics, in this order.

use std::sync::atomic::Ordering;

use policy::units::Millis;
use tracing::debug;

use super::{AttemptOutcome, Flight};
use crate::path::traced::answer_facts;
use crate::path::watchdog::Overrun;
use protocol::reply;
use protocol::verdict::PushBack;
use protocol::watch::ResponseReport;
use telemetry::traces::Stage;

/// The end of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd {
    pub outcome: AttemptOutcome,
    /// The outcome of the attempt alone, if another attempt or the router answers the request.
    pub of_attempt: Option<AttemptOutcome>,
    /// Figures read from the response.
    pub seen: Option<ResponseReport>,
    /// Whether the next turn can repeat the reply.
    pub keeps_reply: bool,
}

impl From<AttemptOutcome> for AttemptEnd {
    /// Creates the end of an attempt whose response was not read.
    fn from(outcome: AttemptOutcome) -> Self {
        Self {
            outcome,
            of_attempt: None,
            seen: None,
            keeps_reply: false,
        }
    }
}

impl Flight {
    pub fn end(mut self: Box<Self>, end: impl Into<AttemptEnd>) {
        self.finish(end.into());
    }

    fn finish(&mut self, mut end: AttemptEnd) {
        self.is_finished = true;
        let ended = self.proxy.state.routing.clock.now();
        let shown = end.of_attempt.unwrap_or(end.outcome);
        self.span.end(shown.as_str(), end.seen.map(answer_facts));
        let is_observed = end.seen.is_some() || self.progress.started;
        let _learning = is_observed.then(|| self.span.trace().begin(Stage::Learn));
        self.note_breaker(end.outcome, ended);
        self.close_reply(&mut end);
        let seen = end.seen.unwrap_or_default();
        let counted = seen.usage.filter(|_| end.outcome.may_be_computed());
        let offsets = counted.and_then(|usage| self.learn_usage(usage, &seen));
        self.settle_charge(end.outcome, seen.usage);
        let is_computed =
            self.progress.started && end.outcome.may_be_computed() && self.turn.endpoint.generates();
        self.settle(is_computed, &seen, offsets);
        self.close_account(end.outcome, &seen, ended);
        self.count_answered(end.outcome, &seen, ended);
        self.write_down(&end, ended);
        if is_computed {
            self.queue_observation(&seen, ended);
        }
        self.count_request(end.outcome, ended);
    }

    /// Reports the outcome to the breaker. An attempt that the client aborted counts as neither success nor failure.
    fn note_breaker(&mut self, outcome: AttemptOutcome, ended: Millis) {
        match outcome {
            AttemptOutcome::Ok => self.answered(ended),
            AttemptOutcome::Declined(push_back) => self.declined(push_back),
            outcome if outcome.is_the_workers() => self.charge(),
            _ => {}
        }
    }

    /// Closes the reply's keys. The number of cached tokens of a cut stream is unknown: it comes with the last event.
    fn close_reply(&mut self, end: &mut AttemptEnd) {
        if !end.keeps_reply {
            self.progress.passing = None;
        } else if let Some(usage) = end.seen.as_mut().and_then(|seen| seen.usage.as_mut()) {
            usage.cached = self.worker().cached(usage.cached);
        }
        self.progress.reply = self.progress.passing.take().and_then(reply::ReplyBuilder::finish);
    }

    /// Reports a success to the breaker.
    pub fn answered(&mut self, now: Millis) {
        if self.in_flight.answered(now) {
            self.proxy.state.operations.breaker_closed(self.worker());
        }
    }

    /// Records that the worker had no room for the request.
    pub fn declined(&mut self, push_back: PushBack) {
        self.in_flight.declined(push_back.after);
    }

    /// Excuses the worker from later failures of this request.
    fn spare(&mut self) {
        self.charged.store(true, Ordering::Relaxed);
    }

    /// Excuses the worker from a first token that is late while other requests make progress: it is busy.
    pub fn spare_if_busy(&mut self, overrun: Overrun) {
        let routing = &self.proxy.state.routing;
        if !overrun.is_the_workers(routing.is_answering(self.worker(), self.noted.bytes_before)) {
            self.spare();
        }
    }

    /// Counts the request as a failure of the worker, unless an earlier attempt was counted.
    pub fn charge(&mut self) {
        if !self.charged.swap(true, Ordering::Relaxed) {
            self.proxy.state.failed(&mut self.in_flight, self.turn.source());
        }
    }

    fn count_request(&self, outcome: AttemptOutcome, ended: Millis) {
        let seconds = (ended - self.turn.arrived).0 / 1e3;
        let name = outcome.as_str();
        if outcome.is_final() {
            let trace = self.exemplar(Some(name));
            let metrics = &self.proxy.state.routing.metrics;
            metrics.request_of(self.turn.endpoint.as_str(), name, seconds, trace);
        }
        debug!(worker = self.worker().name(), outcome = name, seconds, "ended");
    }
}

impl Drop for Flight {
    /// Finishes an unfinished attempt as abandoned by the client, which may continue from the partial reply.
    fn drop(&mut self) {
        if !self.is_finished {
            self.finish(AttemptEnd {
                keeps_reply: true,
                ..AttemptOutcome::Aborted.into()
            });
        }
    }
}

#[cfg(test)]
mod tests;

//! Publishes a finished attempt: metrics, the decision's account, captures, and the key's charge.

use std::borrow::Cow;

use policy::fingerprint::ChainBuilder;
use policy::units::{Millis, Tokens};

use super::super::account;
use super::{AttemptEnd, AttemptOutcome, Flight};
use metrics::Answered;
use protocol::fingerprint::Extent;
use protocol::watch::{ResponseReport, Usage};
use telemetry::capture::Record;
use telemetry::context::TraceId;

impl Flight {
    pub(super) fn settle_charge(&mut self, outcome: AttemptOutcome, usage: Option<Usage>) {
        let Some(permit) = &mut self.permit else { return };
        match (usage, outcome) {
            (Some(usage), _) => permit.charge.correct(Tokens(usage.prompt + usage.completion)),
            (
                None,
                AttemptOutcome::WorkerError | AttemptOutcome::ClientError | AttemptOutcome::Declined(_),
            ) => {
                permit.charge.give_back();
            }
            (None, AttemptOutcome::Broken | AttemptOutcome::ErrorInBody) if !self.progress.started => {
                permit.charge.give_back();
            }
            (None, _) if self.turn.endpoint.generates() => {
                let ratio = self.proxy.state.routing.knowledge.ratio(&self.turn.model);
                permit.charge.add(self.progress.passed.tokens(ratio));
            }
            // Other endpoints return no model tokens.
            (None, _) => {}
        }
    }

    /// Returns the turn's capture record. Lengths that the worker did not report are estimates.
    fn record(&self, end: &AttemptEnd, ended: Millis) -> Record<'_> {
        let (turn, prediction, progress) = (&self.turn, &self.prediction, &self.progress);
        let (Extent::Bytes(units) | Extent::Tokens(units)) = turn.fingerprint.extent;
        let prompt = prediction.scale.tokens(units);
        let whole = progress.reply.as_ref().map_or(units, ChainBuilder::bytes);
        let estimated = [prompt, prediction.scale.tokens(whole).saturating_sub(prompt)];
        let usage = end.seen.and_then(|seen| seen.usage);
        let counted = usage.map(|usage| [usage.prompt, usage.completion]);
        Record {
            conversation: turn.session.as_ref().map(|session| session.key),
            class: turn.goal.origin.named(&turn.live.objective).to_owned().into(),
            objective: turn.goal.ttft,
            model: Cow::Borrowed(&turn.model),
            prompt: Cow::Borrowed(&turn.fingerprint.chain),
            units,
            reply: progress.reply.as_ref().map(|reply| Cow::Borrowed(reply.chain())),
            tokens: counted.unwrap_or(estimated),
            counted: counted.is_some(),
            worker: Cow::Borrowed(self.worker().name()),
            ttft: progress.ttft,
            whole: !progress.streamed,
            took: ended - turn.arrived,
            predicted_ttft: prediction.ttft,
            predicted_cached: prediction.cached,
            reported_cached: usage.and_then(|usage| usage.cached),
            outcome: Cow::Borrowed(end.outcome.as_str()),
        }
    }

    pub(super) fn count_answered(&self, outcome: AttemptOutcome, seen: &ResponseReport, ended: Millis) {
        let (turn, progress) = (&self.turn, &self.progress);
        let Some(operation) = turn.endpoint.operation() else {
            return;
        };
        if outcome != AttemptOutcome::Ok || !progress.started {
            return;
        }
        self.proxy.state.routing.metrics.answered(&Answered {
            operation: operation.as_str(),
            model: &turn.model,
            ttft: progress.ttft,
            took: ended - turn.arrived,
            streamed: progress.streamed,
            counted: seen.usage.map(|usage| [usage.prompt, usage.completion]),
            trace: self.exemplar(None),
        });
    }

    /// Returns the trace id to attach as an exemplar, if the trace is kept.
    pub(super) fn exemplar(&self, outcome: Option<&str>) -> Option<TraceId> {
        let is_late = self.account.is_within() == Some(false);
        self.span.exemplar(self.turn.trace, is_late, outcome)
    }

    pub(super) fn close_account(&self, outcome: AttemptOutcome, seen: &ResponseReport, ended: Millis) {
        let cause = self.account.close(
            &self.proxy,
            account::End {
                outcome: outcome.as_str(),
                usage: seen.usage,
                engine: seen.engine(),
                took: ended - self.turn.arrived,
                class: self.turn.class(),
            },
        );
        if let Some(cause) = cause {
            self.span.cause(cause.as_str());
        }
    }

    /// Writes the turn to the captures, in memory and on disk, if the worker generated tokens for it.
    pub(super) fn write_down(&mut self, end: &AttemptEnd, ended: Millis) {
        let slip = self.slip.take();
        let recent = self.proxy.state.operations.operator.recent.open();
        let was_load =
            self.progress.started && self.turn.endpoint.generates() && end.outcome.may_be_computed();
        if was_load && (slip.is_some() || recent.is_some()) {
            let record = self.record(end, ended);
            if let Some(recent) = recent.as_deref().and_then(Option::as_ref) {
                recent.write(self.turn.arrived, &record);
            }
            if let Some(slip) = slip {
                slip.hand_in(record.into_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests;

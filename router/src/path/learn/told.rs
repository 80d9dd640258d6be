//! What is told of an attempt when it is over: metrics, the decision's account, captures, what its key pays.

use std::borrow::Cow;

use policy::fingerprint::ChainBuilder;
use policy::units::Tokens;

use super::super::account::End;
use super::super::admit::Endpoint;
use super::super::fingerprint::Extent;
use super::super::watch::{Seen, Usage};
use super::{Flight, Outcome};
use crate::metrics::Answered;
use telemetry::capture::Record;
use telemetry::context::TraceId;

impl Flight {
    /// What its key pays, now that it is known.
    pub(super) fn settle_charge(&mut self, usage: Option<Usage>) {
        let Some(place) = &mut self.place else { return };
        match (usage, self.outcome) {
            (Some(usage), _) => place.charge.correct(Tokens(usage.prompt + usage.completion)),
            (None, Outcome::WorkerError | Outcome::ClientError) => place.charge.give_back(),
            (None, Outcome::Broken) if !self.started => place.charge.give_back(),
            (None, _) if self.endpoint.generates() => {
                place
                    .charge
                    .add(self.passed.tokens(self.app.knowledge.ratio(&self.model)));
            }
            // What it answers with is not tokens of a model.
            (None, _) => {}
        }
    }

    /// The turn as the capture keeps it. Without a count of the worker's, lengths are estimates.
    pub(super) fn record(&self) -> Record<'_> {
        let (Extent::Bytes(units) | Extent::Tokens(units)) = self.extent;
        let prompt = self.scale.tokens(units);
        let end = self.reply.as_ref().map_or(units, ChainBuilder::bytes);
        let estimated = [prompt, self.scale.tokens(end).saturating_sub(prompt)];
        let counted = self
            .seen
            .and_then(|seen| seen.usage)
            .map(|usage| [usage.prompt, usage.completion]);
        Record {
            conversation: self.session.as_ref().map(|session| session.key),
            class: self
                .goal
                .origin
                .named(&self.app.live().objective)
                .to_owned()
                .into(),
            objective: self.goal.ttft,
            model: Cow::Borrowed(&self.model),
            prompt: Cow::Borrowed(&self.prompt),
            units,
            reply: self.reply.as_ref().map(|reply| Cow::Borrowed(reply.chain())),
            tokens: counted.unwrap_or(estimated),
            counted: counted.is_some(),
            worker: Cow::Borrowed(self.worker().name()),
            ttft: self.ttft,
            took: self.app.clock.now() - self.arrived,
            predicted_ttft: self.predicted_ttft,
            predicted_cached: self.predicted_cached,
            reported_cached: self
                .seen
                .and_then(|seen| seen.usage)
                .and_then(|usage| usage.cached),
            outcome: Cow::Borrowed(self.outcome.as_str()),
        }
    }

    /// Counts an answer that is whole under the names that others know.
    pub(super) fn count_answered(&self, seen: &Seen) {
        if self.outcome != Outcome::Ok || !self.started || !self.endpoint.generates() {
            return;
        }
        let operation = match self.endpoint {
            Endpoint::Completions | Endpoint::Generate => "text_completion",
            _ => "chat",
        };
        self.app.metrics.answered(&Answered {
            operation,
            model: &self.model,
            ttft: self.ttft,
            took: self.app.clock.now() - self.arrived,
            streamed: self.streamed,
            counted: seen.usage.map(|usage| [usage.prompt, usage.completion]),
            trace: self.exemplar(None),
        });
    }

    /// The trace that what is measured of it may be found by.
    pub(super) fn exemplar(&self, outcome: Option<&str>) -> Option<TraceId> {
        let is_late = self.ttft > self.goal.ttft;
        self.account.note.exemplar(self.trace, is_late, outcome)
    }

    /// Says what came of the decision.
    pub(super) fn close_account(&self, seen: &Seen) {
        let live = self.app.live();
        self.account.close(
            &self.app,
            End {
                outcome: self.outcome.as_str(),
                usage: seen.usage,
                engine: seen.engine(),
                took: self.app.clock.now() - self.arrived,
                class: self.goal.origin.name(&live.objective),
            },
        );
    }

    /// Hands the turn to the captures, in memory and of the file, if it was load on its worker.
    pub(super) fn write_down(&mut self) {
        let slip = self.slip.take();
        let recent = self.app.operator.recent.open();
        let was_load = self.started && self.endpoint.generates() && self.outcome != Outcome::ClientError;
        if was_load && (slip.is_some() || recent.is_some()) {
            let record = self.record();
            if let Some(recent) = recent.as_deref().and_then(Option::as_ref) {
                recent.write(self.arrived, &record);
            }
            if let Some(slip) = slip {
                slip.hand_in(record.into_owned());
            }
        }
    }
}

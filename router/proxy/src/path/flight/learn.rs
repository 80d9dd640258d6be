//! Builds the observations for the learner.

use std::sync::Arc;

use policy::fingerprint::ChainBuilder;
use policy::units::{Millis, Tokens};

use super::Flight;
use learning::feedback::{Late, LearnerEvent, Observation, PrefillSample};
use protocol::fingerprint::Extent;
use protocol::watch::ResponseReport;

/// A prefill this many times longer than that of the whole uncached prompt marks a slow worker.
const LATE: f64 = 2.0;

impl Flight {
    /// Reports a slow worker at the first token, before the response is complete. The bound assumes that nothing was
    /// cached, so it does not depend on the usage report. Overhead beside the prefill is excluded.
    pub(super) fn queue_lateness(&mut self) {
        let prediction = &self.prediction;
        let all = prediction.cost.prefill(prediction.prompt, Tokens::ZERO);
        let limit = LATE * (all + prediction.overhead).0;
        let alone = self.progress.alone;
        let prefill = alone.map(|took| took.saturating_sub(prediction.overhead));
        let Some(took) = prefill.filter(|took| took.0 > limit) else {
            return;
        };
        self.progress.taught = true;
        let cached = prediction.cached.min(prediction.prompt);
        self.proxy.state.routing.feedback.queue(LearnerEvent::Late(Late {
            worker: self.worker().id,
            at: self.proxy.state.routing.clock.now(),
            uncached: prediction.prompt.saturating_sub(cached),
            cached,
            took: PrefillSample::Clean(took),
        }));
    }

    /// Returns the time to first token. If the response did not stream, returns the time predicted for the counted
    /// prompt.
    fn ttft_to_learn(&self, prompt: Tokens) -> Millis {
        if self.progress.started && self.progress.streamed {
            return self.progress.ttft;
        }
        let prediction = &self.prediction;
        let cached = prediction.cached_of(prompt);
        prediction.wait + prediction.cost.prefill(prompt.saturating_sub(cached), cached)
    }

    /// Queues the observation for the learner.
    pub(super) fn queue_observation(&mut self, seen: &ResponseReport, ended: Millis) {
        let (turn, prediction, progress) = (&self.turn, &self.prediction, &self.progress);
        let (Extent::Bytes(units) | Extent::Tokens(units)) = turn.fingerprint.extent;
        let end = progress.reply.as_ref().map_or(units, ChainBuilder::bytes);
        let scale = &prediction.scale;
        let estimated = Tokens(scale.tokens(end).saturating_sub(scale.tokens(units)));
        let counted = seen.usage.filter(|usage| usage.prompt > 0);
        let prompt = counted.map_or(prediction.prompt, |usage| Tokens(usage.prompt));
        let reported = counted.and_then(|usage| usage.cached).map(Tokens);
        let prefill = seen
            .prefill
            .map(PrefillSample::Engine)
            .or(progress.alone.map(PrefillSample::Clean));
        let engine = seen.engine().filter(|_| !progress.is_untimed);
        let session = turn.session.as_ref();
        let observation = Observation {
            worker: self.worker().id,
            left: progress.left,
            conversation: session.map(|session| (session.key, Arc::clone(&session.name))),
            class: turn.expected.class,
            finish: seen.finish,
            last: turn.last,
            arrived: turn.arrived,
            ended,
            prompt,
            response: counted.map_or(estimated, |usage| Tokens(usage.completion)),
            cached: reported.unwrap_or_else(|| prediction.cached_of(prompt)),
            cached_is_told: reported.is_some(),
            prefill: prefill.filter(|_| !progress.taught),
            beside: engine.and_then(|engine| self.account.beside(engine)),
            compared: self.noted.compared,
            cost: prediction.cost,
            wait: prediction.wait,
            objective: turn.goal.ttft,
            objective_of: turn.goal.objective(),
            ttft_is_measured: progress.started && progress.streamed,
            ttft: self.ttft_to_learn(prompt),
            end: progress.reply.as_ref().and_then(|reply| reply.chain().last()),
            chain: Arc::clone(&turn.fingerprint.chain),
            tokens_per_unit: prompt.as_f64() / units.max(1) as f64,
        };
        let event = LearnerEvent::Turn(Box::new(observation));
        self.proxy.state.routing.feedback.queue(event);
    }
}

#[cfg(test)]
mod tests;

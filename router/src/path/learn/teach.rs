//! What an attempt leaves for the task that learns.

use std::sync::Arc;

use policy::fingerprint::ChainBuilder;
use policy::units::{Millis, Tokens};

use super::super::fingerprint::Extent;
use super::super::watch::Seen;
use super::Flight;
use crate::feedback::{Late, Lesson, Sample};

impl Flight {
    /// A worker that has become slow shows it by its first tokens, long before an answer of it is complete. So one that
    /// took twice as long as the whole prompt would, had nothing of it been cached, is not kept until then: that it is
    /// late does not depend on what the worker will say of its cache. What it takes beside its prefill is no part of that.
    pub(super) fn teach_late(&mut self) {
        const LATE: f64 = 2.0;
        let all = self.cost.prefill(self.estimated, Tokens::ZERO);
        let prefill = self.alone.map(|took| took.saturating_sub(self.overhead));
        let Some(took) = prefill.filter(|took| took.0 > LATE * (all + self.overhead).0) else {
            return;
        };
        self.taught = true;
        let cached = self.predicted_cached.min(self.estimated);
        self.app.feedback.late(Late {
            worker: self.worker().id,
            at: self.app.clock.now(),
            uncached: self.estimated.saturating_sub(cached),
            cached,
            took: Sample::Clean(took),
        });
    }

    /// What the turn took to its first token; of an answer that came whole, what its prefill was predicted to take.
    fn ttft_to_learn(&self, prompt: Tokens) -> Millis {
        if self.started && self.streamed {
            return self.ttft;
        }
        let cached = self.cached_of(prompt);
        self.wait + self.cost.prefill(prompt.saturating_sub(cached), cached)
    }

    /// Leaves what the turn taught for the task that learns.
    pub(super) fn teach(&mut self, seen: Seen) {
        let (Extent::Bytes(units) | Extent::Tokens(units)) = self.extent;
        let said = self.reply.as_ref().map_or(units, ChainBuilder::bytes);
        let said = Tokens(self.scale.tokens(said).saturating_sub(self.scale.tokens(units)));
        let counted = seen.usage.filter(|usage| usage.prompt > 0);
        let prompt = counted.map_or(self.estimated, |usage| Tokens(usage.prompt));
        let told = counted.and_then(|usage| usage.cached).map(Tokens);
        let prefill = seen.prefill.map(Sample::Engine).or(self.alone.map(Sample::Clean));
        let prefill = prefill.filter(|_| !self.taught);
        self.app.feedback.teach(Lesson {
            worker: self.worker().id,
            left: self.left,
            conversation: self
                .session
                .as_ref()
                .map(|session| (session.key, Arc::clone(&session.name))),
            class: self.expected.class,
            finish: seen.finish,
            last: self.last,
            arrived: self.arrived,
            ended: self.app.clock.now(),
            prompt,
            response: counted.map_or(said, |usage| Tokens(usage.completion)),
            cached: told.unwrap_or_else(|| self.cached_of(prompt)),
            cached_is_told: told.is_some(),
            prefill,
            beside: seen
                .engine()
                .filter(|_| !self.is_unclocked)
                .and_then(|engine| self.account.beside(engine)),
            compared: self.compared,
            cost: self.cost,
            wait: self.wait,
            objective: self.goal.ttft,
            ttft: self.ttft_to_learn(prompt),
            end: self.reply.as_ref().and_then(|reply| reply.chain().last()),
            chain: std::mem::take(&mut self.prompt),
            tokens_per_unit: prompt.as_f64() / units.max(1) as f64,
        });
    }
}

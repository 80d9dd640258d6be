//! What the worker holds after an attempt, where its keys are in tokens, and what it said of its cache.

use policy::estimate::Finish;
use policy::fingerprint::{CHUNK_BYTES, ChainBuilder};
use policy::residency::{Hold, Reply};
use policy::units::Tokens;
use tracing::debug;
use xxhash_rust::xxh3::xxh3_64;

use super::super::fingerprint::Extent;
use super::super::watch::Usage;
use super::{Flight, full_blocks};
use crate::knowledge::{Counted, Reported, Scale, Source};

impl Flight {
    /// The worker computed the prompt: it holds it, and the reply as far as it came. `places` is where the prompt's keys are,
    /// if that was counted.
    pub(super) fn settle(&mut self, hold: Hold, usage: Option<Usage>, places: Option<Scale>) {
        let (Extent::Bytes(prompt) | Extent::Tokens(prompt)) = self.extent;
        let worker = self.worker().id;
        let told = self.told.take();
        let reply = self.reply.as_ref();
        let end = reply.map_or(prompt, ChainBuilder::bytes);
        // What the worker counted is exact, if it counted one reply; else the reply goes on at the prompt's rate.
        let counted = usage
            .filter(|_| !self.is_several())
            .map(|usage| Scale::after(prompt, usage.prompt, end, usage.prompt + usage.completion));
        let scale = counted.as_ref().unwrap_or(&self.scale);
        let total = Tokens(scale.tokens(end));
        let reply = reply.map(|reply| Reply {
            parent: reply.parent(),
            chain: reply.chain(),
            before: self.prompt.span(self.prompt.keys_before_reply(reply.parent())),
            open: reply.goes_on() && !reply.bytes().is_multiple_of(CHUNK_BYTES as u64),
        });
        // An engine caches full blocks, and never computes the last token of an answer.
        let held = |tokens: u64| full_blocks(self.worker(), tokens.min(total.0.saturating_sub(1)));
        if let Some(told) = told {
            let tokens = scale.rising();
            told.answered(reply.as_ref(), (self.evict_first, total), |end| held(tokens(end)));
        }
        let places = places.filter(|_| counted.is_some());
        self.app.knowledge.update(worker, |residency| {
            if let Some(places) = &places {
                let tokens = places.rising();
                residency.counted(&hold, &self.prompt, |end| held(tokens(end)));
            }
            let tokens = scale.rising();
            residency.settle(hold, reply, |end| held(tokens(end)), self.evict_first, total);
        });
    }

    /// Whether what the worker counted is of several replies.
    pub(super) fn is_several(&self) -> bool {
        self.seen.is_some_and(|seen| seen.several)
    }

    /// Returns where the prompt's keys are, now that it is counted.
    pub(super) fn learn_usage(&self, usage: Usage) -> Option<Scale> {
        let worker = self.worker();
        if let Extent::Bytes(bytes) = self.extent {
            self.app
                .knowledge
                .counted(&self.model, bytes, Tokens(usage.prompt));
        }
        self.app
            .metrics
            .tokens(worker.name(), usage.prompt, self.predicted_cached.0, usage.cached);
        if let Some(cached) = usage.cached {
            let block = u64::from(worker.spec.block_size);
            let source = self.source.as_str();
            debug!(
                worker = worker.name(),
                source,
                predicted = self.predicted_cached.0,
                cached,
                "found in its cache"
            );
            self.app
                .metrics
                .agreement(worker.name(), source, self.predicted_cached.0, cached, block);
            let dropped = self.app.knowledge.reported(&Reported {
                worker: worker.id,
                model: &self.model,
                prompt: &self.prompt,
                scale: &self.scale,
                mirrored: self.mirrored,
                source: self.source,
                predicted: self.predicted_cached.0,
                cached,
            });
            if dropped > 0 {
                debug!(
                    worker = worker.name(),
                    dropped,
                    "its cache lacks what it should hold: what was used before that is taken to be gone"
                );
                self.app.metrics.mirror_corrected(worker.name());
            }
        }
        self.place(usage)
    }

    /// The worker counted the tokens of prompt and reply, so their keys' places are known.
    pub(super) fn place(&self, usage: Usage) -> Option<Scale> {
        if !matches!(self.extent, Extent::Bytes(_)) {
            return None;
        }
        let (knowledge, worker) = (&self.app.knowledge, self.worker());
        Some(
            knowledge.turn_over(&Counted {
                model: &self.model,
                worker: worker.id,
                session: self
                    .session
                    .as_ref()
                    .map(|session| [xxh3_64(session.name.as_bytes()), session.key]),
                since: self.blocks_told.unwrap_or(u64::MAX),
                prompt: &self.prompt,
                reply: self
                    .reply
                    .as_ref()
                    .filter(|_| !self.is_several())
                    .map(|reply| (reply.parent(), reply.chain())),
                goes_on: self.reply.as_ref().is_some_and(ChainBuilder::goes_on),
                cached: usage.cached,
                prompt_tokens: usage.prompt,
                reply_tokens: usage.completion,
                ended: self.seen.is_some_and(|seen| seen.finish == Finish::Stop),
            }),
        )
    }

    /// What was predicted to be cached of a prompt that turned out to have so many tokens. The mirror counts in tokens
    /// of the estimate.
    pub(super) fn cached_of(&self, prompt: Tokens) -> Tokens {
        let share = match self.source {
            Source::Mirror { .. } => prompt.as_f64() / self.estimated.as_f64().max(1.0),
            _ => 1.0,
        };
        Tokens((self.predicted_cached.as_f64() * share).round() as u64).min(prompt)
    }
}

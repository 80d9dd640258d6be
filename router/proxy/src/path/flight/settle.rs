//! Updates the worker's cache state and token offsets after an attempt.

use policy::estimate::Finish;
use policy::fingerprint::{CHUNK_BYTES, ChainBuilder};
use policy::residency::{Reply, Reservation};
use policy::units::Tokens;
use tracing::debug;
use xxhash_rust::xxh3::xxh3_64;

use super::{Flight, full_blocks};
use learning::knowledge::{CountedTurn, Reported, Scale};
use protocol::fingerprint::Extent;
use protocol::watch::{ResponseReport, Usage};

impl Flight {
    /// Settles the mirror's hold. A prompt that produced a token was computed; any other may not have been.
    pub(super) fn settle(&mut self, is_computed: bool, seen: &ResponseReport, offsets: Option<Scale>) {
        let Some(hold) = self.noted.hold.take() else {
            return;
        };
        let knowledge = &self.proxy.state.routing.knowledge;
        if is_computed {
            if let Some(reply) = &self.progress.reply {
                knowledge.answered(&self.turn.fingerprint.chain, reply);
            }
            self.settle_computed(hold, seen, offsets);
        } else {
            knowledge.update(self.worker().id, |residency| residency.retract(hold));
        }
    }

    /// Records that the worker holds the prompt and the received part of the reply. `offsets`: token offsets of the
    /// prompt, if counted.
    fn settle_computed(&mut self, hold: Reservation, seen: &ResponseReport, offsets: Option<Scale>) {
        let turn = &self.turn;
        let chain = &turn.fingerprint.chain;
        let (Extent::Bytes(prompt) | Extent::Tokens(prompt)) = turn.fingerprint.extent;
        let evict_first = self.prediction.evict_first;
        let told = self.noted.told.take();
        let reply = self.progress.reply.as_ref();
        let end = reply.map_or(prompt, ChainBuilder::bytes);
        // A count of a single reply is exact. Without one, the prompt's rate applies to the reply.
        let counted = seen
            .usage
            .filter(|_| !seen.several)
            .map(|usage| Scale::after(prompt, usage.prompt, end, usage.prompt + usage.completion));
        let scale = counted.as_ref().unwrap_or(&self.prediction.scale);
        let total = Tokens(scale.tokens(end));
        let reply = reply.map(|reply| Reply {
            parent: reply.parent(),
            chain: reply.chain(),
            before: chain.span(chain.keys_before_reply(reply.parent())),
            open: reply.goes_on() && !reply.bytes().is_multiple_of(CHUNK_BYTES as u64),
        });
        let worker = self.worker();
        // An engine caches full blocks, and never computes the last token of a response.
        let held = |tokens: u64| full_blocks(worker, tokens.min(total.0.saturating_sub(1)));
        if let Some(told) = told {
            let tokens = scale.rising();
            told.answered(reply.as_ref(), evict_first, total, &|end| held(tokens(end)));
        }
        let offsets = offsets.filter(|_| counted.is_some());
        self.proxy.state.routing.knowledge.update(worker.id, |residency| {
            if let Some(offsets) = &offsets {
                let tokens = offsets.rising();
                residency.counted(&hold, chain, |end| held(tokens(end)));
            }
            let tokens = scale.rising();
            residency.settle(hold, reply, |end| held(tokens(end)), evict_first, total);
        });
    }

    /// Learns from the worker's token counts. Returns the token offsets of the prompt's keys.
    pub(super) fn learn_usage(&self, usage: Usage, seen: &ResponseReport) -> Option<Scale> {
        let (worker, model) = (self.worker(), &self.turn.model);
        let routing = &self.proxy.state.routing;
        let predicted = self.prediction.cached.0;
        if let Extent::Bytes(bytes) = self.turn.fingerprint.extent {
            let prompt = Tokens(usage.prompt);
            let media = &self.turn.fingerprint.media;
            let scale = &self.prediction.scale;
            routing.knowledge.counted(model, bytes, media, scale, prompt);
        }
        routing
            .metrics
            .tokens(worker.name(), usage.prompt, predicted, usage.cached);
        if let Some(cached) = usage.cached {
            self.compare_cached(cached);
        }
        self.locate(usage, seen)
    }

    fn compare_cached(&self, cached: u64) {
        let (worker, prediction) = (self.worker(), &self.prediction);
        let routing = &self.proxy.state.routing;
        let predicted = prediction.cached.0;
        let block = u64::from(worker.spec.block_size);
        let source = prediction.source.as_str();
        debug!(
            worker = worker.name(),
            source, predicted, cached, "cached tokens reported"
        );
        routing
            .metrics
            .agreement(worker.name(), source, predicted, cached, block);
        let corrected = routing.knowledge.reported(&Reported {
            worker: worker.id,
            model: &self.turn.model,
            conversation: self.turn.session.as_ref().map_or(0, |session| session.key),
            prompt: &self.turn.fingerprint.chain,
            scale: &prediction.scale,
            hold: self.noted.hold.as_ref(),
            mirrored: prediction.mirrored,
            source: prediction.source,
            predicted,
            cached,
        });
        if corrected.dropped > 0 || corrected.is_cleared {
            debug!(
                worker = worker.name(),
                dropped = corrected.dropped,
                cleared = corrected.is_cleared,
                "the worker's cache holds less than its mirror; entries are dropped from the mirror"
            );
            routing
                .metrics
                .mirror_corrected(worker.name(), corrected.is_cleared);
        }
    }

    fn locate(&self, usage: Usage, seen: &ResponseReport) -> Option<Scale> {
        if !matches!(self.turn.fingerprint.extent, Extent::Bytes(_)) {
            return None;
        }
        let reply = self.progress.reply.as_ref();
        let session = self.turn.session.as_ref();
        Some(
            self.proxy.state.routing.knowledge.turn_over(&CountedTurn {
                model: &self.turn.model,
                worker: self.worker().id,
                session: session.map(|session| [xxh3_64(session.name.as_bytes()), session.key]),
                since: self.noted.blocks_told.unwrap_or(u64::MAX),
                prompt: &self.turn.fingerprint.chain,
                media: &self.turn.fingerprint.media,
                reply: reply
                    .filter(|_| !seen.several)
                    .map(|reply| (reply.parent(), reply.chain())),
                goes_on: reply.is_some_and(ChainBuilder::goes_on),
                cached: usage.cached,
                prompt_tokens: usage.prompt,
                reply_tokens: usage.completion,
                ended: seen.finish == Finish::Stop,
            }),
        )
    }
}

#[cfg(test)]
mod tests;

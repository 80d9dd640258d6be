//! What happened, applied: in-flight work, what lives where, tokens per byte, metrics, hints.
//!
//! A [`Flight`] is one attempt on one worker. It holds everything that must be given back, so that however the attempt
//! ends (answered, failed, timed out, client gone, panic) it is counted once and nothing leaks.

use std::sync::Arc;

use policy::fingerprint::{Chain, ChainBuilder};
use policy::residency::Hold;
use policy::units::{Millis, Tokens};
use tracing::debug;
use xxhash_rust::xxh3::xxh3_64;

use super::admit::Endpoint;
use super::choose::{Choice, Turn};
use super::fingerprint::Extent;
use super::session::Session;
use super::watch::Usage;
use crate::app::{App, Place};
use crate::capture::{Record, Slip};
use crate::fleet::hints::Kind;
use crate::fleet::{InFlight, Worker};
use crate::knowledge::{Counted, Reported, Scale, Source};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer passed.
    Ok,
    /// The worker refused the request: 4xx.
    ClientError,
    /// The worker failed: 5xx, no answer, none in time.
    WorkerError,
    /// The answer broke off.
    Broken,
    /// The client left.
    Aborted,
    /// The worker was never reached; the request may go elsewhere.
    NotReached,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::WorkerError => "worker_error",
            Self::Broken => "broken",
            Self::Aborted => "aborted",
            Self::NotReached => "not_reached",
        }
    }
}

/// One attempt on one worker, from the moment it is sent.
#[derive(Debug)]
pub struct Flight {
    app: Arc<App>,
    in_flight: InFlight,
    hold: Option<Hold>,
    place: Option<Place>,
    endpoint: Endpoint,
    arrived: Millis,
    model: String,
    session: Option<Session>,
    extent: Extent,
    /// Where in tokens the prompt's keys end.
    scale: Scale,
    evict_first: Tokens,
    predicted_ttft: Millis,
    predicted_cached: Tokens,
    /// Where that prediction comes from.
    source: Source,
    /// Leading keys that the worker's mirror held.
    mirrored: usize,
    /// The prompt's keys.
    prompt: Chain,
    /// Blocks that the worker had told of when the attempt went out; `None` if it tells of none.
    blocks_told: Option<u64>,
    reply: Option<ChainBuilder>,
    /// The turn's place in the capture.
    slip: Option<Slip>,
    ttft: Millis,
    started: bool,
    outcome: Outcome,
    usage: Option<Usage>,
}

impl Flight {
    /// The attempt goes out: its work, its place and its prefix count from here on.
    #[must_use]
    pub fn start(app: &Arc<App>, turn: &mut Turn, choice: &Choice, place: Option<Place>) -> Self {
        let terms = choice.decision.chosen();
        let worker = &choice.worker;
        let prefill = worker.cost().prefill(terms.uncached, terms.cached);
        let (scale, slot) = (&choice.matched.scale, worker.id.index());
        let chain = &turn.fingerprint.chain;
        let hold = if chain.is_empty() {
            None
        } else {
            app.knowledge.update(worker.id, |residency| {
                residency.sent(worker.id, chain, |end| scale.tokens(end))
            })
        };
        Self {
            app: Arc::clone(app),
            in_flight: worker.send(app.clock, Some(prefill)),
            hold,
            place,
            endpoint: turn.endpoint,
            arrived: turn.arrived,
            model: turn.model.clone(),
            session: turn.session.clone(),
            extent: turn.fingerprint.extent,
            scale: scale.clone(),
            evict_first: choice.evict_first,
            predicted_ttft: terms.predicted_ttft(),
            predicted_cached: terms.cached,
            source: choice
                .matched
                .sources
                .get(slot)
                .copied()
                .unwrap_or(Source::Mirror { edge: 0 }),
            mirrored: choice.matched.mirrored.get(slot).copied().unwrap_or(0),
            prompt: chain.clone(),
            blocks_told: app.knowledge.stored(worker.id),
            reply: turn.fingerprint.reply.clone(),
            slip: app.capture.as_ref().map(|capture| capture.begin(turn.arrived)),
            ttft: Millis::ZERO,
            started: false,
            outcome: Outcome::Aborted,
            usage: None,
        }
    }

    /// The worker it is on.
    #[must_use]
    pub fn worker(&self) -> &Arc<Worker> {
        self.in_flight.worker()
    }

    /// The first token passed.
    pub fn first_token(&mut self) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        self.in_flight.first_token();
        self.ttft = self.app.clock.now() - self.arrived;
        let actual_s = self.ttft.0 / 1e3;
        let objective_s = self.app.config.objective.ttft.0 / 1e3;
        self.app.metrics.first_token(
            self.worker().name(),
            actual_s,
            self.predicted_ttft.0 / 1e3,
            objective_s,
        );
        if let Some(session) = &self.session
            && let Some(last) = self.app.knowledge.moved(session.key, self.worker().id)
        {
            self.tell_moved(last.index(), session);
        }
    }

    /// Reply text passed.
    pub fn reply_text(&mut self, text: &str) {
        if let Some(reply) = &mut self.reply {
            reply.push_text(text);
        }
    }

    /// The attempt ended; what is not said here counts as the client having left.
    pub fn end(mut self, outcome: Outcome, usage: Option<Usage>, plain_reply: bool) {
        self.outcome = outcome;
        self.usage = usage;
        if !plain_reply {
            self.reply = None;
        }
    }

    /// The worker was never reached. Gives back the place, so that the request can be tried elsewhere.
    #[must_use]
    pub fn not_reached(mut self) -> Option<Place> {
        self.outcome = Outcome::NotReached;
        self.place.take()
    }

    /// The worker of the last turn may drop the conversation; its mirror does as it will.
    fn tell_moved(&self, last: usize, session: &Session) {
        let hints = &self.app.config.hints;
        let workers = self.app.fleet.workers();
        if let Some(old) = workers.get(last)
            && old.hears_hints()
            && hints.enabled
            && hints.out_of_band
        {
            old.hints.push(Arc::clone(&session.name), Kind::Moved);
            self.app.knowledge.update(old.id, |residency| {
                residency.released(old.id, self.prompt.hashes());
            });
        }
    }

    /// The worker computed the prompt: it holds it, and the reply as far as it came.
    fn settle(&mut self, hold: Hold, usage: Option<Usage>) {
        let (Extent::Bytes(prompt) | Extent::Tokens(prompt)) = self.extent;
        let worker = self.worker().id;
        let reply = self.reply.as_ref();
        let end = reply.map_or(prompt, ChainBuilder::bytes);
        // What the worker counted is exact; else the reply goes on at the prompt's rate.
        let counted =
            usage.map(|usage| Scale::after(prompt, usage.prompt, end, usage.prompt + usage.completion));
        let scale = counted.as_ref().unwrap_or(&self.scale);
        let total = Tokens(scale.tokens(end));
        let hints = &self.app.config.hints;
        let evict_first = if hints.in_request || hints.out_of_band {
            self.evict_first
        } else {
            Tokens::ZERO
        };
        self.app.knowledge.update(worker, |residency| {
            let reply = reply.map(|reply| (reply.parent(), reply.chain(), prompt));
            residency.settle(hold, reply, |end| scale.tokens(end), evict_first, total);
        });
        // Where requests carry no hints, the same is said beside them.
        if hints.out_of_band
            && !hints.in_request
            && evict_first > Tokens::ZERO
            && let Some(session) = &self.session
        {
            let keep = total.saturating_sub(evict_first);
            self.worker()
                .hints
                .push(Arc::clone(&session.name), Kind::Trim { keep });
        }
    }

    fn learn_usage(&self, usage: Usage) {
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
        self.place(usage);
    }
}

impl Flight {
    /// The worker counted the tokens of prompt and reply, so their keys' places are known.
    fn place(&self, usage: Usage) {
        if !matches!(self.extent, Extent::Bytes(_)) {
            return;
        }
        let (knowledge, worker) = (&self.app.knowledge, self.worker());
        knowledge.turn_over(&Counted {
            model: &self.model,
            worker: worker.id,
            session: self
                .session
                .as_ref()
                .map(|session| [xxh3_64(session.name.as_bytes()), session.key]),
            since: self.blocks_told.unwrap_or(u64::MAX),
            prompt: &self.prompt,
            reply: self.reply.as_ref().map(ChainBuilder::chain),
            cached: usage.cached,
            prompt_tokens: usage.prompt,
            reply_tokens: usage.completion,
        });
    }
}

impl Flight {
    /// The turn as the capture keeps it. Without a count of the worker's, lengths are estimates.
    fn record(&mut self) -> Record {
        let (Extent::Bytes(units) | Extent::Tokens(units)) = self.extent;
        let prompt = self.scale.tokens(units);
        let end = self.reply.as_ref().map_or(units, ChainBuilder::bytes);
        let estimated = [prompt, self.scale.tokens(end).saturating_sub(prompt)];
        let counted = self.usage.map(|usage| [usage.prompt, usage.completion]);
        Record {
            conversation: self.session.as_ref().map(|session| session.key),
            class: std::mem::take(&mut self.model),
            prompt: std::mem::take(&mut self.prompt),
            units,
            reply: self.reply.as_ref().map(|reply| reply.chain().clone()),
            tokens: counted.unwrap_or(estimated),
            counted: counted.is_some(),
            worker: self.worker().name().into(),
            ttft: self.ttft,
            predicted_ttft: self.predicted_ttft,
            predicted_cached: self.predicted_cached,
            reported_cached: self.usage.and_then(|usage| usage.cached),
            outcome: self.outcome.as_str(),
        }
    }

    /// Hands the turn to the capture, if it was load on its worker.
    fn write_down(&mut self) {
        if let Some(slip) = self.slip.take()
            && self.started
            && self.outcome != Outcome::ClientError
        {
            slip.hand_in(self.record());
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(reply) = &mut self.reply {
            reply.end_message();
        }
        let usage = self.usage;
        if let Some(usage) = usage {
            self.learn_usage(usage);
        }
        if let Some(hold) = self.hold.take() {
            // A prompt that produced a token was computed; one that did not may not have been.
            if self.started && self.outcome != Outcome::ClientError {
                self.settle(hold, usage);
            } else {
                self.app
                    .knowledge
                    .update(self.worker().id, |residency| residency.retract(hold));
            }
        }
        self.write_down();
        let seconds = (self.app.clock.now() - self.arrived).0 / 1e3;
        if self.outcome != Outcome::NotReached {
            self.app
                .metrics
                .request(self.endpoint.as_str(), self.outcome.as_str(), seconds);
        }
        debug!(
            worker = self.worker().name(),
            outcome = self.outcome.as_str(),
            seconds,
            "ended"
        );
    }
}

//! What happened, applied: in-flight work, what lives where, tokens per byte, metrics.
//!
//! What the next choice needs to see at once is applied here; all else is left as a [`Lesson`] for the task that learns.
//!
//! A [`Flight`] is one attempt on one worker. It holds everything that must be given back, so that however the attempt
//! ends (answered, failed, timed out, client gone, panic) it is counted once and nothing leaks.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use policy::cost::PrefillCost;
use policy::estimate::Finish;
use policy::fingerprint::{CHUNK_BYTES, Chain, ChainBuilder};
use policy::ids::WorkerId;
use policy::residency::{Hold, Reply};
use policy::units::{Millis, Tokens};
use tracing::debug;
use xxhash_rust::xxh3::xxh3_64;

use super::account::{Account, End};
use super::admit::Endpoint;
use super::arrival::trace::TraceId;
use super::choose::{Choice, Turn};
use super::fingerprint::Extent;
use super::objective::Goal;
use super::reply::{self, Piece};
use super::session::Session;
use super::stored::Kept;
use super::watch::{Passed, Seen, Usage};
use crate::app::{App, Place};
use crate::bus::turns::Told;
use crate::capture::{Record, Slip};
use crate::feedback::{Expected, Late, Lesson, Sample};
use crate::fleet::breaker::Pass;
use crate::fleet::{InFlight, Worker};
use crate::knowledge::{Counted, Reported, Scale, Source};
use crate::metrics::Answered;
use crate::telemetry::trail::Note;

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
    /// The request's own time was up.
    Deadline,
    /// The router had to go.
    Cut,
    /// The worker did not begin; the request may go elsewhere.
    NotReached,
    /// Another worker, asked as well, was faster.
    Outrun,
}

impl Outcome {
    /// Its name in metrics and traces.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::WorkerError => "worker_error",
            Self::Broken => "broken",
            Self::Aborted => "aborted",
            Self::Deadline => "deadline",
            Self::Cut => "cut",
            Self::NotReached => "not_reached",
            Self::Outrun => "outrun",
        }
    }
}

impl Outcome {
    /// Whether it is the request's end, and not only an attempt's.
    fn is_final(self) -> bool {
        !matches!(self, Self::NotReached | Self::Outrun)
    }

    /// Whether it is held against the worker.
    fn is_the_workers(self) -> bool {
        matches!(self, Self::WorkerError | Self::Broken)
    }
}

/// Whether a request has been held against a worker: once is enough, however many attempts it takes.
pub type Charged = Arc<AtomicBool>;

/// Tokens in the full blocks of so many.
fn full_blocks(worker: &Worker, tokens: u64) -> u64 {
    let block = u64::from(worker.spec.block_size.max(1));
    // It is asked for each key of a prompt, and a division takes as long as all else that is.
    if block.is_power_of_two() {
        tokens & !(block - 1)
    } else {
        tokens / block * block
    }
}

/// One attempt on one worker, from the moment it is sent.
#[derive(Debug)]
pub struct Flight {
    app: Arc<App>,
    in_flight: InFlight,
    hold: Option<Hold>,
    /// What other replicas were told of it.
    told: Option<Told>,
    /// Its place in the router, once it is this attempt that is answered.
    place: Option<Place>,
    charged: Charged,
    endpoint: Endpoint,
    tenant: u64,
    arrived: Millis,
    model: Arc<str>,
    session: Option<Session>,
    extent: Extent,
    /// Where in tokens the prompt's keys end.
    scale: Scale,
    /// Tokens of the prompt, as far as they could be told.
    estimated: Tokens,
    evict_first: Tokens,
    goal: Goal,
    expected: Expected,
    last: bool,
    /// What the worker was like when it was chosen.
    cost: PrefillCost,
    overhead: Millis,
    wait: Millis,
    utilisation: f64,
    predicted_ttft: Millis,
    predicted_cached: Tokens,
    /// Where that prediction comes from.
    source: Source,
    /// Leading keys that the worker's mirror held.
    mirrored: usize,
    /// The prompt's keys.
    prompt: Arc<Chain>,
    /// Blocks that the worker had told of when the attempt went out; `None` if it tells of none.
    blocks_told: Option<u64>,
    /// The reply as it passes, and what became of it: its keys, if the next turn can repeat it.
    passing: Option<reply::Reply>,
    reply: Option<ChainBuilder>,
    /// The turn's place in the capture's file.
    slip: Option<Slip>,
    ttft: Millis,
    started: bool,
    /// What its prefill took, if it had the worker to itself and its first token was seen.
    alone: Option<Millis>,
    /// Its prefill has been learned from.
    taught: bool,
    /// The worker of the conversation's last turn, if another.
    left: Option<WorkerId>,
    outcome: Outcome,
    seen: Option<Seen>,
    /// What has passed of the answer.
    passed: Passed,
    /// What comes of the decision.
    account: Account,
    trace: Option<TraceId>,
    streamed: bool,
    /// It went out before anybody here knew: how long its prefill takes is not known.
    is_unclocked: bool,
}

impl Flight {
    /// The attempt goes out: its work and its prefix count from here on. Boxed: it is large, and handed on many times.
    #[must_use]
    pub fn start(app: &Arc<App>, turn: &Turn, choice: &Choice, pass: Pass, charged: Charged) -> Box<Self> {
        let terms = choice.decision.chosen();
        let worker = &choice.worker;
        let prefill = terms.prefill();
        let scale = &choice.matched.scale;
        let chain = &turn.fingerprint.chain;
        // Counted first: a worker that is to leave stays as long as it has something.
        let in_flight = worker.send(app.clock, Some(prefill), pass);
        let hold = if chain.is_empty() {
            None
        } else {
            app.knowledge.update(worker.id, |residency| {
                let tokens = scale.rising();
                residency.sent(worker.id, chain, |end| full_blocks(worker, tokens(end)))
            })
        };
        let told = app.bus.as_ref().map(|bus| {
            let tokens = scale.rising();
            let session = turn.session.as_ref().map(|session| session.key);
            let tokens = |end| full_blocks(worker, tokens(end));
            bus.sent(app.clock, (worker, prefill), session, chain, tokens)
        });
        Box::new(Self {
            app: Arc::clone(app),
            in_flight,
            hold,
            told,
            place: None,
            charged,
            endpoint: turn.endpoint,
            tenant: turn.tenant,
            arrived: turn.arrived,
            model: Arc::clone(&turn.model),
            session: turn.session.clone(),
            extent: turn.fingerprint.extent,
            scale: scale.clone(),
            estimated: choice.matched.prompt,
            evict_first: choice.evict_first,
            goal: turn.goal,
            expected: turn.expected,
            last: turn.last,
            cost: choice.view.cost,
            overhead: choice.view.overhead,
            wait: choice.view.wait,
            utilisation: choice.view.utilisation,
            predicted_ttft: terms.predicted_ttft(),
            predicted_cached: terms.cached,
            source: choice.matched.source,
            mirrored: choice.matched.mirrored,
            prompt: Arc::clone(chain),
            blocks_told: app.knowledge.stored(worker.id),
            passing: turn
                .fingerprint
                .reply
                .clone()
                .map(|hash| reply::Reply::at(turn.endpoint, hash)),
            reply: None,
            slip: app.capture.as_ref().map(|capture| capture.begin(turn.arrived)),
            ttft: Millis::ZERO,
            started: false,
            alone: None,
            taught: false,
            left: None,
            outcome: Outcome::Aborted,
            seen: None,
            passed: Passed::default(),
            account: Account::open(app, turn, choice),
            trace: turn.trace,
            streamed: false,
            is_unclocked: false,
        })
    }

    /// What is found out of it is noted there as well.
    pub fn traced(&mut self, note: Note) {
        self.account.note = note;
    }

    /// It went out before anybody here knew, or its first token cannot be seen: its times teach nothing of the worker.
    pub fn is_unclocked(&mut self) {
        self.is_unclocked = true;
    }

    /// The worker it is on.
    #[must_use]
    pub fn worker(&self) -> &Arc<Worker> {
        self.in_flight.worker()
    }

    /// The router.
    #[must_use]
    pub fn app(&self) -> &App {
        &self.app
    }

    /// The first token passed; of an answer that is not `streamed` it is the last as well.
    pub fn first_token(&mut self, streamed: bool) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        self.answered();
        self.alone = self
            .in_flight
            .first_token()
            .filter(|_| streamed && !self.is_unclocked);
        if let Some(told) = &self.told {
            told.begun();
        }
        self.streamed = streamed;
        if !self.endpoint.generates() {
            return;
        }
        self.teach_late();
        self.ttft = self.app.clock.now() - self.arrived;
        let mut error = self.account.first_token(&self.app, self.ttft, streamed);
        if self.is_unclocked {
            error = Millis::ZERO;
        } else {
            self.worker().errors.lock().push(error);
        }
        let live = self.app.live();
        let class = self.goal.origin.name(&live.objective);
        self.app.metrics.first_token(
            self.worker().name(),
            class,
            [self.ttft, error, self.goal.ttft],
            self.exemplar(None),
        );
        if let Some(session) = &self.session {
            self.left = self.app.knowledge.moved(session.key, self.worker().id);
        }
    }

    /// The answer can be asked for again, and gone on from, by the id with this key: only on this worker.
    pub fn is_kept(&self, key: u64) {
        let kept = Kept {
            worker: self.worker().id,
            conversation: self.session.clone(),
        };
        self.app.stored.keep(self.tenant, key, kept);
    }

    /// A piece of the reply passed.
    pub fn reply(&mut self, piece: Piece<'_>) {
        if let Some(passing) = &mut self.passing {
            passing.push(piece);
        }
    }

    /// So much of the answer has passed.
    pub fn passed(&mut self, passed: Passed) {
        self.passed = passed;
    }

    /// The attempt ended; what is not said here counts as the client having left. Only a reply that is `complete` can be
    /// found again.
    pub fn end(mut self: Box<Self>, outcome: Outcome, seen: Option<Seen>, complete: bool) {
        self.outcome = outcome;
        self.seen = seen;
        // Where usage comes with each token, what was cached comes with the last: a cut stream's silence says nothing.
        if complete && let Some(usage) = self.seen.as_mut().and_then(|seen| seen.usage.as_mut()) {
            usage.cached = self.in_flight.worker().cached(usage.cached);
        }
        if !complete {
            self.passing = None;
        }
    }

    /// Whether a stream of it ends with `[DONE]`.
    #[must_use]
    pub fn is_ended_by_done(&self) -> bool {
        matches!(self.endpoint, Endpoint::Chat | Endpoint::Completions)
    }

    /// This is the attempt that is answered: the request's place goes with it.
    pub fn keep(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// The worker answers as it should.
    pub fn answered(&mut self) {
        if self.in_flight.answered() {
            self.app.breaker_closed(self.worker());
        }
    }

    /// The worker did not begin: the request may go elsewhere.
    pub fn not_reached(mut self: Box<Self>) {
        self.outcome = Outcome::NotReached;
    }

    /// What comes is not held against the worker.
    pub fn spare(&mut self) {
        self.charged.store(true, Ordering::Relaxed);
    }

    /// Holds the request against the worker, unless that was done for an earlier attempt of it.
    pub fn charge(&mut self) {
        if !self.charged.swap(true, Ordering::Relaxed) && self.in_flight.failed() {
            self.app.breaker_opened(self.worker());
        }
    }

    /// The worker computed the prompt: it holds it, and the reply as far as it came. `places` is where the prompt's keys are,
    /// if that was counted.
    fn settle(&mut self, hold: Hold, usage: Option<Usage>, places: Option<Scale>) {
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
    fn is_several(&self) -> bool {
        self.seen.is_some_and(|seen| seen.several)
    }

    /// A worker that has become slow shows it by its first tokens, long before an answer of it is complete. So one that
    /// took twice as long as the whole prompt would, had nothing of it been cached, is not kept until then: that it is
    /// late does not depend on what the worker will say of its cache. What it takes beside its prefill is no part of that.
    fn teach_late(&mut self) {
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

    /// Leaves what the turn taught for the task that learns.
    fn teach(&mut self, seen: Seen) {
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
            cost: self.cost,
            wait: self.wait,
            objective: self.goal.ttft,
            next_prompt: self.expected.next_prompt,
            utilisation: self.utilisation,
            evict_first: self.evict_first,
            chain: std::mem::take(&mut self.prompt),
            tokens_per_unit: prompt.as_f64() / units.max(1) as f64,
        });
    }

    /// What was predicted to be cached of a prompt that turned out to have so many tokens. The mirror counts in tokens
    /// of the estimate.
    fn cached_of(&self, prompt: Tokens) -> Tokens {
        let share = match self.source {
            Source::Mirror { .. } => prompt.as_f64() / self.estimated.as_f64().max(1.0),
            _ => 1.0,
        };
        Tokens((self.predicted_cached.as_f64() * share).round() as u64).min(prompt)
    }

    /// Returns where the prompt's keys are, now that it is counted.
    fn learn_usage(&self, usage: Usage) -> Option<Scale> {
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
}

impl Flight {
    /// The worker counted the tokens of prompt and reply, so their keys' places are known.
    fn place(&self, usage: Usage) -> Option<Scale> {
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
}

impl Flight {
    /// What its key pays, now that it is known.
    fn settle_charge(&mut self, usage: Option<Usage>) {
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
    fn record(&self) -> Record<'_> {
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
    fn count_answered(&self, seen: &Seen) {
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
    fn exemplar(&self, outcome: Option<&str>) -> Option<TraceId> {
        let is_late = self.ttft > self.goal.ttft;
        self.account.note.exemplar(self.trace, is_late, outcome)
    }

    /// Says what came of the decision.
    fn close_account(&self, seen: &Seen) {
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
    fn write_down(&mut self) {
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

impl Drop for Flight {
    fn drop(&mut self) {
        match self.outcome {
            Outcome::Ok => self.answered(),
            outcome if outcome.is_the_workers() => self.charge(),
            // It did not fail; whether it would have, nobody knows.
            _ => {}
        }
        self.reply = self.passing.take().and_then(reply::Reply::finish);
        let seen = self.seen.unwrap_or_default();
        let usage = seen.usage;
        let places = usage.and_then(|usage| self.learn_usage(usage));
        self.settle_charge(usage);
        let computed = self.started && self.outcome != Outcome::ClientError && self.endpoint.generates();
        if let Some(hold) = self.hold.take() {
            // A prompt that produced a token was computed; one that did not may not have been.
            if computed {
                if let Some(reply) = &self.reply {
                    let knowledge = &self.app.knowledge;
                    knowledge.answered(&self.prompt, reply);
                }
                self.settle(hold, usage, places);
            } else {
                self.app
                    .knowledge
                    .update(self.worker().id, |residency| residency.retract(hold));
            }
        }
        self.close_account(&seen);
        self.count_answered(&seen);
        self.write_down();
        if computed {
            self.teach(seen);
        }
        let seconds = (self.app.clock.now() - self.arrived).0 / 1e3;
        if self.outcome.is_final() {
            let outcome = self.outcome.as_str();
            let trace = self.exemplar(Some(outcome));
            self.app
                .metrics
                .request_of(self.endpoint.as_str(), outcome, seconds, trace);
        }
        debug!(
            worker = self.worker().name(),
            outcome = self.outcome.as_str(),
            seconds,
            "ended"
        );
    }
}

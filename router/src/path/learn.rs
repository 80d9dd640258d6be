//! What happened, applied: in-flight work, what lives where, tokens per byte, metrics.
//!
//! What the next choice needs to see at once is applied here; all else is left as a [`Lesson`](crate::feedback::Lesson) for the task that learns.
//!
//! | module | what |
//! |---|---|
//! | `outcome` | how attempts end |
//! | `settle` | what the worker holds now, and where it is in tokens |
//! | `teach` | what is left for the task that learns |
//! | `told` | metrics, the decision's account, captures, what the key pays |
//!
//! A [`Flight`] is one attempt on one worker. It holds everything that must be given back, so that however the attempt
//! ends (answered, failed, timed out, client gone, panic) it is counted once and nothing leaks.

mod outcome;
mod settle;
mod teach;
mod told;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use policy::cost::PrefillCost;
use policy::fingerprint::{Chain, ChainBuilder};
use policy::ids::WorkerId;
use policy::residency::{Compared, Hold};
use policy::tail;
use policy::units::{Millis, Tokens};
use tracing::{debug, warn};

pub use self::outcome::Outcome;
use super::account::Account;
use super::admit::Endpoint;
use super::choose::{Choice, Turn};
use super::claim::{self, Allowed};
use super::fingerprint::Extent;
use super::objective::Goal;
use super::reply::{self, Piece};
use super::session::Session;
use super::stored::Kept;
use super::watch::{Passed, Seen};
use crate::app::{App, Place};
use crate::bus::turns::Told;
use crate::feedback::{Begun, Expected};
use crate::fleet::breaker::Pass;
use crate::fleet::{InFlight, Worker};
use crate::knowledge::{Scale, Source};
use telemetry::capture::Slip;
use telemetry::context::TraceId;
use telemetry::traces::Note;

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
    /// It is on its way.
    is_out: bool,
    hold: Option<Hold>,
    /// What of its prompt was cached, with hints and without.
    compared: Option<Compared>,
    /// What other replicas were told of it.
    told: Option<Told>,
    /// Its place in the router, once it is this attempt that is answered.
    place: Option<Place>,
    charged: Charged,
    endpoint: Endpoint,
    tenant: u64,
    arrived: Millis,
    /// What its request allows the answer's count to be.
    allowed: Allowed,
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
    predicted_ttft: Millis,
    predicted_cached: Tokens,
    /// Where that prediction comes from.
    source: Source,
    /// Leading keys that the worker's mirror held.
    mirrored: usize,
    /// For how long the worker is expected to compute nothing else.
    prefill: Millis,
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
    /// The attempt is about to go out: its work counts from here on. Boxed: it is large, and handed on many times.
    #[must_use]
    pub fn start(app: &Arc<App>, turn: &Turn, choice: &Choice, pass: Pass, charged: Charged) -> Box<Self> {
        let terms = choice.decision.chosen();
        let worker = &choice.worker;
        let prefill = terms.prefill();
        let scale = &choice.matched.scale;
        let chain = &turn.fingerprint.chain;
        // Counted first: a worker that is to leave stays as long as it has something.
        let in_flight = worker.send(app.clock, Some(prefill), pass);
        Box::new(Self {
            app: Arc::clone(app),
            in_flight,
            is_out: false,
            hold: None,
            compared: None,
            told: None,
            prefill,
            place: None,
            charged,
            endpoint: turn.endpoint,
            tenant: turn.tenant,
            arrived: turn.arrived,
            allowed: turn.allowed,
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
            predicted_ttft: terms.predicted_ttft(),
            predicted_cached: terms.cached,
            source: choice.matched.source,
            mirrored: choice.matched.mirrored,
            prompt: Arc::clone(chain),
            blocks_told: None,
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

    /// It is on its way: its prefix counts from here on, and the other routers hear of it.
    pub fn is_out(&mut self) {
        if std::mem::replace(&mut self.is_out, true) {
            return;
        }
        let (app, worker) = (&self.app, self.in_flight.worker());
        let held = |tokens: u64| full_blocks(worker, tokens);
        if !self.prompt.is_empty() {
            let tokens = self.scale.rising();
            let (hold, low) = app.knowledge.update(worker.id, |residency| {
                let hold = residency.sent(worker.id, &self.prompt, |end| held(tokens(end)));
                let reserve = tail::reserve(app.feedback.next_turns(), residency.capacity_of(worker.id));
                (hold, residency.room_on(worker.id) < reserve)
            });
            self.compared = hold.as_ref().and_then(Hold::compared);
            self.hold = hold;
            if low && app.makes_room_on(worker) {
                app.feedback.sent(worker.id);
            }
        }
        if let Some(bus) = &app.bus {
            let tokens = self.scale.rising();
            let session = self.session.as_ref().map(|session| session.key);
            let sent = (&**worker, self.prefill);
            self.told = Some(bus.sent(app.clock, sent, session, &self.prompt, |end| held(tokens(end))));
        }
        self.blocks_told = app.knowledge.stored(worker.id);
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
            let now = self.app.clock.now();
            self.left = self.app.knowledge.moved(now, session.key, self.worker().id);
            if streamed && self.app.makes_room_on(self.worker()) {
                self.app.feedback.begun(Begun {
                    arrived: self.arrived,
                    conversation: session.key,
                    worker: self.worker().id,
                    left: self.left,
                });
            }
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

    /// What is believed of what its answer said. What cannot be true is counted, and said of the worker once in a while.
    #[must_use]
    pub fn believed(&self, seen: Seen) -> Seen {
        let (worker, now) = (self.worker(), self.app.clock.now());
        let context = || claim::context(worker.context(&self.model));
        let passed = (self.passed.bytes(), now - self.arrived);
        let (believed, clamped) = self.allowed.believed(seen, passed, context);
        for what in clamped.names() {
            self.app.metrics.clamped(worker.name(), what);
            if worker.doubted.is_due(now) {
                warn!(
                    worker = worker.name(),
                    what,
                    claimed = ?seen.usage,
                    "it counts more tokens or time than there can have been: what is beyond is not believed"
                );
            }
        }
        believed
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

    /// Its answer is whole: the next request may come in.
    pub fn free_place(&mut self) {
        if let Some(place) = &mut self.place {
            place.free();
        }
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

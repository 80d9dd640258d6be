//! One attempt on one worker: the prediction, the resources that it holds, and the progress of its response.
//!
//! State that the next decision must see is updated here. All else is an
//! [`Observation`](learning::feedback::Observation) that is queued for the learner.
//!
//! A [`Flight`] owns every resource to release. However the attempt ends (answered, failed, timed out, client gone,
//! panic), it is [finished](Flight::end) exactly once; dropping it unfinished means that the client left.

mod finish;
mod learn;
mod outcome;
mod prediction;
mod report;
mod request;
mod settle;

use std::fmt::Display;
use std::sync::Arc;

use policy::fingerprint::ChainBuilder;
use policy::ids::WorkerId;
use policy::residency::{Compared, Reservation};
use policy::tail;
use policy::units::Millis;
use tracing::warn;

pub use self::finish::AttemptEnd;
pub use self::outcome::AttemptOutcome;
use self::prediction::Prediction;
use super::account::Account;
use super::retry::Charged;
use super::select::Choice;
use super::stored::Kept;
use super::turn::Turn;
use crate::{Proxy, RequestPermit};
use fleet::breaker::BreakerPass;
use fleet::{InFlight, Worker};
use learning::feedback::{Begun, LearnerEvent};
use protocol::claim;
use protocol::reply::{self, Piece};
use protocol::watch::{Passed, ResponseReport};
use state::turn_reports::{ReportedTurn, SentTurn};
use telemetry::capture::Slip;
use telemetry::traces::{AttemptSpan, Trace};

fn full_blocks(worker: &Worker, tokens: u64) -> u64 {
    let block = u64::from(worker.spec.block_size.max(1));
    // Called for each key of a prompt, where a division would dominate.
    if block.is_power_of_two() {
        tokens & !(block - 1)
    } else {
        tokens / block * block
    }
}

/// One attempt on one worker, from the moment it is sent.
#[derive(Debug)]
pub struct Flight {
    proxy: Arc<Proxy>,
    turn: Arc<Turn>,
    in_flight: InFlight,
    prediction: Prediction,
    noted: Noted,
    progress: AttemptProgress,
    /// The request's permit, once this attempt is the one that is answered.
    permit: Option<RequestPermit>,
    charged: Charged,
    account: Account,
    /// The attempt's span in the request's trace.
    pub(super) span: AttemptSpan,
    /// The turn's position in the capture's file.
    slip: Option<Slip>,
    is_finished: bool,
}

/// State recorded when the attempt was sent.
#[derive(Debug, Default)]
struct Noted {
    is_sent: bool,
    /// The worker's count of response bytes when the attempt was started.
    bytes_before: u64,
    /// The prompt's hold in the worker's mirror.
    hold: Option<Reservation>,
    /// Cached tokens of the prompt, with hints and without.
    compared: Option<Compared>,
    /// Report of the turn to other replicas.
    told: Option<Box<dyn ReportedTurn>>,
    /// Number of the worker's store events before the attempt was sent; `None` if its event stream is not live.
    blocks_told: Option<u64>,
}

#[derive(Debug, Default)]
struct AttemptProgress {
    started: bool,
    streamed: bool,
    ttft: Millis,
    /// Prefill time, if it was measured and the worker computed nothing else.
    alone: Option<Millis>,
    /// Whether the learner was notified of the prefill.
    taught: bool,
    /// Whether the attempt's times do not describe the worker.
    is_untimed: bool,
    /// The worker of the conversation's last turn, if it was another one.
    left: Option<WorkerId>,
    passed: Passed,
    passing: Option<reply::ReplyBuilder>,
    /// The keys of the whole reply, if the next turn can repeat it.
    reply: Option<ChainBuilder>,
}

impl Flight {
    /// Starts an attempt and counts its work on the worker. Boxed because it is large and moved often.
    #[must_use]
    pub fn start(
        proxy: &Arc<Proxy>,
        trace: &Trace,
        turn: &Arc<Turn>,
        choice: &Choice,
        pass: BreakerPass,
        charged: Charged,
    ) -> Box<Self> {
        let prediction = Prediction::of(choice);
        // Counted first: a draining worker stays until it has nothing in flight.
        let in_flight = choice.worker.send(
            proxy.state.routing.clock,
            choice.at,
            Some(prediction.prefill),
            pass,
        );
        let reply = turn.fingerprint.reply.clone();
        Box::new(Self {
            proxy: Arc::clone(proxy),
            turn: Arc::clone(turn),
            in_flight,
            prediction,
            noted: Noted {
                bytes_before: choice.worker.bytes_seen(),
                ..Noted::default()
            },
            progress: AttemptProgress {
                passing: reply.map(|hash| reply::ReplyBuilder::at(turn.endpoint, hash)),
                ..AttemptProgress::default()
            },
            permit: None,
            charged,
            account: Account::open(proxy, turn, choice),
            span: trace.attempt(choice),
            slip: proxy.capture.as_ref().map(|capture| capture.begin(turn.arrived)),
            is_finished: false,
        })
    }

    /// Records that the request was written: its prefix counts as cached, and other replicas are notified.
    pub fn mark_sent(&mut self) {
        if std::mem::replace(&mut self.noted.is_sent, true) {
            return;
        }
        let (proxy, worker, prompt) = (&self.proxy, self.in_flight.worker(), &self.turn.fingerprint.chain);
        let held = |tokens: u64| full_blocks(worker, tokens);
        if !prompt.is_empty() {
            let tokens = self.prediction.scale.rising();
            let (hold, low) = proxy.state.routing.knowledge.update(worker.id, |residency| {
                let hold = residency.sent(worker.id, prompt, |end| held(tokens(end)));
                let reserve = tail::reserve(
                    proxy.state.routing.feedback.next_turns(),
                    residency.capacity_of(worker.id),
                );
                (hold, residency.room_on(worker.id) < reserve)
            });
            self.noted.compared = hold.as_ref().and_then(Reservation::compared);
            self.noted.hold = hold;
            if low && proxy.state.routing.makes_room_on(worker) {
                proxy.state.routing.feedback.queue(LearnerEvent::Sent(worker.id));
            }
        }
        if let Some(replicas) = &proxy.replicas {
            let tokens = self.prediction.scale.rising();
            let sent = SentTurn {
                worker,
                prefill: self.prediction.prefill,
                session: self.turn.session.as_ref().map(|session| session.key),
                keys: prompt,
            };
            let replicas = Arc::clone(replicas);
            self.noted.told = Some(replicas.sent(proxy.state.routing.clock, &sent, &|end| held(tokens(end))));
        }
        self.noted.blocks_told = proxy.state.routing.knowledge.stored(worker.id);
    }

    /// Marks the attempt's times as unknown: a gateway chose another worker, or the first token is not visible.
    pub fn mark_untimed(&mut self) {
        self.progress.is_untimed = true;
    }

    /// Returns the request's trace.
    pub fn trace(&self) -> &Trace {
        self.span.trace()
    }

    pub fn worker(&self) -> &Arc<Worker> {
        self.in_flight.worker()
    }

    /// Logs why the response failed, at a limited rate.
    pub fn log_failure(&self, error: &dyn Display, what: &'static str) {
        self.proxy.state.routing.log_failure(self.worker(), error, what);
    }

    /// Records the first token, which is also the last unless the response is `streamed`.
    pub fn first_token(&mut self, streamed: bool) {
        if std::mem::replace(&mut self.progress.started, true) {
            return;
        }
        let now = self.proxy.state.routing.clock.now();
        self.answered(now);
        let is_timed = streamed && !self.progress.is_untimed;
        self.progress.alone = self.in_flight.first_token(now).filter(|_| is_timed);
        if let Some(told) = &self.noted.told {
            told.begun();
        }
        self.progress.streamed = streamed;
        if !self.turn.endpoint.generates() {
            return;
        }
        self.queue_lateness();
        self.measure_first_token(now);
        self.note_move(now);
    }

    fn measure_first_token(&mut self, now: Millis) {
        let AttemptProgress {
            streamed, is_untimed, ..
        } = self.progress;
        let ttft = now - self.turn.arrived;
        self.progress.ttft = ttft;
        let mut error = self.account.first_token(&self.proxy.decisions, ttft, streamed);
        if is_untimed {
            error = Millis::ZERO;
        } else {
            self.worker().errors.lock().push(error);
        }
        let metrics = &self.proxy.state.routing.metrics;
        metrics.first_token(self.worker().name(), [ttft, error], self.exemplar(None));
        if let Some(excess) = self.account.excess() {
            metrics.judged(self.turn.class(), self.worker().name(), excess);
        }
    }

    fn note_move(&mut self, now: Millis) {
        let Some(session) = &self.turn.session else { return };
        let (routing, worker) = (&self.proxy.state.routing, self.in_flight.worker());
        let left = routing.knowledge.moved(now, session.key, worker.id);
        self.progress.left = left;
        if self.progress.streamed && routing.makes_room_on(worker) {
            routing.feedback.queue(LearnerEvent::Begun(Begun {
                arrived: self.turn.arrived,
                conversation: session.key,
                worker: worker.id,
                left,
            }));
        }
    }

    /// Records that this worker stores the response with this key.
    pub fn record_stored(&self, key: u64) {
        let kept = Kept {
            worker: self.worker().id,
            conversation: self.turn.session.clone(),
        };
        self.proxy.stored.keep(self.turn.tenant, key, kept);
    }

    /// Adds a piece of the reply.
    pub fn reply(&mut self, piece: Piece<'_>) {
        if let Some(passing) = &mut self.progress.passing {
            passing.push(piece);
        }
    }

    /// Returns the plausible part of the response's own figures. Counts the rest, and logs it at a limited rate.
    pub fn believed(&self, seen: ResponseReport) -> ResponseReport {
        let (worker, now) = (self.worker(), self.proxy.state.routing.clock.now());
        let context = || claim::context(worker.context(&self.turn.model));
        let (answered, took) = (self.progress.passed.bytes(), now - self.turn.arrived);
        let (believed, clamped) = self.turn.allowed.believed(seen, answered, took, context);
        for what in clamped.names() {
            self.proxy.state.routing.metrics.clamped(worker.name(), what);
            if worker.doubted.is_due(now) {
                warn!(
                    worker = worker.name(),
                    what,
                    claimed = ?seen.usage,
                    "implausible counts in the response were clamped"
                );
            }
        }
        believed
    }

    /// Updates how much of the response has passed.
    pub fn passed(&mut self, passed: Passed) {
        self.progress.passed = passed;
    }

    /// Returns whether the endpoint's streams end with `[DONE]`.
    pub fn is_ended_by_done(&self) -> bool {
        self.turn.endpoint.facts().is_ended_by_done
    }

    /// Takes over the request's permit once this attempt is the one that is answered.
    pub fn keep(&mut self, permit: Option<RequestPermit>) {
        self.permit = permit;
    }

    /// Releases the permit, because the response is complete.
    pub fn release_permit(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.free();
        }
    }
}

#[cfg(test)]
mod tests;

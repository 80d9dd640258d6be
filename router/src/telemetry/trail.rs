//! What is written down of a request while it is on its way.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use policy::estimate::Finish;
use policy::units::{Millis, Tokens};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Traces;
use crate::path::arrival::trace::{Context, PARENT, TraceId};
use crate::path::choose::{Choice, Turn};
use fleet::Worker;
use protocol::names;
use protocol::watch::Seen;

/// More attempts than a request ever makes.
const MAX_ATTEMPTS: usize = 16;
/// Stages of a request that is sent once.
const USUAL_STAGES: usize = 6;

/// A stage of the router's own, by the names of [`crate::path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its body comes in.
    Receive,
    /// The body is read and fingerprinted, in one pass.
    Parse,
    /// It waits for its turn.
    Wait,
    /// Where is how much of it resident?
    Match,
    /// What would each worker cost, and which one is it?
    Score,
    /// What happened is applied.
    Learn,
}

impl Stage {
    /// The span's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Parse => "parse",
            Self::Wait => "wait",
            Self::Match => "match",
            Self::Score => "score",
            Self::Learn => "learn",
        }
    }
}

/// A request's trail, or none if nothing is traced.
#[derive(Clone, Debug, Default)]
pub struct Trail(Option<Arc<Recording>>);

/// What all that work on a request write into; it is over when the last of them has let go.
#[derive(Debug)]
pub(super) struct Recording {
    to: Arc<Traces>,
    /// It is kept however it ends.
    is_kept: bool,
    story: Mutex<Story>,
}

/// What happened.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) context: Context,
    pub(super) request_id: HeaderValue,
    pub(super) began: SystemTime,
    pub(super) at: Instant,
    pub(super) ended: Option<Instant>,
    pub(super) method: http::Method,
    pub(super) endpoint: &'static str,
    pub(super) status: Option<u16>,
    /// The code of an error of the router's own.
    pub(super) error: Option<String>,
    pub(super) turn: Option<TurnFacts>,
    pub(super) stages: Vec<(Stage, Instant, Instant)>,
    pub(super) attempts: Vec<Attempt>,
}

/// What is known of a turn when it has been read.
#[derive(Debug)]
pub(super) struct TurnFacts {
    pub(super) model: Arc<str>,
    pub(super) conversation: Option<Arc<str>>,
    pub(super) objective: Millis,
    pub(super) generates: bool,
    pub(super) stage_of_talk: &'static str,
}

/// One worker's part.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) span: u64,
    pub(super) worker: Arc<Worker>,
    pub(super) decision: u64,
    pub(super) policy: &'static str,
    pub(super) reason: &'static str,
    pub(super) prompt: Tokens,
    pub(super) cached: Tokens,
    pub(super) wait: Millis,
    pub(super) predicted: Millis,
    pub(super) sent: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) ended: Option<Instant>,
    pub(super) outcome: &'static str,
    pub(super) seen: Option<Seen>,
    /// Why its objective was missed.
    pub(super) cause: Option<&'static str>,
}

impl Attempt {
    /// How the answer ended, as the conventions name it.
    pub(super) fn finish(&self) -> Option<&'static str> {
        self.seen.map(|seen| match seen.finish {
            Finish::Stop => "stop",
            Finish::ToolCalls => "tool_calls",
            Finish::Length => "length",
            Finish::Other => "unknown",
        })
    }
}

impl Recording {
    pub(super) fn new(to: Arc<Traces>, story: Story) -> Self {
        Self {
            is_kept: to.keeper.is_chosen(&story.context),
            to,
            story: Mutex::new(story),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let story = self.story.get_mut();
        story.ended.get_or_insert_with(Instant::now);
        self.to.ended(story);
    }
}

impl Story {
    pub(super) fn new(context: Context, request_id: &HeaderValue, at: Instant) -> Self {
        Self {
            context,
            request_id: request_id.clone(),
            began: SystemTime::now(),
            at,
            ended: None,
            method: http::Method::GET,
            endpoint: "none",
            status: None,
            error: None,
            turn: None,
            stages: Vec::with_capacity(USUAL_STAGES),
            attempts: Vec::with_capacity(1),
        }
    }

    /// All of it, leaving nothing behind.
    pub(super) fn take(&mut self) -> Self {
        Self {
            context: self.context,
            request_id: self.request_id.clone(),
            began: self.began,
            at: self.at,
            ended: self.ended,
            method: std::mem::take(&mut self.method),
            endpoint: self.endpoint,
            status: self.status,
            error: self.error.take(),
            turn: self.turn.take(),
            stages: std::mem::take(&mut self.stages),
            attempts: std::mem::take(&mut self.attempts),
        }
    }

    /// The attempt that was answered, or the last one.
    pub(super) fn last(&self) -> Option<&Attempt> {
        let answered = self.attempts.iter().find(|attempt| attempt.seen.is_some());
        answered.or(self.attempts.last())
    }

    /// Time to the first token that the client saw, if it was a turn and there was one: from its last byte in, as the
    /// metrics have it.
    pub(super) fn ttft(&self) -> Option<Millis> {
        self.turn.as_ref().filter(|turn| turn.generates)?;
        let first = self.attempts.iter().find_map(|attempt| attempt.first_token)?;
        let received = self.stages.iter().find(|(stage, ..)| *stage == Stage::Receive);
        let arrived = received.map_or(self.at, |(_, _, until)| *until);
        let ttft = first.saturating_duration_since(arrived);
        Some(Millis(ttft.as_secs_f64() * 1e3))
    }

    /// Whether its objective was missed. An account that says why says that it was, whatever the two clocks make of it.
    pub(super) fn is_late(&self) -> bool {
        let later = |turn: &TurnFacts| self.ttft().is_some_and(|ttft| ttft > turn.objective);
        self.attempts.iter().any(|attempt| attempt.cause.is_some()) || self.turn.as_ref().is_some_and(later)
    }

    /// What went wrong, of what is not the client's doing.
    pub(super) fn failure(&self) -> Option<&str> {
        if self.status.is_some_and(|status| status >= 500) {
            return Some(self.error.as_deref().unwrap_or("worker_error"));
        }
        let last = self.last()?;
        is_failure(last.outcome).then_some(last.outcome)
    }
}

/// Whether an outcome is no doing of the client's.
fn is_failure(outcome: &str) -> bool {
    matches!(outcome, "broken" | "worker_error" | "deadline" | "cut")
}

/// A stage that is going on; it ends when this is dropped, whatever ends it.
#[derive(Debug)]
pub struct Going {
    trail: Trail,
    stage: Stage,
    since: Option<Instant>,
}

impl Going {
    /// It is over, and another one begins at the same moment.
    #[must_use]
    pub fn then(mut self, stage: Stage) -> Self {
        let trail = std::mem::take(&mut self.trail);
        let since = self.since.take().map(|since| {
            let until = Instant::now();
            trail.passed(self.stage, since, until);
            until
        });
        Self { trail, stage, since }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.trail.passed(self.stage, since, Instant::now());
        }
    }
}

impl Trail {
    pub(super) fn new(recording: Recording) -> Self {
        Self(Some(Arc::new(recording)))
    }

    /// Whether anything is written down.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn write(&self, write: impl FnOnce(&mut Story)) {
        if let Some(recording) = &self.0 {
            write(&mut recording.story.lock());
        }
    }

    /// What the request asks for.
    pub fn asked(&self, method: &http::Method, endpoint: &'static str) {
        self.write(|story| {
            if names::is_fit(method.as_str()) {
                story.method.clone_from(method);
            }
            story.endpoint = endpoint;
        });
    }

    /// A stage begins.
    #[must_use]
    pub fn begin(&self, stage: Stage) -> Going {
        Going {
            trail: self.clone(),
            stage,
            since: self.0.is_some().then(Instant::now),
        }
    }

    /// A stage is over.
    pub fn passed(&self, stage: Stage, since: Instant, until: Instant) {
        self.write(|story| {
            // Each attempt matches, scores and learns once.
            if story.stages.len() < 4 * MAX_ATTEMPTS {
                story.stages.push((stage, since, until));
            }
        });
    }

    /// What was read of a turn.
    pub fn turn(&self, turn: &Turn) {
        self.write(|story| {
            story.turn = Some(TurnFacts {
                model: Arc::clone(&turn.model),
                conversation: turn.session.as_ref().map(|session| Arc::clone(&session.name)),
                objective: turn.goal.ttft,
                generates: turn.endpoint.generates(),
                stage_of_talk: if turn.last { "last" } else { "open" },
            });
        });
    }

    /// A turn goes out to a worker. Marks its request as this attempt's.
    pub fn attempt(&self, choice: &Choice, headers: &mut HeaderMap) -> Leg {
        let mut number = 0;
        self.write(|story| {
            number = story.attempts.len();
            if number >= MAX_ATTEMPTS {
                return;
            }
            for (stage, [since, until]) in choice.timed() {
                story.stages.push((stage, since, until));
            }
            let span = xxh3_64_with_seed(&(number as u64).to_le_bytes(), story.context.span) | 1;
            headers.insert(PARENT, story.context.parent_of(span));
            let terms = choice.decision.chosen();
            story.attempts.push(Attempt {
                span,
                worker: Arc::clone(&choice.worker),
                decision: choice.decision.sequence,
                policy: choice.decision.policy.as_str(),
                reason: choice.decision.reason.as_str(),
                prompt: choice.matched.prompt,
                cached: terms.cached,
                wait: choice.view.wait,
                predicted: terms.predicted_ttft(),
                sent: Instant::now(),
                first_token: None,
                ended: None,
                outcome: "aborted",
                seen: None,
                cause: None,
            });
        });
        Leg {
            trail: self.clone(),
            number,
            started: false,
        }
    }

    /// The head of the answer leaves.
    pub fn answered(&self, status: http::StatusCode, error: Option<&HeaderValue>) {
        self.write(|story| {
            story.status = Some(status.as_u16());
            story.error = error.and_then(|code| code.to_str().ok()).map(str::to_owned);
        });
    }
}

/// Where what is found out of an attempt when it is over is noted.
#[derive(Clone, Debug, Default)]
pub struct Note {
    trail: Trail,
    number: usize,
}

impl Note {
    /// The trace that an exemplar may name: one that is kept, where requests are traced, so that it leads somewhere. What is
    /// known of it by now: whether it is late, and its outcome, if it has one.
    #[must_use]
    pub fn exemplar(&self, trace: Option<TraceId>, is_late: bool, outcome: Option<&str>) -> Option<TraceId> {
        let is_kept = match &self.trail.0 {
            None => true,
            Some(recording) => recording.is_kept || is_late || outcome.is_some_and(is_failure),
        };
        trace.filter(|_| is_kept)
    }

    /// Why its objective was missed.
    pub fn cause(&self, cause: &'static str) {
        self.trail.write(|story| {
            if let Some(attempt) = story.attempts.get_mut(self.number) {
                attempt.cause = Some(cause);
            }
        });
    }
}

/// One attempt's part of a trail; its end is noted when it is dropped.
#[derive(Debug)]
pub struct Leg {
    trail: Trail,
    number: usize,
    /// Its first token has passed.
    started: bool,
}

impl Leg {
    fn write(&self, write: impl FnOnce(&mut Attempt)) {
        self.trail.write(|story| {
            if let Some(attempt) = story.attempts.get_mut(self.number) {
                write(attempt);
            }
        });
    }

    /// The trail that it is part of.
    #[must_use]
    pub fn trail(&self) -> &Trail {
        &self.trail
    }

    /// For what is found out of it later.
    #[must_use]
    pub fn note(&self) -> Note {
        Note {
            trail: self.trail.clone(),
            number: self.number,
        }
    }

    /// Its first token passed.
    pub fn first_token(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            self.write(|attempt| attempt.first_token = Some(Instant::now()));
        }
    }

    /// What became of it.
    pub fn end(&self, outcome: &'static str, seen: Option<Seen>) {
        self.write(|attempt| {
            attempt.outcome = outcome;
            attempt.seen = seen;
            attempt.ended.get_or_insert_with(Instant::now);
        });
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.write(|attempt| {
            attempt.ended.get_or_insert_with(Instant::now);
        });
    }
}

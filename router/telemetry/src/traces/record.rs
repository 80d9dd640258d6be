//! The record of one request, from which its spans are made.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderValue, Uri};
use policy::estimate::Finish;
use policy::units::{Millis, Tokens};

use crate::context::Context;

/// More attempts than a request ever makes.
pub(super) const MAX_ATTEMPTS: usize = 16;
/// Stages of a request that is sent once.
const USUAL_STAGES: usize = 6;

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The body comes in.
    Receive,
    /// The body is read and fingerprinted, in one pass.
    Parse,
    /// The request waits for its turn.
    Wait,
    /// The index is asked which worker holds how much.
    Match,
    /// Every worker is scored, and one is chosen.
    Score,
    /// The observation of the answer is applied.
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

/// A turn, as its trace describes it.
pub trait DescribeTurn {
    /// Its facts. Called only where requests are traced.
    fn facts(&self) -> TurnFacts;
}

/// The choice of a worker, as its trace describes it.
pub trait DescribeChoice {
    /// Its facts. Called only where requests are traced.
    fn facts(&self) -> ChoiceFacts;

    /// The stages that the choice consisted of.
    fn stages(&self) -> impl Iterator<Item = (Stage, [Instant; 2])>;
}

/// The peer of an attempt.
pub trait Target: Debug + Send + Sync {
    /// Its name in attributes.
    fn name(&self) -> &str;

    /// Its base url.
    fn url(&self) -> &Uri;
}

/// What is known of a turn when it has been read.
#[derive(Debug)]
pub struct TurnFacts {
    /// The model that it asks for; empty if it names none.
    pub model: Arc<str>,
    /// The name of its conversation.
    pub conversation: Option<Arc<str>>,
    /// Its objective for the time to first token.
    pub objective: Millis,
    /// Whether its answer is generated token by token.
    pub generates: bool,
    /// Whether its conversation goes on: `open` or `last`.
    pub conversation_state: &'static str,
}

/// Why a worker was chosen, and what was expected of it.
#[derive(Debug)]
pub struct ChoiceFacts {
    /// The worker.
    pub worker: Arc<dyn Target>,
    /// The decision's number.
    pub decision: u64,
    /// The policy that decided.
    pub policy: &'static str,
    /// The policy's reason.
    pub reason: &'static str,
    /// Tokens of the prompt.
    pub prompt: Tokens,
    /// Tokens that the worker was expected to hold.
    pub cached: Tokens,
    /// Expected time in the worker's queue.
    pub wait: Millis,
    /// Predicted time to first token.
    pub predicted: Millis,
}

/// What a worker's answer said of itself.
#[derive(Clone, Copy, Debug)]
pub struct AnswerFacts {
    /// What the worker counted.
    pub usage: Option<Usage>,
    /// How the answer ended.
    pub finish: Finish,
}

/// Tokens as a worker counts them.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: u64,
    /// Of the reply.
    pub completion: u64,
    /// Of the prompt, found in the worker's cache, if it says.
    pub cached: Option<u64>,
}

/// Everything that is recorded of a request.
#[derive(Debug)]
pub(super) struct SpanRecord {
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

/// One attempt on a worker.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) span: u64,
    pub(super) choice: ChoiceFacts,
    pub(super) sent: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) ended: Option<Instant>,
    pub(super) outcome: &'static str,
    pub(super) answer: Option<AnswerFacts>,
    /// Why its objective was missed.
    pub(super) cause: Option<&'static str>,
}

impl Attempt {
    /// How the answer ended, as the conventions name it.
    pub(super) fn finish(&self) -> Option<&'static str> {
        self.answer.map(|answer| match answer.finish {
            Finish::Stop => "stop",
            Finish::ToolCalls => "tool_calls",
            Finish::Length => "length",
            Finish::Other => "unknown",
        })
    }
}

impl SpanRecord {
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
        let answered = self.attempts.iter().find(|attempt| attempt.answer.is_some());
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

    /// Whether the objective was missed. An attempt with a cause has missed it, whatever the two clocks say.
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
pub(super) fn is_failure(outcome: &str) -> bool {
    matches!(outcome, "broken" | "worker_error" | "deadline" | "cut")
}

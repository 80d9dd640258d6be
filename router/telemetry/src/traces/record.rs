use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderValue, Uri};
use policy::estimate::Finish;
use policy::units::{Millis, Tokens};

use crate::context::Context;

pub(super) const MAX_ATTEMPTS: usize = 16;
const USUAL_STAGES: usize = 6;

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Receiving the body.
    Receive,
    /// Parsing and fingerprinting the body.
    Parse,
    /// Waiting for admission.
    Wait,
    /// Looking up each worker's cached prefix.
    Match,
    /// Scoring the workers.
    Score,
    /// Settling the attempt after its response, and queuing its observation.
    Learn,
}

impl Stage {
    /// Returns the span's name.
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

/// A turn that can be described in a trace.
pub trait DescribeTurn {
    /// Returns the turn's facts. Called only if tracing is enabled.
    fn facts(&self) -> TurnFacts;
}

/// The choice of a worker that can be described in a trace.
pub trait DescribeChoice {
    /// Returns the choice's facts. Called only if tracing is enabled.
    fn facts(&self) -> ChoiceFacts;

    /// Returns the stages of the choice.
    fn stages(&self) -> impl Iterator<Item = (Stage, [Instant; 2])>;
}

/// The worker of an attempt.
pub trait AttemptTarget: Debug + Send + Sync {
    /// Returns the name in attributes.
    fn name(&self) -> &str;

    /// Returns the base URL.
    fn url(&self) -> &Uri;
}

/// Facts of a parsed turn.
#[derive(Debug)]
pub struct TurnFacts {
    /// Requested model; empty if none.
    pub model: Arc<str>,
    /// Name of the conversation, if known.
    pub conversation: Option<Arc<str>>,
    /// Objective for the time to first token.
    pub objective: Millis,
    /// Whether the response is generated token by token.
    pub generates: bool,
    /// Whether the conversation continues: `open` or `last`.
    pub conversation_state: &'static str,
}

/// Reason of a choice, and predictions for the worker.
#[derive(Debug)]
pub struct ChoiceFacts {
    pub worker: Arc<dyn AttemptTarget>,
    /// Number of the decision.
    pub decision: u64,
    pub policy: &'static str,
    /// Rule of the policy that decided.
    pub reason: &'static str,
    pub prompt: Tokens,
    /// Predicted cached tokens.
    pub cached: Tokens,
    /// Predicted wait in the worker's queue.
    pub wait: Millis,
    /// Predicted time to first token.
    pub predicted: Millis,
}

/// Facts that a worker's response reports.
#[derive(Clone, Copy, Debug)]
pub struct AnswerFacts {
    /// Token counts of the worker.
    pub usage: Option<TraceUsage>,
    /// How the response ended.
    pub finish: Finish,
}

/// Token counts of a worker.
#[derive(Clone, Copy, Debug)]
pub struct TraceUsage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the response.
    pub completion: u64,
    /// Prompt tokens found in the worker's cache, if reported.
    pub cached: Option<u64>,
}

/// Route of a request.
#[derive(Clone, Copy, Debug)]
pub struct TracedRoute {
    /// Name in metrics.
    pub endpoint: &'static str,
    /// Name of the operation.
    pub operation: &'static str,
    /// Path, if the endpoint has a single one.
    pub path: Option<&'static str>,
}

impl Default for TracedRoute {
    fn default() -> Self {
        Self {
            endpoint: "none",
            operation: "none",
            path: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct SpanRecord {
    pub(super) context: Context,
    pub(super) request_id: HeaderValue,
    pub(super) began: SystemTime,
    pub(super) at: Instant,
    pub(super) ended: Option<Instant>,
    pub(super) method: http::Method,
    pub(super) route: TracedRoute,
    pub(super) status: Option<u16>,
    pub(super) error: Option<String>,
    pub(super) turn: Option<TurnFacts>,
    pub(super) stages: Vec<(Stage, Instant, Instant)>,
    pub(super) attempts: Vec<AttemptRecord>,
}

#[derive(Debug)]
pub(super) struct AttemptRecord {
    pub(super) span: u64,
    pub(super) choice: ChoiceFacts,
    pub(super) sent: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) ended: Option<Instant>,
    pub(super) outcome: &'static str,
    pub(super) answer: Option<AnswerFacts>,
    pub(super) cause: Option<&'static str>,
}

impl AttemptRecord {
    /// Returns the finish reason as named in OpenTelemetry's conventions.
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
            route: TracedRoute::default(),
            status: None,
            error: None,
            turn: None,
            stages: Vec::with_capacity(USUAL_STAGES),
            attempts: Vec::with_capacity(1),
        }
    }

    pub(super) fn take(&mut self) -> Self {
        Self {
            context: self.context,
            request_id: self.request_id.clone(),
            began: self.began,
            at: self.at,
            ended: self.ended,
            method: std::mem::take(&mut self.method),
            route: self.route,
            status: self.status,
            error: self.error.take(),
            turn: self.turn.take(),
            stages: std::mem::take(&mut self.stages),
            attempts: std::mem::take(&mut self.attempts),
        }
    }

    pub(super) fn last(&self) -> Option<&AttemptRecord> {
        let answered = self.attempts.iter().find(|attempt| attempt.answer.is_some());
        answered.or(self.attempts.last())
    }

    /// Returns a turn's time to first token, measured from its last received byte, as in the metrics.
    pub(super) fn ttft(&self) -> Option<Millis> {
        self.turn.as_ref().filter(|turn| turn.generates)?;
        let first = self.attempts.iter().find_map(|attempt| attempt.first_token)?;
        let received = self.stages.iter().find(|(stage, ..)| *stage == Stage::Receive);
        let arrived = received.map_or(self.at, |(_, _, until)| *until);
        let ttft = first.saturating_duration_since(arrived);
        Some(Millis(ttft.as_secs_f64() * 1e3))
    }

    /// Returns whether the objective was missed: an attempt then has the cause.
    pub(super) fn is_late(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.cause.is_some())
    }

    pub(super) fn failure(&self) -> Option<&str> {
        if self.status.is_some_and(|status| status >= 500) {
            return Some(self.error.as_deref().unwrap_or("worker_error"));
        }
        let last = self.last()?;
        is_failure(last.outcome).then_some(last.outcome)
    }
}

/// Returns whether an outcome is a failure that the client did not cause.
pub(super) fn is_failure(outcome: &str) -> bool {
    matches!(
        outcome,
        "broken" | "worker_error" | "error_in_body" | "deadline" | "cut"
    )
}

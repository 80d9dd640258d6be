//! Handles by which the pipeline records a request in progress.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Traces;
use super::record::{
    AnswerFacts, AttemptRecord, DescribeChoice, DescribeTurn, MAX_ATTEMPTS, SpanRecord, Stage, TracedRoute,
    is_failure,
};
use crate::context::{PARENT, TraceId};

/// Maximum length of a recorded method; a longer one counts as `GET`.
const MAX_METHOD_BYTES: usize = 256;

/// A request's trace; empty if tracing is disabled.
#[derive(Clone, Debug, Default)]
pub struct Trace(Option<Arc<Recording>>);

/// The record shared by all handles of a request, which ends when the last one is dropped.
#[derive(Debug)]
pub(super) struct Recording {
    to: Arc<Traces>,
    /// Whether the trace is kept regardless of its outcome.
    is_kept: bool,
    record: Mutex<SpanRecord>,
}

impl Recording {
    pub(super) fn new(to: Arc<Traces>, record: SpanRecord) -> Self {
        Self {
            is_kept: to.sampler.is_chosen(&record.context),
            to,
            record: Mutex::new(record),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let record = self.record.get_mut();
        record.ended.get_or_insert_with(Instant::now);
        self.to.ended(record);
    }
}

/// A stage in progress. Dropping it ends the stage.
#[derive(Debug)]
pub struct StageSpan {
    trace: Trace,
    stage: Stage,
    since: Option<Instant>,
}

impl StageSpan {
    /// Ends the stage and begins another at the same moment.
    #[must_use]
    pub fn then(mut self, stage: Stage) -> Self {
        let trace = std::mem::take(&mut self.trace);
        let since = self.since.take().map(|since| {
            let until = Instant::now();
            trace.passed(self.stage, since, until);
            until
        });
        Self { trace, stage, since }
    }
}

impl Drop for StageSpan {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.trace.passed(self.stage, since, Instant::now());
        }
    }
}

impl Trace {
    pub(super) fn new(recording: Recording) -> Self {
        Self(Some(Arc::new(recording)))
    }

    /// Returns whether the request is traced.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn write(&self, write: impl FnOnce(&mut SpanRecord)) {
        if let Some(recording) = &self.0 {
            write(&mut recording.record.lock());
        }
    }

    /// Records method and route.
    pub fn asked(&self, method: &http::Method, route: TracedRoute) {
        self.write(|record| {
            if method.as_str().len() <= MAX_METHOD_BYTES {
                record.method.clone_from(method);
            }
            record.route = route;
        });
    }

    /// Begins a stage, which ends when the returned value is dropped.
    #[must_use]
    pub fn begin(&self, stage: Stage) -> StageSpan {
        StageSpan {
            trace: self.clone(),
            stage,
            since: self.0.is_some().then(Instant::now),
        }
    }

    /// Records a completed stage.
    pub fn passed(&self, stage: Stage, since: Instant, until: Instant) {
        self.write(|record| {
            // Each attempt matches, scores and learns once.
            if record.stages.len() < 4 * MAX_ATTEMPTS {
                record.stages.push((stage, since, until));
            }
        });
    }

    /// Records a parsed turn.
    pub fn turn(&self, turn: &impl DescribeTurn) {
        self.write(|record| record.turn = Some(turn.facts()));
    }

    /// Begins an attempt on the chosen worker. A request's attempts beyond 16 are not recorded.
    pub fn attempt(&self, choice: &impl DescribeChoice) -> AttemptSpan {
        let mut number = 0;
        self.write(|record| {
            number = record.attempts.len();
            if number >= MAX_ATTEMPTS {
                return;
            }
            for (stage, [since, until]) in choice.stages() {
                record.stages.push((stage, since, until));
            }
            let span = xxh3_64_with_seed(&(number as u64).to_le_bytes(), record.context.span) | 1;
            record.attempts.push(AttemptRecord {
                span,
                choice: choice.facts(),
                sent: Instant::now(),
                first_token: None,
                ended: None,
                outcome: "aborted",
                answer: None,
                cause: None,
            });
        });
        AttemptSpan {
            trace: self.clone(),
            number,
            started: false,
        }
    }

    /// Records the response's status and error.
    pub fn answered(&self, status: http::StatusCode, error: Option<&HeaderValue>) {
        self.write(|record| {
            record.status = Some(status.as_u16());
            record.error = error.and_then(|code| code.to_str().ok()).map(str::to_owned);
        });
    }
}

/// An attempt in progress. Dropping it ends the attempt.
#[derive(Debug)]
pub struct AttemptSpan {
    trace: Trace,
    number: usize,
    started: bool,
}

impl AttemptSpan {
    fn write(&self, write: impl FnOnce(&mut AttemptRecord)) {
        self.trace.write(|record| {
            if let Some(attempt) = record.attempts.get_mut(self.number) {
                write(attempt);
            }
        });
    }

    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Sets the span as the parent in the headers of the worker's request.
    pub fn propagate(&self, headers: &mut HeaderMap) {
        self.trace.write(|record| {
            if let Some(attempt) = record.attempts.get(self.number) {
                headers.insert(PARENT, record.context.parent_of(attempt.span));
            }
        });
    }

    /// Returns the trace for an exemplar: with tracing enabled, only if it is already certain to be kept.
    pub fn exemplar(&self, trace: Option<TraceId>, is_late: bool, outcome: Option<&str>) -> Option<TraceId> {
        let is_kept = match &self.trace.0 {
            None => true,
            Some(recording) => recording.is_kept || is_late || outcome.is_some_and(is_failure),
        };
        trace.filter(|_| is_kept)
    }

    /// Records the cause of a missed objective.
    pub fn cause(&self, cause: &'static str) {
        self.write(|attempt| attempt.cause = Some(cause));
    }

    /// Records the time of the first token. Later calls have no effect.
    pub fn first_token(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            self.write(|attempt| attempt.first_token = Some(Instant::now()));
        }
    }

    /// Ends the attempt with its outcome and the facts of the response, if there was one.
    pub fn end(&self, outcome: &'static str, answer: Option<AnswerFacts>) {
        self.write(|attempt| {
            attempt.outcome = outcome;
            attempt.answer = answer;
            attempt.ended.get_or_insert_with(Instant::now);
        });
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        self.write(|attempt| {
            attempt.ended.get_or_insert_with(Instant::now);
        });
    }
}

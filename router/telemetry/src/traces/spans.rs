//! Converts a kept trace into the SDK's spans.
//!
//! ```text
//! chat llama-3            server: the whole request
//! ├─ receive, parse, wait, match, score, learn
//! └─ chat llama-3         client: one per attempt
//!    ├─ prefill           until the first token
//!    └─ stream            from the first token to the end
//! ```
//!
//! Names and attributes follow OpenTelemetry's conventions for HTTP and generative AI, or begin with `tailroute.`.
//! Prompts, responses and keys are never recorded.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::KeptTrace;
use super::record::{AttemptRecord, SpanRecord};

pub(super) const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

static SCOPE: LazyLock<InstrumentationScope> = LazyLock::new(|| {
    InstrumentationScope::builder("tailroute")
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(SCHEMA)
        .build()
});

/// Returns the spans of one trace, the request's own first.
pub(super) fn of(kept: &KeptTrace) -> Vec<SpanData> {
    let record = &kept.record;
    let ended = record.ended.unwrap_or(record.at);
    let context = &record.context;
    let mut spans = vec![SpanData {
        parent_span_is_remote: context.parent.is_some(),
        span_kind: SpanKind::Server,
        attributes: of_request(kept),
        status: record.failure().map_or(Status::Unset, failed),
        ..span(
            record,
            SpanIds {
                own: context.span,
                parent: context.parent.unwrap_or(0),
            },
            name(record),
            [record.at, ended],
        )
    }];
    for (number, (stage, since, until)) in (0..).zip(&record.stages) {
        let ids = SpanIds {
            own: inner(context.span, 1 + number),
            parent: context.span,
        };
        spans.push(span(record, ids, stage.name(), [*since, *until]));
    }
    for attempt in &record.attempts {
        of_attempt(record, attempt, ended, &mut spans);
    }
    spans
}

fn inner(parent: u64, number: u64) -> u64 {
    // Attempts hash four bytes; these hash eight with another seed.
    xxh3_64_with_seed(&number.to_be_bytes(), parent.rotate_left(17)) | 1
}

struct SpanIds {
    own: u64,
    parent: u64,
}

fn span(
    record: &SpanRecord,
    ids: SpanIds,
    name: impl Into<Cow<'static, str>>,
    [since, until]: [Instant; 2],
) -> SpanData {
    let trace = TraceId::from(record.context.trace);
    SpanData {
        span_context: SpanContext::new(
            trace,
            SpanId::from(ids.own),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: SpanId::from(ids.parent),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: time_of(record, since),
        end_time: time_of(record, until),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: SCOPE.clone(),
    }
}

fn time_of(record: &SpanRecord, at: Instant) -> SystemTime {
    record.began + at.saturating_duration_since(record.at)
}

fn failed(why: &str) -> Status {
    Status::error(why.to_owned())
}

fn name(record: &SpanRecord) -> String {
    let operation = record.route.operation;
    match &record.turn {
        Some(turn) if !turn.model.is_empty() => format!("{operation} {}", turn.model),
        _ => format!("{} {operation}", record.method),
    }
}

fn of_request(kept: &KeptTrace) -> Vec<KeyValue> {
    let record = &kept.record;
    let request_id = record.request_id.to_str().unwrap_or_default();
    let mut all = vec![
        text("http.request.method", record.method.as_str()),
        KeyValue::new("tailroute.endpoint", record.route.endpoint),
        KeyValue::new("tailroute.kept", kept.reason.as_str()),
        text("tailroute.request_id", request_id),
        KeyValue::new("tailroute.attempts", record.attempts.len() as i64),
    ];
    all.extend(record.route.path.map(|path| KeyValue::new("http.route", path)));
    let status = record.status.map(i64::from);
    all.extend(status.map(|status| KeyValue::new("http.response.status_code", status)));
    all.extend(record.failure().map(|why| text("error.type", why)));
    if let Some(turn) = &record.turn {
        all.push(KeyValue::new("tailroute.objective_ms", turn.objective.0));
        all.push(KeyValue::new(
            "tailroute.conversation.state",
            turn.conversation_state,
        ));
        let conversation = turn.conversation.as_deref();
        all.extend(conversation.map(|name| text("gen_ai.conversation.id", name)));
    }
    if let Some(ttft) = record.ttft() {
        all.push(KeyValue::new("tailroute.ttft_ms", ttft.0));
        all.push(KeyValue::new("tailroute.objective_missed", record.is_late()));
    }
    if let Some(last) = record.last() {
        all.extend(of_model(record, last));
    }
    all
}

fn of_model(record: &SpanRecord, attempt: &AttemptRecord) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new("gen_ai.operation.name", record.route.operation),
        KeyValue::new("gen_ai.provider.name", "tailroute"),
        text("tailroute.worker", attempt.choice.worker.name()),
        KeyValue::new("tailroute.outcome", attempt.outcome),
    ];
    let cause = attempt.cause;
    all.extend(cause.map(|cause| KeyValue::new("tailroute.violation.cause", cause)));
    if let Some(turn) = record.turn.as_ref().filter(|turn| !turn.model.is_empty()) {
        all.push(text("gen_ai.request.model", &turn.model));
    }
    let usage = attempt.answer.and_then(|answer| answer.usage);
    if let Some(usage) = usage {
        all.push(count("gen_ai.usage.input_tokens", usage.prompt));
        all.push(count("gen_ai.usage.output_tokens", usage.completion));
        let cached = usage.cached;
        all.extend(cached.map(|cached| count("gen_ai.usage.cache_read.input_tokens", cached)));
    }
    if let Some(finish) = attempt.finish().filter(|_| usage.is_some()) {
        let reasons = Value::Array(Array::String(vec![StringValue::from(finish)]));
        all.push(KeyValue::new("gen_ai.response.finish_reasons", reasons));
    }
    all
}

fn of_attempt(record: &SpanRecord, attempt: &AttemptRecord, ended: Instant, spans: &mut Vec<SpanData>) {
    let until = attempt.ended.unwrap_or(ended);
    let choice = &attempt.choice;
    let mut attributes = of_model(record, attempt);
    let url = choice.worker.url();
    attributes.extend(url.host().map(|host| text("server.address", host)));
    let port = url.port_u16().map(i64::from);
    attributes.extend(port.map(|port| KeyValue::new("server.port", port)));
    attributes.extend([
        count("tailroute.decision", choice.decision),
        KeyValue::new("tailroute.policy", choice.policy),
        KeyValue::new("tailroute.reason", choice.reason),
        count("tailroute.predicted.prompt_tokens", choice.prompt.0),
        count("tailroute.predicted.cached_tokens", choice.cached.0),
        KeyValue::new("tailroute.predicted.wait_ms", choice.wait.0),
        KeyValue::new("tailroute.predicted.ttft_ms", choice.predicted.0),
    ]);
    let is_failure = matches!(
        attempt.outcome,
        "broken" | "worker_error" | "error_in_body" | "deadline" | "not_reached"
    );
    let ids = SpanIds {
        own: attempt.span,
        parent: record.context.span,
    };
    spans.push(SpanData {
        span_kind: SpanKind::Client,
        attributes,
        status: if is_failure {
            failed(attempt.outcome)
        } else {
            Status::Unset
        },
        ..span(record, ids, name(record), [attempt.sent, until])
    });
    let first = attempt.first_token.unwrap_or(until);
    let mut part = |number, name, times| {
        let ids = SpanIds {
            own: inner(attempt.span, number),
            parent: attempt.span,
        };
        spans.push(span(record, ids, name, times));
    };
    part(1, "prefill", [attempt.sent, first]);
    if attempt.first_token.is_some() {
        part(2, "stream", [first, until]);
    }
}

fn text(key: &'static str, value: &str) -> KeyValue {
    KeyValue::new(key, value.to_owned())
}

fn count(key: &'static str, count: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(count).unwrap_or(i64::MAX))
}

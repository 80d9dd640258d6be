//! What is kept of a request, as OTLP's spans.
//!
//! ```text
//! chat llama-3            server: the whole request
//! ├─ receive, parse, wait, match, score, learn
//! └─ chat llama-3         client: one for each attempt on a worker
//!    ├─ prefill           until the first token
//!    └─ stream            from there to the end
//! ```
//!
//! Names and attributes are those of OpenTelemetry's conventions for HTTP and for generative AI where there is one, else
//! `tailroute.…`. There is no text of a prompt or an answer, nor any key: none is written into a trace.

use std::time::Instant;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Kept;
use super::record::{Attempt, SpanRecord};

/// The conventions that attributes are named by.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";
/// Bits of a span's flags: a trace of ours is sampled once it is sent.
const SAMPLED: u32 = 1;

/// All spans of these traces, as one message has them.
pub(super) fn message(service: &str, traces: &[Kept]) -> ResourceSpans {
    let resource = Resource {
        attributes: vec![
            text("service.name", service),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", instance()),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "tailroute".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    ResourceSpans {
        resource: Some(resource),
        scope_spans: vec![ScopeSpans {
            scope: Some(scope),
            spans: traces.iter().flat_map(spans).collect(),
            schema_url: SCHEMA.to_owned(),
        }],
        schema_url: SCHEMA.to_owned(),
    }
}

/// Who sends: the host and the process.
fn instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

/// The spans of one trace; the request's own comes first.
fn spans(kept: &Kept) -> Vec<Span> {
    let record = &kept.record;
    let ended = record.ended.unwrap_or(record.at);
    let mut spans = vec![Span {
        parent_span_id: id(record.context.parent.unwrap_or(0)),
        kind: SpanKind::Server as i32,
        attributes: of_request(kept),
        status: record.failure().map(failed),
        ..span(
            record,
            (record.context.span, 0),
            &name(record),
            [record.at, ended],
        )
    }];
    let parent = record.context.span;
    for (number, (stage, since, until)) in (0..).zip(&record.stages) {
        let own = inner(parent, 1 + number);
        spans.push(span(record, (own, parent), stage.name(), [*since, *until]));
    }
    for attempt in &record.attempts {
        of_attempt(record, attempt, ended, &mut spans);
    }
    spans
}

/// A span's id, from the one around it and its number there.
fn inner(parent: u64, number: u64) -> u64 {
    // Attempts are numbered from 0 with four bytes; these have eight and another seed.
    xxh3_64_with_seed(&number.to_be_bytes(), parent.rotate_left(17)) | 1
}

fn span(record: &SpanRecord, (own, parent): (u64, u64), name: &str, [since, until]: [Instant; 2]) -> Span {
    Span {
        trace_id: record.context.trace.to_be_bytes().to_vec(),
        span_id: id(own),
        parent_span_id: id(parent),
        flags: SAMPLED,
        name: name.to_owned(),
        kind: SpanKind::Internal as i32,
        start_time_unix_nano: nanos(record, since),
        end_time_unix_nano: nanos(record, until),
        ..Span::default()
    }
}

fn id(id: u64) -> Vec<u8> {
    if id == 0 {
        Vec::new()
    } else {
        id.to_be_bytes().to_vec()
    }
}

/// By the clock of the day, as it was when the request came.
fn nanos(record: &SpanRecord, at: Instant) -> u64 {
    let began = record
        .began
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let at = began + at.saturating_duration_since(record.at);
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

fn failed(why: &str) -> Status {
    Status {
        message: why.to_owned(),
        code: StatusCode::Error as i32,
    }
}

/// What the conventions call what is asked for.
fn operation(endpoint: &'static str) -> &'static str {
    match endpoint {
        "chat" | "messages" | "responses" => "chat",
        "completions" | "generate" => "text_completion",
        "embeddings" => "embeddings",
        other => other,
    }
}

/// The name of a request's span: what is asked for, and of which model.
fn name(record: &SpanRecord) -> String {
    let operation = operation(record.endpoint);
    match &record.turn {
        Some(turn) if !turn.model.is_empty() => format!("{operation} {}", turn.model),
        _ => format!("{} {operation}", record.method),
    }
}

fn of_request(kept: &Kept) -> Vec<KeyValue> {
    let record = &kept.record;
    let mut all = vec![
        text("http.request.method", record.method.as_str()),
        text("http.route", record.endpoint),
        text("tailroute.kept", kept.why.as_str()),
        text(
            "tailroute.request_id",
            record.request_id.to_str().unwrap_or_default(),
        ),
        number("tailroute.attempts", record.attempts.len() as i64),
    ];
    all.extend(
        record
            .status
            .map(|status| number("http.response.status_code", status.into())),
    );
    all.extend(record.failure().map(|why| text("error.type", why)));
    if let Some(turn) = &record.turn {
        all.push(real("tailroute.objective_ms", turn.objective.0));
        all.push(text("tailroute.conversation.state", turn.conversation_state));
        if let Some(name) = &turn.conversation {
            all.push(text("gen_ai.conversation.id", name.to_string()));
        }
    }
    if let Some(ttft) = record.ttft() {
        all.push(real("tailroute.ttft_ms", ttft.0));
        all.push(boolean("tailroute.objective_missed", record.is_late()));
    }
    if let Some(last) = record.last() {
        all.extend(of_model(record, last));
    }
    all
}

/// What the conventions say of a model's answer.
fn of_model(record: &SpanRecord, attempt: &Attempt) -> Vec<KeyValue> {
    let mut all = vec![
        text("gen_ai.operation.name", operation(record.endpoint)),
        text("gen_ai.provider.name", "tailroute"),
        text("tailroute.worker", attempt.choice.worker.name()),
        text("tailroute.outcome", attempt.outcome),
    ];
    all.extend(
        attempt
            .cause
            .map(|cause| text("tailroute.violation.cause", cause)),
    );
    if let Some(turn) = record.turn.as_ref().filter(|turn| !turn.model.is_empty()) {
        all.push(text("gen_ai.request.model", &*turn.model));
    }
    let usage = attempt.answer.and_then(|answer| answer.usage);
    if let Some(usage) = usage {
        all.push(number("gen_ai.usage.input_tokens", count(usage.prompt)));
        all.push(number("gen_ai.usage.output_tokens", count(usage.completion)));
        let cached = usage
            .cached
            .map(|cached| number("gen_ai.usage.cache_read.input_tokens", count(cached)));
        all.extend(cached);
    }
    if let Some(finish) = attempt.finish().filter(|_| usage.is_some()) {
        all.push(list("gen_ai.response.finish_reasons", finish));
    }
    all
}

fn of_attempt(record: &SpanRecord, attempt: &Attempt, ended: Instant, spans: &mut Vec<Span>) {
    let until = attempt.ended.unwrap_or(ended);
    let mut attributes = of_model(record, attempt);
    let url = attempt.choice.worker.url();
    attributes.extend(url.host().map(|host| text("server.address", host)));
    attributes.extend(url.port_u16().map(|port| number("server.port", port.into())));
    attributes.extend([
        number("tailroute.decision", count(attempt.choice.decision)),
        text("tailroute.policy", attempt.choice.policy),
        text("tailroute.reason", attempt.choice.reason),
        number(
            "tailroute.predicted.prompt_tokens",
            count(attempt.choice.prompt.0),
        ),
        number(
            "tailroute.predicted.cached_tokens",
            count(attempt.choice.cached.0),
        ),
        real("tailroute.predicted.wait_ms", attempt.choice.wait.0),
        real("tailroute.predicted.ttft_ms", attempt.choice.predicted.0),
    ]);
    let is_failure = matches!(
        attempt.outcome,
        "broken" | "worker_error" | "deadline" | "not_reached"
    );
    spans.push(Span {
        kind: SpanKind::Client as i32,
        attributes,
        status: is_failure.then(|| failed(attempt.outcome)),
        ..span(
            record,
            (attempt.span, record.context.span),
            &name(record),
            [attempt.sent, until],
        )
    });
    let (prefill, stream) = (inner(attempt.span, 1), inner(attempt.span, 2));
    match attempt.first_token {
        Some(first) => {
            spans.push(span(
                record,
                (prefill, attempt.span),
                "prefill",
                [attempt.sent, first],
            ));
            spans.push(span(record, (stream, attempt.span), "stream", [first, until]));
        }
        None => spans.push(span(
            record,
            (prefill, attempt.span),
            "prefill",
            [attempt.sent, until],
        )),
    }
}

fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn real(key: &str, value: f64) -> KeyValue {
    attribute(key, Value::DoubleValue(value))
}

fn boolean(key: &str, value: bool) -> KeyValue {
    attribute(key, Value::BoolValue(value))
}

fn list(key: &str, value: &str) -> KeyValue {
    let values = vec![AnyValue {
        value: Some(Value::StringValue(value.to_owned())),
    }];
    attribute(key, Value::ArrayValue(ArrayValue { values }))
}

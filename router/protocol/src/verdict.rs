//! The meaning of a worker's answer, in one table.
//!
//! Retries, breakers, metrics, the learner and the accounts of decisions use it.
//!
//! | answer | verdict |
//! |---|---|
//! | 1xx, 2xx, 3xx | ok, unless the body holds an error |
//! | 429, 529 | declined |
//! | any other 4xx; 501, a feature that the engine lacks | the client's error |
//! | 503 with `Retry-After` | declined |
//! | 503 whose body is JSON and has one of the [`PUSH_BACK`] phrases | declined |
//! | any other 503: of a proxy whose engine is gone, or of an engine that does not work | failed |
//! | any other 5xx | failed |
//! | an error in the body of a 200, by its code: 4xx and 5xx as above | as the status of that code |
//! | an error in the body of a 200 without a code, by its type: a rate limit or overload; an invalid request; any other | declined; the client's error; failed |
//! | a body that ends early, or a stream without its last event | broken |
//!
//! Errors in a body are recognised in these forms, as an event of a stream or as the whole body:
//!
//! | API | form |
//! |---|---|
//! | OpenAI chat and completions, any other endpoint | `{"error": {"message", "type", "code"}}`, `{"error": "message"}`, `{"object": "error", "message", "type", "code"}`, `finish_reason: "error"` of a choice |
//! | OpenAI responses | `{"type": "response.failed", "response": {"error"}}`, `{"type": "error", "code", "message"}`, a response with `"status": "failed"` |
//! | Anthropic messages | `{"type": "error", "error": {"type", "message"}}` |
//! | SGLang `/generate` | `{"error"}`, `meta_info.finish_reason` of type `abort` with a `status_code` |
//!
//! An abort without a status code is the client's own, by another connection, and no error.

use std::sync::LazyLock;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// Phrases with which engines refuse a request for lack of room. Compared in lower case, with spaces for underscores.
///
/// vLLM: "The engine is currently busy and cannot accept new requests", "prefill token backlog limit", "The model is
/// currently scaling". SGLang: "The request queue is full", "The request is aborted by a higher priority request".
/// Text Generation Inference: "Model is overloaded". Triton: "Exceeds maximum queue size". Ollama: "maximum pending
/// requests exceeded". Dynamo: "All workers are busy". OpenAI: `slow_down`. This router: `queue_full`, `overloaded`.
const PUSH_BACK: [&str; 17] = [
    "aborted by a higher priority request",
    "are busy",
    "at capacity",
    "backlog limit",
    "currently busy",
    "currently scaling",
    "maximum queue size",
    "no capacity",
    "overload",
    "pending requests exceeded",
    "queue full",
    "queue is full",
    "queue limit",
    "rate limit",
    "server busy",
    "slow down",
    "too many requests",
];

/// Phrases in types and codes of errors that the client caused, in lower case, for errors without a status.
const CLIENTS: [&str; 10] = [
    "authentication",
    "badrequest",
    "bad request",
    "context length",
    "invalid",
    "not found",
    "notfound",
    "permission",
    "request too large",
    "unprocessable",
];

/// Size in bytes of the longest body that is read for an error before it is relayed.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The worker answered.
    Ok,
    /// The client caused the error.
    ClientError,
    /// The worker has no room now, and has begun nothing.
    Declined(PushBack),
    /// The worker failed.
    Failed,
    /// The answer was cut short.
    Broken,
}

/// A worker's refusal for lack of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushBack {
    /// Time that the worker asks to wait, if it does.
    pub after: Option<Duration>,
}

impl Verdict {
    /// Judges the head of an answer; `None` if its body decides.
    pub fn of_head(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        match status.as_u16() {
            503 if headers.contains_key(RETRY_AFTER) => Some(Self::Declined(PushBack::of(headers))),
            503 => None,
            429 | 529 => Some(Self::Declined(PushBack::of(headers))),
            400..=499 | 501 => Some(Self::ClientError),
            500.. => Some(Self::Failed),
            200 if form_of(headers).is_some() => None,
            _ => Some(Self::Ok),
        }
    }

    /// Judges an answer by its head and the first piece of its body.
    pub fn of(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        Self::of_head(status, headers).unwrap_or_else(|| Self::of_body(status, headers, body))
    }

    /// Judges an answer whose head leaves it to the first piece of the body.
    pub fn of_body(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let error = match form_of(headers) {
            _ if body.len() > MAX_BODY_BYTES => None,
            Some(VerdictForm::Whole) => error_in(body),
            Some(VerdictForm::Events) => first_event(body).and_then(error_in),
            None => None,
        };
        match error {
            Some(Self::Declined(_)) => Self::Declined(PushBack::default()),
            _ if status == StatusCode::SERVICE_UNAVAILABLE => Self::Failed,
            Some(verdict) => verdict,
            None => Self::Ok,
        }
    }

    /// Judges an error by its status, or by its type if it has none.
    fn of_error(error: &Error<'_>) -> Self {
        match error.status {
            Some(429 | 529) => Self::Declined(PushBack::default()),
            Some(503) | None if error.is_push_back() => Self::Declined(PushBack::default()),
            Some(400..=499 | 501) => Self::ClientError,
            Some(_) => Self::Failed,
            None if error.is_the_clients() => Self::ClientError,
            None => Self::Failed,
        }
    }
}

impl PushBack {
    /// Reads `Retry-After` in seconds. A date counts as absent, since clocks differ.
    fn of(headers: &HeaderMap) -> Self {
        let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let seconds = after.and_then(|value| value.trim().parse::<u64>().ok());
        Self {
            after: seconds.map(Duration::from_secs),
        }
    }
}

/// An event or a whole body, as far as it can be an error.
#[derive(Default, Deserialize)]
#[serde(default)]
struct VerdictBody {
    error: Value,
    error_type: Value,
    #[serde(rename = "type")]
    kind: Value,
    object: Value,
    status: Value,
    code: Value,
    message: Value,
    response: Option<Response>,
    meta_info: Option<MetaInfo>,
    choices: Option<Vec<VerdictChoice>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    status: Value,
    error: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MetaInfo {
    finish_reason: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VerdictChoice {
    finish_reason: Value,
}

impl VerdictBody {
    /// Returns the error that the answer holds, if any.
    fn error(&self) -> Option<Error<'_>> {
        let is_set = |error: &Value| !matches!(error, Value::Null | Value::Bool(false)) && error != "";
        if is_set(&self.error) {
            // Some engines write the code beside the error.
            return Some(
                Error::of(&self.error)
                    .or_status(&self.code)
                    .or_kind(&self.error_type),
            );
        }
        if self.kind == "error" || self.object == "error" {
            let kind = if self.kind == "error" {
                &Value::Null
            } else {
                &self.kind
            };
            return Some(Error::named(&self.code, kind, &self.message));
        }
        if let Some(response) = &self.response
            && (self.kind == "response.failed" || response.status == "failed")
        {
            return Some(Error::of(&response.error));
        }
        let finish = self.meta_info.as_ref().map(|meta| &meta.finish_reason);
        if let Some(finish) = finish
            && finish["type"] == "abort"
            && status_of(&finish["status_code"]).is_some()
        {
            return Some(Error::named(
                &finish["status_code"],
                &finish["err_type"],
                &finish["message"],
            ));
        }
        let mut choices = self.choices.iter().flatten();
        let is_failed = (self.object == "response" && self.status == "failed")
            || choices.any(|choice| choice.finish_reason == "error");
        is_failed.then(Error::default)
    }
}

/// Parts of an error that decide its verdict.
#[derive(Default)]
struct Error<'a> {
    status: Option<u64>,
    code: &'a str,
    kind: &'a str,
    message: &'a str,
}

impl<'a> Error<'a> {
    /// Reads an error that is an object, or only its message.
    fn of(error: &'a Value) -> Self {
        let named = Self::named(&error["code"], &error["type"], &error["message"]);
        Self {
            message: error.as_str().unwrap_or(named.message),
            ..named.or_status(&error["status_code"]).or_status(&error["status"])
        }
    }

    fn named(code: &'a Value, kind: &'a Value, message: &'a Value) -> Self {
        Self {
            status: status_of(code),
            code: code.as_str().unwrap_or_default(),
            kind: kind.as_str().unwrap_or_default(),
            message: message.as_str().unwrap_or_default(),
        }
    }

    fn or_status(self, code: &Value) -> Self {
        let status = self.status.or_else(|| status_of(code));
        Self { status, ..self }
    }

    fn or_kind(self, kind: &'a Value) -> Self {
        match kind.as_str() {
            Some(kind) if self.kind.is_empty() => Self { kind, ..self },
            _ => self,
        }
    }

    /// Returns whether the error names a lack of room.
    fn is_push_back(&self) -> bool {
        [self.code, self.kind, self.message]
            .into_iter()
            .any(|text| contains_any(text, &PUSH_BACK))
    }

    /// Returns whether the code or type names an error of the client. The message may quote the client, and is not
    /// read.
    fn is_the_clients(&self) -> bool {
        [self.code, self.kind]
            .into_iter()
            .any(|text| contains_any(text, &CLIENTS))
    }
}

/// Form of a body that can hold an error.
#[derive(Clone, Copy, Debug)]
enum VerdictForm {
    Whole,
    Events,
}

/// Returns the form of an answer's body; `None` if it cannot be read.
fn form_of(headers: &HeaderMap) -> Option<VerdictForm> {
    let kind = headers.get(CONTENT_TYPE)?.as_bytes();
    let form = if kind.starts_with(b"application/json") {
        VerdictForm::Whole
    } else if kind.starts_with(b"text/event-stream") {
        VerdictForm::Events
    } else {
        return None;
    };
    (!headers.contains_key(CONTENT_ENCODING)).then_some(form)
}

fn status_of(value: &Value) -> Option<u64> {
    let code = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    code.filter(|code| (400..600).contains(code))
}

fn contains_any(text: &str, phrases: &[&str]) -> bool {
    // Messages may quote a prompt; what an engine says stands at the beginning.
    let text: String = text.chars().take(512).collect();
    let text = text.to_ascii_lowercase().replace('_', " ");
    phrases.iter().any(|phrase| text.contains(phrase))
}

/// Returns how many bytes of a whole body [`Verdict::of`] searches for an error, given the body's first piece.
pub fn searched_bytes(status: StatusCode, headers: &HeaderMap, first: &[u8]) -> usize {
    let is_searched = status == StatusCode::OK && first.len() <= MAX_BODY_BYTES;
    match form_of(headers) {
        Some(VerdictForm::Whole) if is_searched => first.len(),
        _ => 0,
    }
}

/// Returns the data of a stream's first event, if it is complete.
fn first_event(body: &[u8]) -> Option<&[u8]> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut lines = body.split_inclusive(|byte| matches!(byte, b'\n' | b'\r'));
    lines.find_map(|line| sse::data(line.strip_suffix(b"\n").or_else(|| line.strip_suffix(b"\r"))?))
}

/// Returns whether a whole body that begins like this may be an error: it has the beginning of one, or is too short to
/// tell.
pub fn begins_an_error(body: &[u8]) -> bool {
    let forms: [&[u8]; 3] = [b"{\"error\":", b"{\"object\":\"error\"", b"{\"type\":\"error\""];
    let begins = || body.iter().take(64).filter(|byte| !byte.is_ascii_whitespace());
    // The shorter of the two is the beginning of the other.
    forms
        .iter()
        .any(|form| begins().zip(*form).all(|(byte, of_form)| byte == of_form))
}

/// Words of which every error, and every event that says that a generation was aborted, has one.
static WORDS_OF_ERRORS: LazyLock<[memmem::Finder<'static>; 3]> =
    LazyLock::new(|| ["error", "abort", "failed"].map(memmem::Finder::new));

/// Returns the verdict on the error in an event or whole body; `None` if there is none.
pub fn error_in(json: &[u8]) -> Option<Verdict> {
    // Parsed only if it can be an error. An aborted generation has no member `error`.
    if WORDS_OF_ERRORS.iter().all(|word| word.find(json).is_none()) {
        return None;
    }
    let answer = if json.trim_ascii_start().first() == Some(&b'[') {
        // One answer per prompt of a batch.
        serde_json::from_slice::<Vec<VerdictBody>>(json)
            .ok()?
            .into_iter()
            .next()?
    } else {
        serde_json::from_slice(json).ok()?
    };
    answer.error().map(|error| Verdict::of_error(&error))
}

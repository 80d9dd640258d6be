//! OpenAI's chat completions, `/v1/chat/completions`: messages, and events with a `delta`.

use std::borrow::Cow;

use policy::estimate::Finish;
use policy::units::Millis;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{EndpointFacts, GenAiOperation, Work, parsed};
use crate::error::ApiError;
use crate::fingerprint::Draft;
use crate::json::{Malformed, Scanner};
use crate::reply::Piece;
use crate::verdict::error_in;
use crate::watch::{StreamFact, Usage, Watch};

pub(super) const ENDPOINT: EndpointFacts = EndpointFacts {
    takes_fields: true,
    is_ended_by_done: true,
    ..EndpointFacts::new(
        "chat",
        &["/v1/chat/completions"],
        Work::Generation(GenAiOperation::Chat),
    )
};

pub(super) fn read_prompt(
    member: &[u8],
    scanner: &mut Scanner<'_>,
    draft: &mut Draft,
) -> Result<bool, Malformed> {
    match member {
        b"messages" => draft.messages(scanner)?,
        b"tools" => draft.tools(scanner)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the body of an error.
pub(super) fn error(error: &ApiError) -> Value {
    let kind = match error.status().as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    json!({
        "error": { "message": error.to_string(), "type": kind, "param": error.field(), "code": error.code() }
    })
}

pub(super) fn read_response(watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
    if let Some(piece) = watch.stencil.read(json) {
        watch.saw_token();
        reply(piece);
        return;
    }
    let Some(event) = parsed::<CompletionEvent<'_>>(json) else {
        reply(Piece::Unrepeated);
        return;
    };
    if watch.is_stream() {
        watch.stencil.learn(json, &event);
    }
    if let Some(usage) = event.usage {
        let cached = usage
            .prompt_tokens_details
            .and_then(|details| details.cached_tokens);
        watch.usage = Some(Usage::reported(
            usage.prompt_tokens,
            usage.completion_tokens,
            cached,
        ));
    }
    if let Some(times) = event.metrics {
        (watch.prefill, watch.queue) = (times.prefill(), times.queue());
    }
    let mut token = false;
    for choice in event.choices {
        watch.finished |= choice.finish_reason.is_some();
        if choice.index == 0 {
            watch.finish = choice.finish_reason.as_deref().map_or(watch.finish, finish);
            token |= says(&choice, reply);
        } else {
            // Clients continue with the first choice; the worker caches the others as well.
            watch.several = true;
            token |= says(&choice, &mut |piece| watch.passed.say(&piece));
        }
    }
    if token {
        watch.saw_token();
    }
    // A proxy may have closed an event that has a token with an error.
    if event.error.is_some() && watch.error.is_none() {
        watch.error = error_in(json);
    }
}

fn finish(reason: &str) -> Finish {
    match reason {
        "stop" => Finish::Stop,
        "length" => Finish::Length,
        "tool_calls" | "function_call" => Finish::ToolCalls,
        _ => Finish::Other,
    }
}

/// Emits the pieces of a choice. Returns whether it has tokens.
fn says(choice: &CompletionChoice<'_>, reply: &mut impl FnMut(Piece<'_>)) -> bool {
    let mut token = false;
    let mut hand_on = |piece: Piece<'_>| {
        token = true;
        reply(piece);
    };
    let delta = choice.delta.as_ref().or(choice.message.as_ref());
    let pieces = [
        delta.and_then(|delta| delta.reasoning().piece(Piece::Reasoning)),
        // Chats have `content`, completions have `text`.
        delta.and_then(|delta| delta.content.piece(Piece::Text)),
        choice.text.piece(Piece::Text),
    ];
    pieces.into_iter().flatten().for_each(&mut hand_on);
    let Some(delta) = delta else { return token };
    // vLLM sends `"tool_calls": []` in whole responses without calls.
    for (at, call) in delta.tool_calls.iter().flatten().enumerate() {
        // Only streams give an index; a whole response lists calls in order.
        hand_on(call.piece(Some(call.index.unwrap_or(at as u64))));
    }
    if let Some(call) = &delta.function_call {
        hand_on(call.piece(None));
    }
    if delta.is_more() {
        hand_on(Piece::Unrepeated);
    }
    token
}

/// An event or a whole response, of completions too.
#[derive(Deserialize)]
pub(crate) struct CompletionEvent<'a> {
    #[serde(borrow, default)]
    pub(crate) choices: Vec<CompletionChoice<'a>>,
    #[serde(default)]
    pub(crate) usage: Option<WireUsage>,
    #[serde(default)]
    pub(crate) metrics: Option<WireTimes>,
    #[serde(default)]
    pub(crate) error: Option<IgnoredAny>,
}

/// Metrics of vLLM's `--enable-per-request-metrics`.
#[derive(Deserialize)]
pub(crate) struct WireTimes {
    #[serde(default)]
    time_to_first_token_ms: Option<f64>,
    #[serde(default)]
    queue_time_ms: Option<f64>,
}

impl WireTimes {
    /// Returns the time from the start of prefill to the first token.
    pub(crate) fn prefill(&self) -> Option<Millis> {
        let took = self.time_to_first_token_ms? - self.queue_time_ms?;
        (took.is_finite() && took >= 0.0).then_some(Millis(took))
    }

    /// Returns the time from arrival to the start of prefill.
    pub(crate) fn queue(&self) -> Option<Millis> {
        let waited = self.queue_time_ms?;
        (waited.is_finite() && waited >= 0.0).then_some(Millis(waited))
    }
}

#[derive(Deserialize)]
pub(crate) struct CompletionChoice<'a> {
    #[serde(default)]
    pub(crate) index: u64,
    #[serde(borrow, default)]
    pub(crate) delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(crate) message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(crate) text: StreamFact<'a>,
    #[serde(borrow, default)]
    pub(crate) finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
pub(crate) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(crate) content: StreamFact<'a>,
    #[serde(borrow, default)]
    pub(crate) tool_calls: Option<Vec<ToolCallDelta<'a>>>,
    #[serde(borrow, default)]
    pub(crate) function_call: Option<ToolCallDelta<'a>>,
    #[serde(borrow, default)]
    reasoning: StreamFact<'a>,
    #[serde(borrow, default)]
    reasoning_content: StreamFact<'a>,
    #[serde(borrow, default)]
    refusal: StreamFact<'a>,
    #[serde(default)]
    audio: Option<IgnoredAny>,
}

impl Delta<'_> {
    /// Returns the reasoning: the member `reasoning` in vLLM, `reasoning_content` in older versions and SGLang; some
    /// send both.
    pub(crate) fn reasoning(&self) -> &StreamFact<'_> {
        match self.reasoning {
            StreamFact::Nothing => &self.reasoning_content,
            _ => &self.reasoning,
        }
    }

    /// Returns whether the delta has content that the next prompt does not repeat verbatim.
    pub(crate) fn is_more(&self) -> bool {
        self.audio.is_some() || !matches!(self.refusal, StreamFact::Nothing)
    }
}

/// A fragment of a call, also in the older form without `function`.
#[derive(Deserialize)]
pub(crate) struct ToolCallDelta<'a> {
    #[serde(default)]
    pub(crate) index: Option<u64>,
    #[serde(borrow, default)]
    id: StreamFact<'a>,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
    #[serde(borrow, default)]
    name: StreamFact<'a>,
    #[serde(borrow, default)]
    arguments: StreamFact<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: StreamFact<'a>,
    #[serde(borrow, default)]
    arguments: StreamFact<'a>,
}

impl ToolCallDelta<'_> {
    /// Returns the fragment; [`Piece::Unrepeated`] unless all its members are text.
    pub(crate) fn piece(&self, index: Option<u64>) -> Piece<'_> {
        let inner = self.function.as_ref().filter(|_| index.is_some());
        let (name, arguments) = inner.map_or((&self.name, &self.arguments), |inner| {
            (&inner.name, &inner.arguments)
        });
        let texts = (self.id.text(), name.text(), arguments.text());
        match texts {
            (Some(id), Some(name), Some(arguments)) => Piece::Call {
                index,
                id,
                name,
                arguments,
            },
            _ => Piece::Unrepeated,
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    #[serde(default)]
    prompt_tokens_details: Option<WireDetails>,
}

#[derive(Deserialize)]
struct WireDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_the_shape_that_openai_clients_parse() {
        let error = error(&ApiError::UnknownModel {
            model: "gpt \"x\"".into(),
            known: "a".into(),
        });
        assert_eq!(error["error"]["code"], "model_not_found");
        assert_eq!(error["error"]["type"], "not_found_error");
        assert!(error["error"]["message"].as_str().unwrap().contains("gpt \"x\""));
        assert_eq!(error["error"]["param"], "model");
    }
}

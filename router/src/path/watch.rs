//! What a passing answer says: first token, reply text, usage, finish reason, the engine's own times.
//!
//! Reads the answer of `/v1/chat/completions` and `/v1/completions`, streamed or whole, without holding it up. A
//! streamed answer is read line by line; a whole one is copied aside up to a bound and read at its end.

use std::borrow::Cow;

use policy::estimate::Finish;
use policy::units::Millis;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Longest whole answer that is read for its usage; a longer one still passes, unread.
const MAX_WHOLE_BYTES: usize = 8 << 20;
/// Most tokens that a worker is believed to have counted. Far beyond any model, and sums of such counts are safe.
const MAX_TOKENS: u64 = 1 << 32;

/// Token counts, as the worker reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the reply.
    pub completion: u64,
    /// Prompt tokens found in the worker's cache, if it says.
    pub cached: Option<u64>,
}

/// All that an answer said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// What the worker counted.
    pub usage: Option<Usage>,
    /// How the answer ended.
    pub finish: Finish,
    /// What its prefill took by the engine's own clock, where it reports times per request.
    pub prefill: Option<Millis>,
}

/// Reads one answer as it passes.
#[derive(Debug)]
pub struct Watch {
    form: Form,
    /// A token has passed.
    pub first_token: bool,
    /// Tokens' events seen in a stream.
    pub token_events: u64,
    /// The answer said that it is complete.
    pub complete: bool,
    /// What the worker counted.
    pub usage: Option<Usage>,
    /// Whether the reply is plain text of one choice, so that it can be found again in the next turn's prompt.
    pub plain_reply: bool,
    finish: Finish,
    prefill: Option<Millis>,
}

#[derive(Debug)]
enum Form {
    Stream(sse::Lines),
    Whole(Vec<u8>),
    Unread,
}

impl Watch {
    /// A watch for an answer of this content type.
    #[must_use]
    pub fn new(content_type: Option<&str>, encoded: bool) -> Self {
        let form = match content_type {
            _ if encoded => Form::Unread,
            Some(kind) if kind.starts_with("text/event-stream") => Form::Stream(sse::Lines::default()),
            Some(kind) if kind.starts_with("application/json") => Form::Whole(Vec::new()),
            _ => Form::Unread,
        };
        Self {
            form,
            first_token: false,
            token_events: 0,
            complete: false,
            usage: None,
            plain_reply: true,
            finish: Finish::Other,
            prefill: None,
        }
    }

    /// What it has said so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            usage: self.usage,
            finish: self.finish,
            prefill: self.prefill,
        }
    }

    /// Whether the answer is an event stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        matches!(self.form, Form::Stream(_))
    }

    /// Where the event stream stands; `None` if it is none.
    #[must_use]
    pub fn standing(&self) -> Option<sse::Standing<'_>> {
        match &self.form {
            Form::Stream(lines) => Some(lines.standing()),
            _ => None,
        }
    }

    /// Takes the next chunk; reply text in it is handed to `reply`.
    pub fn push(&mut self, chunk: &[u8], mut reply: impl FnMut(&str)) {
        match &mut self.form {
            Form::Stream(lines) => {
                let mut lines = std::mem::take(lines);
                lines.push(chunk, |line| self.line(line, &mut reply));
                self.form = Form::Stream(lines);
            }
            Form::Whole(copy) if copy.len() + chunk.len() <= MAX_WHOLE_BYTES => copy.extend_from_slice(chunk),
            Form::Whole(_) => self.form = Form::Unread,
            Form::Unread => {}
        }
        self.first_token |= !self.is_stream() && !chunk.is_empty();
    }

    /// The answer ended cleanly.
    pub fn end(&mut self, mut reply: impl FnMut(&str)) {
        match std::mem::replace(&mut self.form, Form::Unread) {
            Form::Whole(copy) => {
                self.event(&copy, &mut reply);
                self.complete = true;
            }
            Form::Unread => self.complete = true,
            // A stream is complete when it says so, not when it stops.
            Form::Stream(lines) => self.form = Form::Stream(lines),
        }
    }

    fn line(&mut self, line: &[u8], reply: &mut impl FnMut(&str)) {
        match sse::data(line) {
            Some(b"[DONE]") => self.complete = true,
            Some(payload) => self.event(payload, reply),
            None => {}
        }
    }

    fn event(&mut self, json: &[u8], reply: &mut impl FnMut(&str)) {
        let Ok(event) = serde_json::from_slice::<Event<'_>>(json) else {
            return;
        };
        if let Some(usage) = event.usage {
            self.usage = Some(usage.into());
        }
        if let Some(times) = event.metrics {
            self.prefill = times.prefill();
        }
        let mut token = false;
        for choice in event.choices {
            self.finish = match choice.finish_reason.as_deref() {
                None => self.finish,
                Some("stop") => Finish::Stop,
                Some("length") => Finish::Length,
                Some("tool_calls" | "function_call") => Finish::ToolCalls,
                Some(_) => Finish::Other,
            };
            let delta = choice.delta.or(choice.message).unwrap_or_default();
            let other = delta.is_more_than_content();
            let text = delta.content.or(choice.text);
            self.plain_reply &= choice.index == 0 && !other;
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                token = true;
                reply(&text);
            }
            token |= other;
        }
        if token {
            self.first_token = true;
            self.token_events += 1;
        }
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<WireUsage>,
    #[serde(default)]
    metrics: Option<WireTimes>,
}

/// vLLM's `--enable-per-request-metrics`.
#[derive(Deserialize)]
struct WireTimes {
    #[serde(default)]
    time_to_first_token_ms: Option<f64>,
    #[serde(default)]
    queue_time_ms: Option<f64>,
}

impl WireTimes {
    /// From the beginning of the prefill to the first token.
    fn prefill(&self) -> Option<Millis> {
        let took = self.time_to_first_token_ms? - self.queue_time_ms?;
        (took.is_finite() && took >= 0.0).then_some(Millis(took))
    }
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    /// vLLM's name for what older versions and SGLang call `reasoning_content`; some send both.
    #[serde(default)]
    reasoning: Option<IgnoredAny>,
    #[serde(default)]
    reasoning_content: Option<IgnoredAny>,
    #[serde(default)]
    tool_calls: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    function_call: Option<IgnoredAny>,
}

impl Delta<'_> {
    /// Whether it holds tokens that are not the reply's text: the next prompt does not repeat them, or not here.
    fn is_more_than_content(&self) -> bool {
        // vLLM says `"tool_calls": []` in whole answers that call none.
        let calls = self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        calls || self.reasoning.is_some() || self.reasoning_content.is_some() || self.function_call.is_some()
    }
}

#[derive(Deserialize)]
struct WireUsage {
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

impl From<WireUsage> for Usage {
    fn from(wire: WireUsage) -> Self {
        let details = wire.prompt_tokens_details;
        Self {
            prompt: wire.prompt_tokens.min(MAX_TOKENS),
            completion: wire.completion_tokens.min(MAX_TOKENS),
            cached: details
                .and_then(|details| details.cached_tokens)
                .map(|cached| cached.min(MAX_TOKENS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(content_type: &str, chunks: &[&[u8]]) -> (Watch, String) {
        let mut watch = Watch::new(Some(content_type), false);
        let mut text = String::new();
        for chunk in chunks {
            watch.push(chunk, |piece| text.push_str(piece));
        }
        watch.end(|piece| text.push_str(piece));
        (watch, text)
    }

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\\u00e9\"}}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" 漢🙂\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,",
        "\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn a_stream_is_read_alike_however_it_is_split() {
        for size in 1..STREAM.len() {
            let chunks: Vec<&[u8]> = STREAM.as_bytes().chunks(size).collect();
            let (watch, text) = watch("text/event-stream; charset=utf-8", &chunks);
            assert_eq!(text, "hé 漢🙂", "chunks of {size}");
            assert!(watch.first_token && watch.complete && watch.plain_reply);
            assert_eq!(watch.token_events, 2);
            assert_eq!(
                watch.usage,
                Some(Usage {
                    prompt: 9,
                    completion: 2,
                    cached: Some(8)
                })
            );
        }
    }

    #[test]
    fn the_end_and_the_engines_times_are_read_wherever_they_stand() {
        let (seen, _) = watch("text/event-stream", &[STREAM.as_bytes()]);
        assert_eq!((seen.seen().finish, seen.seen().prefill), (Finish::Stop, None));
        let body = br#"{"choices":[{"index":0,"message":{"content":"","tool_calls":[{}]},"finish_reason":"tool_calls"}],
            "metrics":{"time_to_first_token_ms":75.5,"queue_time_ms":25.0,"other":null}}"#;
        let seen = watch("application/json", &[body]).0.seen();
        assert_eq!(
            (seen.finish, seen.prefill),
            (Finish::ToolCalls, Some(Millis(50.5)))
        );
        let odd = br#"data: {"choices":[],"metrics":{"time_to_first_token_ms":1.0,"queue_time_ms":2.0}}"#;
        assert_eq!(watch("text/event-stream", &[odd, b"\n\n"]).0.seen().prefill, None);
    }

    #[test]
    fn the_role_is_not_a_token() {
        let end = STREAM.find("\n\n").unwrap() + 2;
        let (watch, _) = watch("text/event-stream", &[&STREAM.as_bytes()[..end]]);
        assert!(!watch.first_token);
    }

    #[test]
    fn a_stream_that_stops_without_saying_so_is_not_complete() {
        let cut = STREAM.find("data: [DONE]").unwrap();
        assert!(
            !watch("text/event-stream", &[&STREAM.as_bytes()[..cut]])
                .0
                .complete
        );
    }

    #[test]
    fn a_whole_answer_gives_its_usage_at_the_end() {
        let body = br#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],
            "usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":null}}"#;
        let (watch, text) = watch("application/json", &[&body[..20], &body[20..]]);
        assert_eq!(text, "hi");
        assert!(watch.complete && watch.plain_reply);
        assert_eq!(
            watch.usage,
            Some(Usage {
                prompt: 3,
                completion: 1,
                cached: None
            })
        );
    }

    #[test]
    fn tool_calls_and_second_choices_are_no_plain_reply() {
        let tools = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n";
        let (seen, _) = watch("text/event-stream", &[tools]);
        assert!(seen.first_token && !seen.plain_reply);
        let second = b"data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}\n\n";
        assert!(!watch("text/event-stream", &[second]).0.plain_reply);
    }

    #[test]
    fn reasoning_and_function_calls_are_tokens_and_no_plain_reply_streamed_or_not() {
        let beside = [
            r#""reasoning":"hm""#,
            r#""reasoning_content":"hm""#,
            r#""reasoning":"hm","reasoning_content":"hm""#,
            r#""function_call":{"name":"f","arguments":"{}"}"#,
        ];
        for field in beside {
            let delta = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{{field}}}}}]}}\n\n");
            let (seen, text) = watch("text/event-stream", &[delta.as_bytes()]);
            assert!(seen.first_token && !seen.plain_reply, "{field}");
            assert_eq!((seen.token_events, text.as_str()), (1, ""), "{field}");
            let whole = format!(r#"{{"choices":[{{"index":0,"message":{{"content":"hi",{field}}}}}]}}"#);
            let (seen, text) = watch("application/json", &[whole.as_bytes()]);
            assert!(seen.complete && !seen.plain_reply, "{field}");
            assert_eq!(text, "hi");
        }
        let none = r#""reasoning":null,"reasoning_content":null,"function_call":null,"tool_calls":null"#;
        let role = format!(r#"data: {{"choices":[{{"index":0,"delta":{{"role":"assistant",{none}}}}}]}}"#);
        let (seen, _) = watch("text/event-stream", &[role.as_bytes(), b"\n\n"]);
        assert!(!seen.first_token && seen.plain_reply);
        let whole = format!(r#"{{"choices":[{{"index":0,"message":{{"content":"hi",{none}}}}}]}}"#);
        let (seen, _) = watch("application/json", &[whole.as_bytes()]);
        assert!(seen.plain_reply);
    }

    #[test]
    fn counts_that_no_worker_can_mean_are_cut() {
        let most = u64::MAX;
        let body = format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":{most},"completion_tokens":{most},
            "prompt_tokens_details":{{"cached_tokens":{most}}}}}}}"#
        );
        let (seen, _) = watch("application/json", &[body.as_bytes()]);
        let usage = Usage {
            prompt: MAX_TOKENS,
            completion: MAX_TOKENS,
            cached: Some(MAX_TOKENS),
        };
        assert_eq!(seen.usage, Some(usage));
    }

    #[test]
    fn garbage_and_compressed_answers_pass_unread() {
        let (garbage, text) = watch("text/event-stream", &[b"data: {nope\n\n\xff\xfe\n"]);
        assert!(!garbage.first_token && text.is_empty());
        let mut encoded = Watch::new(Some("application/json"), true);
        encoded.push(b"\x1f\x8b", |_| {});
        encoded.end(|_| {});
        assert!(encoded.first_token && encoded.complete && encoded.usage.is_none());
    }
}

//! One streamed response: its text, the times of its tokens, and whether it is complete.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

/// Token counts reported by the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the response.
    pub completion_tokens: u64,
    /// Prompt tokens that were cached; `None` if the engine does not report it.
    pub cached_tokens: Option<u64>,
}

/// A response as it is received. The caller supplies the times, all from one origin.
#[derive(Debug, Default)]
pub struct Answer {
    events: sse::Events,
    /// The text received so far, without reasoning.
    pub text: String,
    /// Time of the first piece of content.
    pub first_token: Option<Duration>,
    /// Time of the last piece of content.
    pub last_token: Option<Duration>,
    /// Milliseconds between one piece of content and the next.
    pub gaps_ms: Vec<f32>,
    /// Whether a finish reason was sent.
    pub finished: bool,
    /// Whether `[DONE]` was sent.
    pub done: bool,
    /// The engine's token counts, if it sent any.
    pub usage: Option<TokenUsage>,
    /// The first fault in the stream, if any.
    pub fault: Option<Fault>,
}

/// Faults of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An event that is not a chat completion chunk.
    NotAChunk,
    /// The engine reported an error mid-stream.
    Reported(String),
}

#[derive(Deserialize)]
struct ResponseChunk<'a> {
    #[serde(default, borrow)]
    choices: Vec<ChunkChoice<'a>>,
    usage: Option<UsageField>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct ChunkChoice<'a> {
    #[serde(borrow)]
    delta: Option<ChunkDelta<'a>>,
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
struct ChunkDelta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    /// Reasoning counts as content: either kind ends the wait for the first token.
    #[serde(alias = "reasoning", borrow)]
    reasoning_content: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct UsageField {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Answer {
    /// Adds bytes of the stream that arrived at `at`.
    pub fn push(&mut self, bytes: &[u8], at: Duration) {
        let mut events = std::mem::take(&mut self.events);
        if events.push(bytes, |event| self.event(event, at)).is_err() {
            self.fault = Some(Fault::NotAChunk);
        }
        self.events = events;
    }

    /// Returns whether the stream ended properly and without a fault.
    pub fn is_complete(&self) -> bool {
        self.done && self.finished && self.fault.is_none() && self.first_token.is_some()
    }

    fn event(&mut self, data: &[u8], at: Duration) {
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        let Ok(chunk) = serde_json::from_slice::<ResponseChunk<'_>>(data) else {
            self.fault = Some(Fault::NotAChunk);
            return;
        };
        if let Some(error) = chunk.error {
            let message = error.get("message").and_then(serde_json::Value::as_str);
            self.fault = Some(Fault::Reported(message.unwrap_or("without a message").to_owned()));
        }
        if let Some(usage) = chunk.usage {
            self.usage = Some(TokenUsage {
                prompt_tokens: usage.prompt_tokens,
                completion_tokens: usage.completion_tokens,
                cached_tokens: usage
                    .prompt_tokens_details
                    .and_then(|details| details.cached_tokens),
            });
        }
        if let Some(choice) = chunk.choices.into_iter().next() {
            self.finished |= choice.finish_reason.is_some();
            let delta = choice.delta.unwrap_or_default();
            let said = delta.content.unwrap_or_default();
            let thought = delta.reasoning_content.unwrap_or_default();
            if !said.is_empty() || !thought.is_empty() {
                self.text.push_str(&said);
                self.token(at);
            }
        }
    }

    fn token(&mut self, at: Duration) {
        match self.last_token.replace(at) {
            Some(last) => self.gaps_ms.push(at.saturating_sub(last).as_secs_f32() * 1e3),
            None => self.first_token = Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#,
        "\n\n",
        r#"data: {"choices":[{"index":0,"delta":{"content":"gr\u00fc\"ß"},"finish_reason":null}]}"#,
        "\n\n",
        r#"data: {"choices":[{"index":0,"delta":{"content":" 😀"},"finish_reason":null}]}"#,
        "\n\n",
        r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#,
        "\n\n",
        r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4}}}"#,
        "\n\n",
        "data: [DONE]\n\n",
    );

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn an_answer_cut_at_every_byte_reads_the_same() {
        for cut in 0..=STREAM.len() {
            let (left, right) = STREAM.as_bytes().split_at(cut);
            let mut answer = Answer::default();
            answer.push(left, ms(1));
            answer.push(right, ms(2));
            assert!(answer.is_complete(), "cut at {cut}");
            assert_eq!(answer.text, "grü\"ß 😀");
            let usage = TokenUsage {
                prompt_tokens: 9,
                completion_tokens: 2,
                cached_tokens: Some(4),
            };
            assert_eq!(answer.usage, Some(usage));
        }
    }

    #[test]
    fn the_first_token_is_the_first_content_not_the_role() {
        let mut answer = Answer::default();
        for (at, event) in STREAM.split_inclusive("\n\n").enumerate() {
            answer.push(event.as_bytes(), ms(10 * at as u64));
        }
        assert_eq!(answer.first_token, Some(ms(10)));
        assert_eq!(answer.last_token, Some(ms(20)));
        assert_eq!(answer.gaps_ms, [10.0]);
    }

    #[test]
    fn a_stream_without_its_end_is_incomplete() {
        let mut answer = Answer::default();
        answer.push(STREAM.strip_suffix("data: [DONE]\n\n").unwrap().as_bytes(), ms(1));
        assert!(!answer.is_complete());
        let mut answer = Answer::default();
        answer.push(
            b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n",
            ms(1),
        );
        assert!(!answer.is_complete(), "no reason to finish");
    }

    #[test]
    fn an_error_event_in_the_stream_is_a_fault() {
        let mut answer = Answer::default();
        answer.push(
            b"data: {\"error\":{\"message\":\"worker died\"}}\n\ndata: [DONE]\n\n",
            ms(1),
        );
        assert_eq!(answer.fault, Some(Fault::Reported("worker died".to_owned())));
        let mut answer = Answer::default();
        answer.push(b"data: <html>\n\n", ms(1));
        assert_eq!(answer.fault, Some(Fault::NotAChunk));
    }
}

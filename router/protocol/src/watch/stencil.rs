//! Reads events that differ from the previous one only in their text, without parsing them.
//!
//! Events of a reply usually differ in their token only. The stencil keeps the bytes around the text of the last parsed
//! event. If the next event has the same, and the inside of a JSON string between them, two comparisons replace a walk
//! over every field. Any other difference (finish reason, usage, log-probabilities, escapes) is parsed normally.

use std::borrow::Cow;

use super::StreamFact;
use crate::api::openai_chat::CompletionEvent;
use crate::reply::Piece;

/// Maximum length in bytes of an event with one token.
const MAX_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Stencil {
    event: Vec<u8>,
    /// Offset of the event's text.
    head: usize,
    /// Number of bytes after the event's text; 0 if no event was learned.
    tail: usize,
    is_reasoning: bool,
}

impl Stencil {
    /// Returns the piece of an event that matches the stencil; `None` if the event has to be parsed.
    pub(crate) fn read<'a>(&self, json: &'a [u8]) -> Option<Piece<'a>> {
        if self.tail == 0 || json.len() <= self.head + self.tail {
            return None;
        }
        let (head, rest) = json.split_at(self.head);
        let (text, tail) = rest.split_at(rest.len() - self.tail);
        if head != &self.event[..self.head] || tail != &self.event[self.event.len() - self.tail..] {
            return None;
        }
        let plain = |&byte: &u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        if !text.iter().all(plain) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        Some(if self.is_reasoning {
            Piece::Reasoning(text)
        } else {
            Piece::Text(text)
        })
    }

    /// Learns from a parsed event that has one token's text and nothing else.
    pub(crate) fn learn(&mut self, json: &[u8], event: &CompletionEvent<'_>) {
        let Some((text, is_reasoning)) = only_text(event) else {
            return;
        };
        // The text borrows from the event, unless it had escapes.
        let Some(head) = text.as_ptr().addr().checked_sub(json.as_ptr().addr()) else {
            return;
        };
        let end = head.saturating_add(text.len());
        if text.is_empty() || json.len() > MAX_BYTES || json.get(head..end) != Some(text.as_bytes()) {
            return;
        }
        self.event.clear();
        self.event.extend_from_slice(json);
        self.head = head;
        self.tail = json.len() - end;
        self.is_reasoning = is_reasoning;
    }
}

/// Returns the text if it is the event's only content, and whether it is reasoning.
fn only_text<'a>(event: &'a CompletionEvent<'_>) -> Option<(&'a str, bool)> {
    let [choice] = event.choices.as_slice() else {
        return None;
    };
    let plain = event.usage.is_none() && event.metrics.is_none() && event.error.is_none();
    if !plain || choice.index != 0 || choice.finish_reason.is_some() || choice.message.is_some() {
        return None;
    }
    let borrowed = |said: &'a StreamFact<'_>| match said {
        StreamFact::Text(Cow::Borrowed(text)) => Some(*text),
        _ => None,
    };
    let Some(delta) = &choice.delta else {
        return Some((borrowed(&choice.text)?, false));
    };
    let calls =
        delta.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) || delta.function_call.is_some();
    if calls || delta.is_more() || !matches!(choice.text, StreamFact::Nothing) {
        return None;
    }
    match (delta.reasoning(), &delta.content) {
        (StreamFact::Nothing, content) => Some((borrowed(content)?, false)),
        (reasoning, StreamFact::Nothing) => Some((borrowed(reasoning)?, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(json: &[u8]) -> Option<CompletionEvent<'_>> {
        serde_json::from_slice(json).ok()
    }

    fn learned(json: &str) -> Stencil {
        let mut stencil = Stencil::default();
        stencil.learn(json.as_bytes(), &parse(json.as_bytes()).unwrap());
        stencil
    }

    const CHAT: &str = r#"{"id":"a","choices":[{"index":0,"delta":{"content":" Hi"},"finish_reason":null}]}"#;

    #[test]
    fn another_text_in_the_same_place_is_read() {
        let stencil = learned(CHAT);
        let next = CHAT.replace(" Hi", " Grüße, {you}");
        assert_eq!(stencil.read(next.as_bytes()), Some(Piece::Text(" Grüße, {you}")));
        let reasoning = r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#;
        let next = reasoning.replace("hm", "so");
        assert_eq!(
            learned(reasoning).read(next.as_bytes()),
            Some(Piece::Reasoning("so"))
        );
        let completion = r#"{"choices":[{"text":"a","index":0}]}"#;
        assert_eq!(
            learned(completion).read(completion.as_bytes()),
            Some(Piece::Text("a"))
        );
    }

    #[test]
    fn what_differs_in_more_is_left_to_the_parser() {
        let stencil = learned(CHAT);
        for other in [
            CHAT.replace(" Hi", ""),
            CHAT.replace(" Hi", "\\n"),
            CHAT.replace(" Hi", "\",\"refusal\":\"x"),
            CHAT.replace(" Hi", "\u{1}"),
            CHAT.replace("null", "\"stop\""),
            CHAT.replace("\"index\":0", "\"index\":1"),
            CHAT[1..].to_owned(),
        ] {
            assert_eq!(stencil.read(other.as_bytes()), None, "{other}");
        }
        let bytes = CHAT.replace(" Hi", "\u{7f}\u{80}").into_bytes();
        let cut: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0xc2).collect();
        assert_eq!(stencil.read(&cut), None, "no UTF-8");
    }

    #[test]
    fn only_a_tokens_text_makes_a_stencil() {
        for event in [
            r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a","refusal":"b"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a","reasoning":"b"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a","tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a\n"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":""}}]}"#,
            r#"{"choices":[]}"#,
        ] {
            assert_eq!(learned(event).read(event.as_bytes()), None, "{event}");
        }
    }

    fn said(event: &CompletionEvent<'_>) -> Option<(String, bool)> {
        only_text(event).map(|(text, is_reasoning)| (text.to_owned(), is_reasoning))
    }

    proptest! {
        /// Events read by the stencil have the same result as parsed ones.
        #[test]
        fn it_reads_what_the_parser_would(
            field in prop::sample::select(vec!["content", "reasoning", "reasoning_content"]),
            first in "[ -~]{1,6}",
            middle in "([ -~ü€]|\\\\|\"|\\},\\{){0,8}",
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let event = |text: &str| {
                format!("{{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"{field}\":\"{text}\"}},\"logprobs\":null}}]}}")
            };
            let plain: String = first.chars().filter(|char| !matches!(char, '"' | '\\')).collect();
            prop_assume!(!plain.is_empty());
            let stencil = learned(&event(&plain));
            let mut next = event(&middle).into_bytes();
            if let Some((at, byte)) = damage {
                let at = at.index(next.len());
                next[at] = byte;
            }
            let read = stencil.read(&next).map(|piece| match piece {
                Piece::Reasoning(text) => (text.to_owned(), true),
                Piece::Text(text) => (text.to_owned(), false),
                _ => unreachable!(),
            });
            if read.is_some() {
                prop_assert_eq!(read, parse(&next).as_ref().and_then(said));
            }
        }
    }
}

//! Tests with generated messages, which are streamed in randomly split deltas and sent back in the various ways of
//! clients: the keys must agree.

use std::sync::Arc;

use policy::fingerprint::Chain;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64Mcg;
use serde_json::{Value, json};

use super::*;
use crate::api::Endpoint;
use crate::fingerprint::Fingerprint;
use crate::parse::parse;
use crate::watch::Watch;

#[derive(Clone, Debug, Default)]
struct Said {
    reasoning: String,
    text: String,
    /// Id, name and arguments of each call.
    calls: Vec<[String; 3]>,
    /// A call in the older form, for messages without newer ones.
    function: Option<[String; 2]>,
}

fn text() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec!["\\", "\"", "\n", "é", "😀", "/", "\u{1}", "{\"a\": [1, 2]}"]);
    let run = (0usize..150, special).prop_map(|(length, special)| "x".repeat(length) + special);
    prop_oneof![
        Just(String::new()),
        "[a-z {}\":,]{1,12}",
        prop::collection::vec(run, 1..6).prop_map(|runs| runs.concat())
    ]
}

fn said() -> impl Strategy<Value = Said> {
    let name = "[a-z_]{1,9}";
    let call = ("[a-z0-9]{0,8}", name, text()).prop_map(|(id, name, arguments)| [id, name, arguments]);
    let function = (name, text()).prop_map(|(name, arguments)| [name, arguments]);
    let calls = prop::collection::vec(call, 0..5);
    (text(), text(), calls, prop::option::weighted(0.2, function)).prop_map(
        |(reasoning, text, calls, function)| Said {
            reasoning,
            text,
            function: function.filter(|_| calls.is_empty()),
            calls,
        },
    )
}

/// Splits a text into at least one piece.
fn fragments(text: &str, rng: &mut Pcg64Mcg) -> Vec<String> {
    let mut fragments = vec![String::new()];
    for character in text.chars() {
        if rng.random_bool(0.1) {
            fragments.push(String::new());
        }
        fragments.last_mut().unwrap().push(character);
    }
    fragments
}

fn mixed<T>(lists: Vec<Vec<T>>, rng: &mut Pcg64Mcg) -> Vec<T> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let mut out = Vec::new();
    while !lists.is_empty() {
        let at = rng.random_range(0..lists.len());
        match lists[at].next() {
            Some(item) => out.push(item),
            None => drop(lists.swap_remove(at)),
        }
    }
    out
}

impl Said {
    fn deltas(&self, rng: &mut Pcg64Mcg) -> Vec<Value> {
        let mut plain = vec![json!({"role": "assistant", "content": ""})];
        for fragment in fragments(&self.reasoning, rng) {
            plain.push(match rng.random_range(0..3) {
                0 => json!({"reasoning": fragment}),
                1 => json!({"reasoning_content": fragment, "content": null}),
                _ => json!({"reasoning": fragment, "reasoning_content": fragment}),
            });
        }
        plain.extend(
            fragments(&self.text, rng)
                .into_iter()
                .map(|fragment| json!({"content": fragment})),
        );
        let mut lists = vec![plain];
        for (index, [id, name, arguments]) in self.calls.iter().enumerate() {
            let first = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
            let mut list = vec![json!({"tool_calls": [first]})];
            for fragment in fragments(arguments, rng) {
                list.push(match rng.random_range(0..3) {
                    0 => json!({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}),
                    1 => json!({"content": "", "tool_calls": [{"index": index, "id": null, "function": {"name": null, "arguments": fragment}}]}),
                    // Some engines repeat id and name in every fragment.
                    _ => json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": fragment}}]}),
                });
            }
            lists.push(list);
        }
        if let Some([name, arguments]) = &self.function {
            let mut list = vec![json!({"function_call": {"name": name}})];
            list.extend(
                fragments(arguments, rng)
                    .into_iter()
                    .map(|fragment| json!({"function_call": {"arguments": fragment}})),
            );
            lists.push(list);
        }
        mixed(lists, rng)
    }

    fn stream(&self, rng: &mut Pcg64Mcg) -> Vec<u8> {
        let mut stream = String::new();
        for delta in self.deltas(rng) {
            let event = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}).to_string();
            let event = if rng.random() { ascii(&event) } else { event };
            let end = if rng.random() { "\n\n" } else { "\r\n\r\n" };
            stream += &format!("data: {event}{end}");
        }
        (stream + "data: [DONE]\n\n").into_bytes()
    }

    /// Writes the message as a client may send it back; `whole` for a whole response.
    fn message(&self, rng: &mut Pcg64Mcg, whole: bool) -> String {
        let mut members = vec![("role", json!("assistant"))];
        let content = match rng.random_range(0..4) {
            0 if self.text.is_empty() => Some(Value::Null),
            1 if self.text.is_empty() => None,
            2 if !whole => Some(json!([{"type": "text", "text": self.text}])),
            _ => Some(json!(self.text)),
        };
        members.extend(content.map(|content| ("content", content)));
        if !self.reasoning.is_empty() || rng.random() {
            let name = ["reasoning", "reasoning_content"][rng.random_range(0..2)];
            members.push((name, json!(self.reasoning)));
        }
        let call = |[id, name, arguments]: &[String; 3]| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        if !self.calls.is_empty() || rng.random() {
            members.push(("tool_calls", self.calls.iter().map(call).collect()));
        }
        if let Some([name, arguments]) = &self.function {
            members.push(("function_call", json!({"name": name, "arguments": arguments})));
        }
        members.shuffle(rng);
        let member = |(name, value): &(&str, Value)| format!("{}: {value}", json!(name));
        format!(
            "{{{}}}",
            members.iter().map(member).collect::<Vec<_>>().join(" , ")
        )
    }
}

fn ascii(json: &str) -> String {
    let escaped = |character: char| match character.is_ascii() {
        true => character.to_string(),
        false => character
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect(),
    };
    json.chars().map(escaped).collect()
}

const QUESTION: &str = r#"{"role":"user","content":"go on?"}"#;

fn fingerprint(messages: &[&str]) -> Fingerprint {
    let body = format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","));
    parse(Endpoint::Chat, body.as_bytes()).unwrap().fingerprint
}

/// Returns the chain after a response to the question, if it was learned.
fn known<'a>(kind: &str, chunks: impl Iterator<Item = &'a [u8]>) -> Option<Chain> {
    let turn = fingerprint(&[QUESTION]);
    let (mut reply, mut watch) = (
        ReplyBuilder::new(turn.reply.unwrap()),
        Watch::new(Endpoint::Chat, Some(kind), false),
    );
    for chunk in chunks {
        watch.push(chunk, |piece| reply.push(piece));
    }
    watch.end(|piece| reply.push(piece));
    assert!(watch.complete);
    let mut known = Arc::unwrap_or_clone(turn.chain);
    known.extend_from(reply.finish()?.chain());
    Some(known)
}

fn streamed(deltas: &[Value]) -> Option<Chain> {
    let event = |delta: &Value| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}));
    let stream: String = deltas.iter().map(event).collect::<String>() + "data: [DONE]\n\n";
    known("text/event-stream", std::iter::once(stream.as_bytes()))
}

fn resent(message: &Value) -> Chain {
    Arc::unwrap_or_clone(fingerprint(&[QUESTION, &message.to_string()]).chain)
}

proptest! {
    #[test]
    fn a_streamed_reply_has_the_fingerprint_that_it_has_when_it_is_sent_back(said in said(), seed in any::<u64>()) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let stream = said.stream(&mut rng);
        let mut chunks = Vec::new();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = if rng.random() { 8 } else { 400 };
            let (chunk, tail) = rest.split_at(rng.random_range(1..=most).min(rest.len()));
            chunks.push(chunk);
            rest = tail;
        }
        let known = known("text/event-stream", chunks.into_iter()).expect("learned");
        for _ in 0..4 {
            let message = said.message(&mut rng, false);
            let next = fingerprint(&[QUESTION, &message, QUESTION]).chain;
            prop_assert_eq!(&next.hashes()[..known.len()], known.hashes(), "{}", message);
            prop_assert_eq!(&next.ends()[..known.len()], known.ends());
            prop_assert_eq!(next.len(), known.len() + 1);
        }
    }

    #[test]
    fn so_has_a_whole_one(said in said(), seed in any::<u64>()) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let answer = format!(r#"{{"choices":[{{"index":0,"message":{}}}]}}"#, said.message(&mut rng, true));
        let known = known("application/json", answer.as_bytes().chunks(100)).expect("learned");
        prop_assert_eq!(&known, &*fingerprint(&[QUESTION, &said.message(&mut rng, false)]).chain);
    }
}

fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
}

#[test]
fn calls_without_an_index_count_in_their_order() {
    let calls = json!([
        {"id": "a", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "function": {"name": "g", "arguments": "{}"}},
    ]);
    let message = json!({"role": "assistant", "tool_calls": calls});
    assert_eq!(streamed(std::slice::from_ref(&message)), Some(resent(&message)));
}

#[test]
fn a_reply_whose_call_has_two_ids_or_names_is_not_learned() {
    assert!(streamed(&[call(0, "a", "f", "{"), call(0, "a", "f", "}")]).is_some());
    assert!(streamed(&[call(0, "a", "f", "{"), call(0, "b", "f", "}")]).is_none());
    assert!(streamed(&[call(0, "a", "f", "{"), call(0, "a", "g", "}")]).is_none());
}

#[test]
fn a_reply_with_more_or_larger_calls_than_are_held_is_not_learned() {
    let many = |count: u64| -> Vec<Value> { (0..count).map(|at| call(at, "a", "f", "{}")).collect() };
    assert!(streamed(&many(MAX_CALLS as u64)).is_some());
    assert!(streamed(&many(MAX_CALLS as u64 + 1)).is_none());
    let part = "x".repeat(1 << 16);
    let large = |parts: usize| vec![call(0, "", "", &part); parts];
    let most = MAX_HELD_BYTES / part.len();
    assert!(streamed(&large(most)).is_some());

    let mut reply = ReplyBuilder::new(fingerprint(&[QUESTION]).reply.unwrap());
    let mut push = |arguments| {
        reply.push(Piece::Call {
            index: Some(0),
            id: "an id that every fragment repeats is held once",
            name: "f",
            arguments,
        });
        assert!(
            reply
                .calls
                .iter()
                .map(|call| call.arguments.capacity())
                .sum::<usize>()
                <= 2 * MAX_HELD_BYTES
        );
        reply.lost
    };
    assert!((0..100_000).all(|_| !push("{}")));
    assert!((0..most).any(|_| push(&part)));
    assert_eq!(reply.calls.capacity(), 0);
}

#[test]
fn text_of_any_length_is_learned() {
    let delta = json!({"content": "y".repeat(1000)});
    let said = json!({"role": "assistant", "content": "y".repeat(3_000_000)});
    assert_eq!(streamed(&vec![delta; 3000]), Some(resent(&said)));
}

#[test]
fn a_reply_with_a_line_that_is_too_long_to_be_read_is_not_learned() {
    let delta = json!({"content": "y".repeat(sse::LONGEST_LINE)});
    assert!(streamed(&[delta, json!({"content": "x"})]).is_none());
}

#[test]
fn reasoning_that_is_not_sent_back_ends_the_match_where_it_began() {
    let learned = streamed(&[json!({"reasoning": "hm"}), json!({"content": "yes"})]).unwrap();
    let with = resent(&json!({"role": "assistant", "content": "yes", "reasoning_content": "hm"}));
    let without = resent(&json!({"role": "assistant", "content": "yes"}));
    let shared = |other: &Chain| {
        std::iter::zip(learned.hashes(), other.hashes())
            .take_while(|(a, b)| a == b)
            .count()
    };
    assert_eq!((shared(&with), shared(&without)), (2, 1));
}

#[test]
fn what_has_no_place_in_a_message_is_not_learned() {
    let beside = [
        json!({"refusal": "I cannot"}),
        json!({"audio": {"id": "a"}}),
        json!({"reasoning": "hm"}),
        json!({"content": {"text": "x"}}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": {"a": 1}}}]}),
        json!({"tool_calls": 5}),
    ];
    for delta in beside {
        assert!(
            streamed(&[json!({"content": "x"}), delta.clone()]).is_none(),
            "{delta}"
        );
    }
    assert!(streamed(&[json!({"content": "x", "refusal": null, "audio": null})]).is_some());
}

#[test]
fn of_several_choices_the_first_is_learned() {
    let said = |index: u64, text: &str| {
        format!(
            "data: {}\n\n",
            json!({"choices": [{"index": index, "delta": {"content": text}}]})
        )
    };
    let stream = said(1, "b") + &said(0, "a") + &said(1, "b") + &said(0, "a") + "data: [DONE]\n\n";
    let known = known("text/event-stream", std::iter::once(stream.as_bytes()));
    assert_eq!(
        known,
        Some(resent(&json!({"role": "assistant", "content": "aa"})))
    );
}

#[test]
fn an_answer_that_is_not_read_is_not_learned() {
    let turn = fingerprint(&[QUESTION]);
    let (mut reply, mut watch) = (
        ReplyBuilder::new(turn.reply.unwrap()),
        Watch::new(Endpoint::Chat, Some("application/json"), true),
    );
    watch.push(b"\x1f\x8b", |piece| reply.push(piece));
    watch.end(|piece| reply.push(piece));
    assert!(reply.finish().is_none());
}

#[test]
fn an_anthropic_reply_is_found_in_the_next_turn() {
    let turn = |messages: &str| {
        let body = format!(r#"{{"model":"m","system":"be brief","messages":[{QUESTION}{messages}]}}"#);
        parse(Endpoint::Messages, body.as_bytes()).unwrap().fingerprint
    };
    let event = |event: Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    let delta = |index: u32, delta: Value| {
        event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
    };
    let call = |index: u32, id: &str, name: &str| {
        let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        event(json!({"type": "content_block_start", "index": index, "content_block": block}))
    };
    let stream = [
        delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
        delta(1, json!({"type": "text_delta", "text": "I \"look\"."})),
        call(2, "t1", "f"),
        delta(
            2,
            json!({"type": "input_json_delta", "partial_json": "{\"a\": [1,"}),
        ),
        delta(
            2,
            json!({"type": "input_json_delta", "partial_json": " \"\\u00e9\"]}"}),
        ),
        call(3, "t2", "g"),
        event(json!({"type": "message_stop"})),
    ]
    .concat();
    let first = turn("");
    let mut reply = ReplyBuilder::at(Endpoint::Messages, first.reply.unwrap());
    let mut watch = Watch::new(Endpoint::Messages, Some("text/event-stream"), false);
    for chunk in stream.as_bytes().chunks(11) {
        watch.push(chunk, |piece| reply.push(piece));
    }
    let mut known = Arc::unwrap_or_clone(first.chain);
    known.extend_from(reply.finish().unwrap().chain());
    let next = turn(
        r#",{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"I \"look\"."},{"type":"tool_use","id":"t1","name":"f","input":{"a":[1,"é"]}},{"type":"tool_use","id":"t2","name":"g","input":{}}]}"#,
    );
    assert_eq!(known, *next.chain);
}

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Watches a response and formats its pieces.
fn watch(content_type: &str, chunks: &[&[u8]]) -> (Watch, String) {
    let mut watch = Watch::new(Endpoint::Chat, Some(content_type), false);
    let mut said = String::new();
    let mut take = |piece: Piece<'_>| match piece {
        Piece::Text(text) => said.push_str(text),
        Piece::Reasoning(text) => said += &format!("<{text}>"),
        Piece::Call {
            index,
            id,
            name,
            arguments,
        } => said += &format!("[{index:?} {id} {name} {arguments}]"),
        Piece::Unrepeated => said.push('?'),
    };
    for chunk in chunks {
        watch.push(chunk, &mut take);
    }
    watch.end(&mut take);
    (watch, said)
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
        assert!(watch.first_token && watch.complete);
        assert_eq!(watch.passed.events, 2);
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
fn a_response_that_is_not_utf_8_passes_unread() {
    let usage = b"\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}";
    for (id, is_read) in [
        (&b"{\"id\":\"\xc3\xa9\","[..], true),
        (b"{\"id\":\"\xe9\",", false),
    ] {
        let (watch, said) = watch("application/json", &[id, usage]);
        assert_eq!(watch.usage.is_some(), is_read);
        assert_eq!(said, if is_read { "" } else { "?" });
        assert!(watch.complete);
    }
}

#[test]
fn the_end_and_the_engines_times_are_read_wherever_they_stand() {
    let (seen, _) = watch("text/event-stream", &[STREAM.as_bytes()]);
    assert_eq!((seen.seen().finish, seen.seen().prefill), (Finish::Stop, None));
    let body =
        br#"{"choices":[{"index":0,"message":{"content":"","tool_calls":[{}]},"finish_reason":"tool_calls"}],
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
    let body =
        br#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":null}}"#;
    let (watch, text) = watch("application/json", &[&body[..20], &body[20..]]);
    assert_eq!(text, "hi");
    assert!(watch.complete);
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
fn calls_reasoning_and_the_rest_are_tokens_streamed_or_not() {
    let beside = [
        (
            r#""tool_calls":[{"index":1,"id":"a","function":{"name":"f","arguments":"{\"x\""}}]"#,
            "[Some(1) a f {\"x\"]",
        ),
        (
            r#""tool_calls":[{"function":{"name":"f"}},{"function":{"name":"g"}}]"#,
            "[Some(0)  f ][Some(1)  g ]",
        ),
        (r#""tool_calls":[{}]"#, "[Some(0)   ]"),
        (r#""function_call":{"name":"f","arguments":"{}"}"#, "[None  f {}]"),
        (r#""reasoning":"hm""#, "<hm>"),
        (r#""reasoning_content":"hm""#, "<hm>"),
        (r#""reasoning":"hm","reasoning_content":"hm""#, "<hm>"),
        (
            r#""reasoning_content":"hm","reasoning":"","content":"hi""#,
            "<hm>hi",
        ),
        (r#""refusal":"no""#, "?"),
        (r#""content":["a"]"#, "?"),
    ];
    for (field, expected) in beside {
        let delta = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{{field}}}}}]}}\n\n");
        let (seen, said) = watch("text/event-stream", &[delta.as_bytes()]);
        assert_eq!((seen.first_token, seen.passed.events), (true, 1), "{field}");
        assert_eq!(said, expected, "{field}");
        let whole = format!(r#"{{"choices":[{{"index":0,"message":{{{field}}}}}]}}"#);
        let (seen, said) = watch("application/json", &[whole.as_bytes()]);
        assert!(seen.complete);
        assert_eq!(said, expected, "{field}");
    }
}

#[test]
fn what_says_nothing_is_no_token() {
    let none =
        r#""reasoning":null,"reasoning_content":"","function_call":null,"tool_calls":null,"refusal":null"#;
    for none in [none, r#""tool_calls":[],"content":[],"audio":null"#] {
        let delta = format!(r#"data: {{"choices":[{{"index":0,"delta":{{"role":"assistant",{none}}}}}]}}"#);
        let (seen, said) = watch("text/event-stream", &[delta.as_bytes(), b"\n\n"]);
        assert!(!seen.first_token && said.is_empty(), "{none}");
    }
}

#[test]
fn of_several_choices_the_first_is_handed_on() {
    let both =
        b"data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"},\
        {\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    let (seen, said) = watch("text/event-stream", &[both]);
    assert_eq!((said.as_str(), seen.seen().finish), ("a", Finish::Stop));
    assert!(seen.seen().several);
    let second = b"data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"}}]}\n\n";
    assert!(watch("text/event-stream", &[second]).0.first_token);
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
    assert_eq!((garbage.first_token, text.as_str()), (false, "?"));
    let mut encoded = Watch::new(Endpoint::Chat, Some("application/json"), true);
    encoded.push(b"\x1f\x8b", |_| {});
    encoded.end(|_| {});
    assert!(encoded.first_token && encoded.complete && encoded.usage.is_none());
}

/// Watches a response of an endpoint and returns the text of its reply.
fn other(endpoint: Endpoint, kind: &str, answer: &str) -> (Watch, String) {
    let mut watch = Watch::new(endpoint, Some(kind), false);
    let mut text = String::new();
    let mut take = |piece: Piece<'_>| match piece {
        Piece::Text(piece) => text.push_str(piece),
        Piece::Reasoning(piece) => text.push_str(&format!("({piece})")),
        Piece::Call {
            id, name, arguments, ..
        } => text.push_str(&format!("<{id}{name}{arguments}>")),
        Piece::Unrepeated => text.push('!'),
    };
    for chunk in answer.as_bytes().chunks(7) {
        watch.push(chunk, &mut take);
    }
    watch.end(&mut take);
    (watch, text)
}

const EVENTS: &str = "text/event-stream";

#[test]
fn anthropics_stream_is_read() {
    let stream = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":3,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"h\u00e9"}}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{}"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"input_tokens":2,"output_tokens":5,"cache_read_input_tokens":8}}

"#;
    let (watch, text) = other(Endpoint::Messages, EVENTS, stream);
    assert_eq!(text, "(hm)h\u{e9}<tf><{}>");
    assert!(
        watch.first_token && !watch.complete,
        "it has not said that it is over"
    );
    let usage = Usage {
        prompt: 10,
        completion: 5,
        cached: Some(8),
    };
    assert_eq!(watch.usage, Some(usage));
    assert_eq!(watch.seen().finish, Finish::ToolCalls);
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    assert!(
        other(Endpoint::Messages, EVENTS, &format!("{stream}{stop}"))
            .0
            .complete
    );
}

#[test]
fn a_whole_message_of_anthropics_is_read() {
    let message = r#"{"type":"message","content":[{"type":"text","text":"so"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}}],"stop_reason":"end_turn","usage":{"input_tokens":7,"output_tokens":2}}"#;
    let (watch, text) = other(Endpoint::Messages, "application/json", message);
    assert_eq!(text, r#"so<tf{"a":1}>"#);
    let usage = Usage {
        prompt: 7,
        completion: 2,
        cached: None,
    };
    assert_eq!(watch.usage, Some(usage));
    assert_eq!((watch.seen().finish, watch.complete), (Finish::Stop, true));
}

#[test]
fn a_response_is_read_streamed_or_whole() {
    let usage = r#""status":"completed","usage":{"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}"#;
    let stream = r#"event: response.created
data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress","usage":null}}

data: {"type":"response.output_text.delta","delta":"h"}

data: {"type":"response.output_text.delta","delta":"i"}

data: {"type":"response.completed","response":{"id":"resp_1","output":[],USAGE}}

"#;
    let whole = r#"{"id":"resp_1","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],USAGE}"#;
    for (kind, answer) in [(EVENTS, stream), ("application/json", whole)] {
        let answer = answer.replace("USAGE", usage);
        let (watch, text) = other(Endpoint::Responses, kind, &answer);
        assert_eq!(
            (text.as_str(), watch.complete, watch.first_token),
            ("hi", true, true),
            "{kind}"
        );
        let counted = Usage {
            prompt: 9,
            completion: 2,
            cached: Some(4),
        };
        assert_eq!(watch.usage, Some(counted));
        assert_eq!(
            watch.response_key,
            Some(crate::api::responses::response_key("resp_1"))
        );
        assert_eq!(watch.seen().finish, Finish::Stop);
    }
    let call = r#"{"id":"r","output":[{"type":"function_call","name":"f"}]}"#;
    assert_eq!(other(Endpoint::Responses, "application/json", call).1, "!");
}

#[test]
fn sglangs_own_stream_is_read_whether_it_repeats_the_text_or_not() {
    let event = |text: &str, count: u64| {
        let meta = format!(
            r#"{{"prompt_tokens":6,"completion_tokens":{count},"cached_tokens":2,"finish_reason":null}}"#
        );
        format!("data: {{\"text\":\"{text}\",\"meta_info\":{meta}}}\n\n")
    };
    for texts in [["ab", "abc", "abcabd"], ["ab", "c", "abd"]] {
        let stream: String = texts
            .iter()
            .zip(1..)
            .map(|(text, count)| event(text, count))
            .collect();
        let (watch, text) = other(Endpoint::Generate, EVENTS, &(stream + "data: [DONE]\n\n"));
        assert_eq!((text.as_str(), watch.complete), ("abcabd", true));
        let usage = Usage {
            prompt: 6,
            completion: 3,
            cached: Some(2),
        };
        assert_eq!(watch.usage, Some(usage));
        assert_eq!(watch.passed.events, 3);
    }
    let several = other(
        Endpoint::Generate,
        "application/json",
        r#"[{"text":"a"},{"text":"b"}]"#,
    );
    assert!(several.0.seen().several && several.1 == "!");
}

#[test]
fn what_generates_nothing_is_not_read() {
    let answer = r#"{"usage":{"prompt_tokens":5}}"#;
    let (watch, text) = other(Endpoint::Embeddings, "application/json", answer);
    assert_eq!((watch.usage, watch.complete), (None, true));
    assert!(text.chars().all(|said| said == '!'));
}

#[test]
fn what_has_no_room_passes_unread() {
    let total = Arc::new(AtomicUsize::new(0));
    let watch = |kind| {
        let room = ByteReservation::new(Arc::clone(&total), 1000);
        Watch::new(Endpoint::Chat, Some(kind), false).within(room)
    };
    let usage = r#"{"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let pad = " ".repeat(UNCOUNTED_BYTES);
    let mut small = watch("application/json");
    small.push(format!("{pad}{usage}").as_bytes(), |_| {});
    let mut large = watch("application/json");
    large.push(format!("{pad}{pad}{usage}").as_bytes(), |_| {});
    let mut stream = watch("text/event-stream");
    stream.push(format!("data: {pad}{pad}").as_bytes(), |_| {});
    stream.push(format!("\n\ndata: {usage}\n\n").as_bytes(), |_| {});
    for watch in [&mut small, &mut large] {
        watch.end(|_| {});
    }
    assert_eq!(small.usage.map(|usage| usage.prompt), Some(9));
    assert_eq!(large.usage, None);
    assert_eq!(
        stream.usage.map(|usage| usage.prompt),
        Some(9),
        "the next line is read"
    );
    drop((small, large, stream));
    assert_eq!(total.load(Ordering::Relaxed), 0, "all room is given back");
}

#[test]
fn only_events_and_tokens_bring_a_response_forward() {
    use Step::{Event, Nothing, Token};
    let (stream, json) = ("text/event-stream", "application/json");
    let role = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let token = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ping\"}}]}\n\n";
    for (endpoint, kind, pieces) in [
        (
            Endpoint::Chat,
            stream,
            &[
                (": ping\n\n", Nothing),
                ("data:\n\n", Nothing),
                ("event: x\n\n", Nothing),
                (role, Event),
                (&role[..20], Nothing),
                (&role[20..], Event),
                (token, Token),
                (": ping\n\n", Token),
            ][..],
        ),
        (
            Endpoint::Messages,
            stream,
            &[
                (
                    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
                    Event,
                ),
                ("event: ping\ndata: {\"type\": \"ping\"}\n\n", Nothing),
                (
                    "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
                    Token,
                ),
            ],
        ),
        (
            Endpoint::Responses,
            stream,
            &[
                (
                    "data: {\"type\":\"response.created\",\"response\":{\"id\":\"a\"}}\n\n",
                    Event,
                ),
                (
                    "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
                    Token,
                ),
            ],
        ),
        (
            Endpoint::Chat,
            json,
            &[("", Nothing), (" \n", Nothing), ("{", Token), (" ", Token)],
        ),
        (Endpoint::Chat, "text/plain", &[("", Nothing), (" ", Token)]),
        (
            Endpoint::Speech,
            stream,
            &[(": ping\n\n", Nothing), ("data: {}\n\n", Token)],
        ),
    ] {
        let mut watch = Watch::new(endpoint, Some(kind), false);
        for (piece, expected) in pieces {
            assert_eq!(
                watch.push(piece.as_bytes(), |_| {}),
                *expected,
                "{endpoint:?} {piece}"
            );
        }
    }
}

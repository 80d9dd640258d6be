use policy::fingerprint::Medium;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::parse::parse;
use super::super::reply::ReplyBuilder;
use super::super::watch::Watch;
use super::*;
use crate::api::Endpoint;

/// Fingerprints a chat, or a completion if the body begins with `prompt`.
fn of_text(body: &str) -> Fingerprint {
    let is_completion = body.starts_with("{\"prompt\"");
    let endpoint = if is_completion {
        Endpoint::Completions
    } else {
        Endpoint::Chat
    };
    parse(endpoint, body.as_bytes()).unwrap().fingerprint
}

fn of(body: &Value) -> Fingerprint {
    of_text(&body.to_string())
}

fn chain(body: &str) -> Chain {
    Arc::unwrap_or_clone(of_text(body).chain)
}

#[test]
fn media_are_listed_with_their_kind_and_place() {
    let part =
        |kind: &str, member: &str| json!({ "type": kind, member: { "url": "https://a/b", "data": "AAAA" } });
    let image = || part("image_url", "image_url");
    let parsed = of(&json!({ "model": "m", "messages": [
        { "role": "system", "content": "Look." },
        // Members out of order, which are read twice.
        { "tool_calls": [], "content": [image(), part("input_audio", "input_audio")], "role": "user" },
        { "role": "tool", "content": [{ "type": "tool_result", "content": [part("image", "source")] }] },
        { "role": "user", "content": [part("document", "source"), part("video_url", "video_url"), part("file", "file")] },
        { "role": "user", "content": [{ "type": "image_url", "image_url": null, "uuid": "x" }] },
    ] }));
    let kinds: Vec<Medium> = parsed.media.iter().map(|part| part.medium).collect();
    let [image_kind, audio, video, file] = Medium::ALL;
    assert_eq!(
        kinds,
        [image_kind, audio, image_kind, file, video, file, image_kind]
    );
    let ends: Vec<u64> = parsed.media.iter().map(|part| part.end).collect();
    assert!(ends.is_sorted() && ends.iter().all(|end| *end > 0), "{ends:?}");
    let (Extent::Bytes(bytes) | Extent::Tokens(bytes)) = parsed.extent;
    assert!(ends[6] <= bytes, "{ends:?}");
    assert!(
        of(&json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] }))
            .media
            .is_empty()
    );
    // A system prompt outside the messages comes first.
    let anthropic = br#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"data":"A"}}]}],
        "system":[{"type":"text","text":"A long system prompt."}]}"#;
    let parsed = parse(Endpoint::Messages, anthropic).unwrap().fingerprint;
    assert!(parsed.media[0].end > 40, "{:?}", parsed.media);
}

#[test]
fn the_media_of_a_prompt_are_bounded() {
    let part = json!({ "type": "input_audio", "input_audio": {} });
    let many = of(&json!({ "model": "m", "messages": [{ "role": "user", "content": vec![part; 5000] }] }));
    assert_eq!(many.media.len(), 4096);
}

#[test]
fn the_next_turn_begins_with_this_turn_and_its_reply() {
    let long = "lorem ipsum ".repeat(100);
    let first = json!([{"role":"system","content":"be brief"},{"role":"user","content":long}]);
    let this = of(&json!({"model":"m","messages":first}));
    let mut reply = this.reply.unwrap();
    reply.push_text("dolor ");
    reply.push_text("sit");
    reply.end_message();
    let mut known = Arc::unwrap_or_clone(this.chain);
    known.extend_from(reply.chain());

    let mut messages = first.as_array().unwrap().clone();
    messages.push(json!({"role":"assistant","content":"dolor sit"}));
    messages.push(json!({"role":"user","content":"go on"}));
    let next = of(&json!({"model":"m","messages":messages}));
    assert_eq!(next.chain.hashes()[..known.len()], *known.hashes());
    assert_eq!(next.chain.span(known.len()), known.span(known.len()));
    assert!(next.chain.len() > known.len());
}

#[test]
fn a_streamed_reply_is_found_in_the_next_turn_however_the_stream_is_split() {
    let question = json!({"role":"user","content":"go on?"});
    let call = |arguments| json!({"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":arguments}}]});
    let deltas = [
        json!({"role":"assistant","content":""}),
        json!({"content":"h\n\"é 漢🙂"}),
        call("{\"a\":"),
        json!({"content":"/\0 so"}),
        call(" \"é\"}"),
    ];
    let event = |delta| format!("data: {}\r\n\r\n", json!({"choices":[{"index":0,"delta":delta}]}));
    let stream: String = deltas.into_iter().map(event).collect::<String>() + "data: [DONE]\n\n";
    let said = json!({"role":"assistant","content":"h\n\"é 漢🙂/\0 so",
        "tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": \"é\"}"}}]});
    let next = of(&json!({"model":"m","messages":[question, said, question]})).chain;
    let this = json!({"model":"m","messages":[question]}).to_string();
    for size in 1..=stream.len() {
        let turn = of_text(&this);
        let (mut reply, mut watch) = (
            ReplyBuilder::new(turn.reply.unwrap()),
            Watch::new(Endpoint::Chat, Some("text/event-stream"), false),
        );
        for chunk in stream.as_bytes().chunks(size) {
            watch.push(chunk, |piece| reply.push(piece));
        }
        let mut known = Arc::unwrap_or_clone(turn.chain);
        known.extend_from(reply.finish().unwrap().chain());
        assert_eq!(known.hashes(), &next.hashes()[..2], "chunks of {size}");
        assert_eq!((known.ends(), next.len()), (&next.ends()[..2], 3));
    }
}

#[test]
fn a_text_prompt_goes_on_through_its_completion() {
    let prompt = "a".repeat(1000);
    let this = of(&json!({"prompt":prompt}));
    let mut reply = this.reply.unwrap();
    reply.push("b".repeat(500).as_bytes());
    let next = of(&json!({"prompt":format!("{prompt}{}", "b".repeat(500))}));
    // Complete keys agree; this turn's short last chunk is not in the next chain.
    assert_eq!(reply.chain().hashes()[0], next.chain.hashes()[3]);
}

#[test]
fn models_and_salts_never_share_a_key() {
    let body = |model: &str, salt: Value| json!({"model":model,"cache_salt":salt,"messages":[{"role":"user","content":"x"}]});
    let keys: Vec<_> = [
        body("a", Value::Null),
        body("b", Value::Null),
        body("a", json!("s")),
    ]
    .iter()
    .map(|body| of(body).chain.last())
    .collect();
    assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
}

#[test]
fn string_content_is_the_same_as_one_text_part_and_the_place_of_the_role_does_not_matter() {
    let string = chain(r#"{"messages":[{"role":"user","content":"hi \u00e9"}]}"#);
    let parts = chain(r#"{ "messages": [ {"content": [{"text":"hi é", "type":"text"}], "role": "user"} ] }"#);
    assert_eq!(string, parts);
    assert_ne!(
        string,
        chain(r#"{"messages":[{"role":"system","content":"hi é"}]}"#)
    );
}

#[test]
fn null_content_is_the_same_as_none() {
    let null = chain(
        r#"{"messages":[{"role":"assistant","content":null,
            "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 2}"}}]}]}"#,
    );
    let none = chain(
        r#"{"messages":[{"role":"assistant",
            "tool_calls":[{"id":"1","function":{"arguments":"{\"a\": 2}","name":"f"}}]}]}"#,
    );
    assert_eq!(null, none);
    let other = null.last() != chain(r#"{"messages":[{"role":"assistant"}]}"#).last();
    assert!(other);
}

#[test]
fn members_of_a_message_count_in_the_order_of_the_form() {
    let of = |members: &str| chain(&format!(r#"{{"messages":[{{{members}}}]}}"#)).last();
    let (calls, text) = (
        r#""tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]"#,
        r#""content":"x""#,
    );
    let (role, hm) = (r#""role":"assistant""#, r#""reasoning":"hm""#);
    let expected = of(&format!("{role},{hm},{text},{calls}"));
    for members in [
        format!("{role},{text},{hm},{calls}"),
        format!("{calls},{text},{role},{hm}"),
        format!("{hm},{calls},{role},{text}"),
        format!(r#""reasoning_content":"",{text},{role},{calls},{hm},"reasoning_content":"hm""#),
        format!(r#"{role},{hm},"reasoning_content":"hm",{text},{calls}"#),
    ] {
        assert_eq!(of(&members), expected, "{members}");
    }
    for members in [
        format!("{role},{text},{calls}"),
        format!("{role},{hm},{calls}"),
        format!("{role},{hm},{text}"),
        format!(r#"{role},{hm},"name":"x",{calls}"#),
    ] {
        assert_ne!(of(&members), expected, "{members}");
    }
}

#[test]
fn a_refusal_is_text() {
    let refusal = json!({"type":"refusal","refusal":"no"});
    assert_eq!(part(&refusal), part(&json!({"type":"text","text":"no"})));
}

#[test]
fn media_are_told_apart_by_their_content_and_unknown_parts_by_their_json() {
    let image = |url: &str| {
        of(&json!({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":url}}]}]}))
            .chain
    };
    assert_ne!(image("data:a"), image("data:b"));
    let escaped = chain(
        r#"{"messages":[{"role":"user","content":[{"image_url":{"url":"data\u003aa"},"type":"image_url"}]}]}"#,
    );
    assert_eq!(*image("data:a"), escaped);
    let part = |kind: &str, data: u32| {
        of(&json!({"messages":[{"role":"user","content":[{"type":kind,"x":data}]}]})).chain
    };
    for kind in ["input_audio", "novel"] {
        assert_ne!(part(kind, 1), part(kind, 2), "{kind}");
    }
}

fn part(part: &Value) -> Option<policy::ids::PrefixHash> {
    of(&json!({"messages":[{"role":"user","content":[part]}]}))
        .chain
        .last()
}

#[test]
fn a_medium_is_its_uuid_whatever_else_is_said_of_it() {
    let same = [
        vec![
            json!({"type":"image_url","image_url":null,"uuid":"a"}),
            json!({"uuid":"a","type":"image_url","image_url":{"url":"https://example.com/1?signed=1"}}),
            json!({"type":"image_url","image_url":"https://example.com/1?signed=2","uuid":"a"}),
            json!({"type":"input_image","uuid":"a"}),
        ],
        vec![
            json!({"type":"input_audio","input_audio":{"data":"UklG"},"uuid":"a"}),
            json!({"type":"audio_url","audio_url":null,"uuid":"a"}),
        ],
        vec![
            json!({"type":"video_url","video_url":{"url":"x"},"uuid":"5"}),
            json!({"type":"video_url","video_url":null,"uuid":5}),
        ],
        vec![
            json!({"type":"image_url","image_url":{"url":"a"},"uuid":null}),
            json!({"type":"image_url","image_url":{"url":"a"}}),
        ],
        vec![json!({"type":"image_url","image_url":{"url":"a"},"uuid":"b"})],
        vec![json!({"type":"video_url","uuid":"a"})],
        vec![json!({"type":"file","uuid":"a"})],
    ];
    let mut keys = std::collections::HashSet::new();
    for parts in &same {
        parts
            .iter()
            .for_each(|one| assert_eq!(part(one), part(&parts[0]), "{one}"));
        assert!(keys.insert(part(&parts[0])), "{parts:?}");
    }
}

#[test]
fn images_that_are_not_named_by_a_url_are_told_apart_by_their_part() {
    let parts = [
        json!({"type":"input_image","file_id":"a"}),
        json!({"type":"input_image","file_id":"b"}),
        json!({"type":"image_url","image_url":{"url":null}}),
        json!({"type":"image_url","image_url":{"url":""}}),
        json!({"type":"image_url","image_url":{}}),
        json!({"type":"image_url","image_url":{"url":"a"}}),
        json!({"type":"input_audio","file_id":"a"}),
        json!({"type":"file","file":{"file_id":"a"}}),
        json!({"type":"file","file":{"file_id":"b"}}),
    ];
    let keys: std::collections::HashSet<_> = parts.iter().map(part).collect();
    assert_eq!(keys.len(), parts.len());
    let twice = |urls| {
        chain(&format!(
            r#"{{"messages":[{{"content":[{{"type":"image_url",{urls}}}]}}]}}"#
        ))
    };
    assert_eq!(
        twice(r#""image_url":"a","image_url":"b""#),
        twice(r#""image_url":"b""#),
        "where a member is given twice, the last one counts"
    );
}

#[test]
fn of_a_member_given_twice_the_last_one_counts() {
    let same = [
        (
            r#"{"role":"user","content":"x","role":"system"}"#,
            r#"{"role":"system","content":"x"}"#,
        ),
        (
            r#"{"content":"x","role":"user","content":null}"#,
            r#"{"role":"user"}"#,
        ),
        (r#"{"content":null,"content":"x"}"#, r#"{"content":"x"}"#),
        (r#"{"content":"x","content":"y"}"#, r#"{"content":"y"}"#),
        (
            r#"{"role":"a","content":"x","\u0072ole":"b"}"#,
            r#"{"role":"b","content":"x"}"#,
        ),
        (
            r#"{"name":"a","content":"x","name":"b"}"#,
            r#"{"name":"b","content":"x"}"#,
        ),
        (
            r#"{"reasoning":"a","content":"x","reasoning":"b"}"#,
            r#"{"reasoning":"b","content":"x"}"#,
        ),
        (
            r#"{"content":[{"type":"file","text":"x","type":"text","text":"y"}]}"#,
            r#"{"content":[{"type":"text","text":"y"}]}"#,
        ),
        (
            r#"{"content":[{"type":"audio_url","uuid":"a","uuid":"b"}]}"#,
            r#"{"content":[{"type":"audio_url","uuid":"b"}]}"#,
        ),
        (
            r#"{"content":[{"type":"novel","type":"refusal","refusal":"x"}]}"#,
            r#"{"content":[{"type":"refusal","refusal":"x"}]}"#,
        ),
        (
            r#"{"content":[{"type":"image_url","image_url":"a","image_url":null,"file_id":"f"}]}"#,
            r#"{"content":[{"type":"image_url","image_url":null,"file_id":"f"}]}"#,
        ),
        (
            r#"{"tool_calls":[{"function":{"name":"a","arguments":"1","arguments":"2"}}]}"#,
            r#"{"tool_calls":[{"function":{"name":"a","arguments":"2"}}]}"#,
        ),
        (
            r#"{"tool_calls":[{"function":{"name":"a"},"id":"c","function":{"name":"b"}}]}"#,
            r#"{"tool_calls":[{"function":{"name":"b"},"id":"c"}]}"#,
        ),
        (
            r#"{"tool_calls":[{"id":"a","function":{"arguments":"1","arguments":"2"}}],"role":"assistant","content":"x"}"#,
            r#"{"role":"assistant","content":"x","tool_calls":[{"id":"a","function":{"arguments":"2"}}]}"#,
        ),
    ];
    for (twice, once) in same {
        let around = |message| {
            let other = r#"{"role":"user","content":"z"}"#;
            chain(&format!(r#"{{"messages":[{other},{message},{other}]}}"#))
        };
        assert_eq!(around(twice), around(once), "{twice}");
    }
}

#[test]
fn the_endpoint_says_whether_messages_or_prompt_is_the_prompt() {
    let read = |endpoint, messages: &str, prompt: &str| {
        let body =
            json!({"model":"m","messages":[{"role":"user","content":messages}],"prompt":prompt}).to_string();
        parse(endpoint, body.as_bytes()).unwrap().fingerprint.chain
    };
    for (endpoint, by_messages) in [(Endpoint::Chat, true), (Endpoint::Completions, false)] {
        let one = read(endpoint, "a", "a");
        assert_eq!(one != read(endpoint, "b", "a"), by_messages);
        assert_eq!(one != read(endpoint, "a", "b"), !by_messages);
    }
    let other = parse(
        Endpoint::Completions,
        br#"{"messages":[{"role":"user","content":"x"}]}"#,
    )
    .unwrap();
    assert!(other.fingerprint.chain.is_empty() && other.fingerprint.reply.is_none());
}

#[test]
fn namespaces_of_an_engine_s_cache_never_share_a_key() {
    let last = |members: &str| {
        chain(&format!(
            r#"{{"messages":[{{"role":"user","content":"x"}}]{members}}}"#
        ))
        .last()
    };
    let different = [
        "",
        r#","cache_salt":"a""#,
        r#","extra_key":"a""#,
        r#","extra_key":"b""#,
        r#","extra_key":"""#,
        r#","extra_key":["a"]"#,
        r#","extra_key":"[\"a\"]""#,
        r#","lora_path":"a""#,
        r#","lora_name":"a""#,
        r#","cache_salt":"a","extra_key":"a""#,
    ];
    let keys: std::collections::HashSet<_> = different.map(last).into();
    assert_eq!(keys.len(), different.len());
    assert_eq!(last(r#","extra_key":null,"lora_path":null"#), last(""));
    assert_eq!(
        last(r#","extra_key":[ "\u0061" ]"#),
        last(r#","extra_key":["a"]"#)
    );
}

#[test]
fn tools_come_before_all_messages_wherever_they_stand() {
    let before = chain(r#"{"tools":[{"type":"function"}],"messages":[{"role":"user","content":"x"}]}"#);
    let after = chain(r#"{"messages":[{"role":"user","content":"x"}],"tools":[ {"type" : "function"} ]}"#);
    assert_eq!(before, after);
    assert_ne!(before, chain(r#"{"messages":[{"role":"user","content":"x"}]}"#));
}

#[test]
fn completions_take_text_or_tokens_and_batches_have_no_prefix() {
    let text = chain(r#"{"prompt":"hi"}"#);
    assert_eq!(text, chain(r#"{"prompt":["hi"]}"#));
    assert_eq!(of_text(r#"{"prompt":[1,2]}"#).extent, Extent::Tokens(2));
    assert_eq!(of_text(r#"{"prompt":[[1,2]]}"#).extent, Extent::Tokens(2));
    for batch in [
        r#"["a","b"]"#,
        "[[1],[2]]",
        "{\"x\":1}",
        "[]",
        "[1.5]",
        "[1.5,2]",
        "[[1,4294967296,2]]",
        r#"["text",2]"#,
        "[-1]",
        "[\"a\",5]",
        "[1,-1,5]",
        "[[1,4294967296,5]]",
        "null",
        "7",
    ] {
        let none = of_text(&format!("{{\"prompt\":{batch}}}"));
        assert!(
            none.chain.is_empty() && none.extent == Extent::Bytes(0),
            "{batch}"
        );
    }
}

#[test]
fn a_prompt_of_unknown_shape_has_no_keys() {
    let none = of(&json!({"messages":5}));
    assert!(none.chain.is_empty() && none.reply.is_none());
    // Malformed messages are hashed as far as they are understood and never panic.
    for messages in [
        "[5,null,\"x\",{}]",
        "[{\"role\":7,\"content\":{\"a\":1}}]",
        "[[],{\"tool_calls\":{}}]",
    ] {
        let _ = chain(&format!("{{\"messages\":{messages}}}"));
    }
}

proptest! {
    #[test]
    fn formatting_and_escapes_do_not_matter(texts in prop::collection::vec(any::<String>(), 0..5)) {
        let messages: Vec<_> = texts.iter().map(|text| json!({"role":"user","content":text})).collect();
        let value = json!({"model":"m","messages":messages});
        let compact = value.to_string();
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let escaped: String = compact
            .chars()
            .map(|c| if c.is_ascii() { c.to_string() } else {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            })
            .collect();
        prop_assert_eq!(chain(&compact), chain(&pretty));
        prop_assert_eq!(chain(&compact), chain(&escaped));
    }

    #[test]
    fn ignored_fields_do_not_matter(temperature in any::<f64>(), user in any::<String>()) {
        let messages = json!([{"role":"user","content":"x"}]);
        let plain = json!({"model":"m","messages":messages});
        let more = json!({"temperature":temperature,"model":"m","user":user,"messages":messages,"stream":true});
        prop_assert_eq!(of(&plain).chain, of(&more).chain);
    }
}

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const ERROR: &str = r#"{"error":{"message":"gone","code":"draining"}}"#;

/// Returns the events that a client reads from a cut and mended stream.
fn read(cut: &[u8]) -> Vec<Result<Value, String>> {
    let mut lines = sse::Lines::default();
    lines.push(cut, |_| ());
    let said = last_words(lines.position(), ERROR.as_bytes(), Family::OpenAi);
    let (mut events, mut seen) = (sse::Events::default(), Vec::new());
    events
        .push(&[cut, &said].concat(), |event| {
            let text = std::str::from_utf8(event).map(str::to_owned);
            let text = text.unwrap_or_else(|_| format!("not UTF-8: {event:x?}"));
            seen.push(serde_json::from_str(&text).map_err(|_| text));
        })
        .unwrap();
    seen
}

/// Asserts that all events are valid and the error is last.
fn check(cut: &[u8]) {
    let events = read(cut);
    let shown = String::from_utf8_lossy(cut);
    let last = events.last().unwrap().as_ref();
    assert_eq!(
        last.map(|event| &event["error"]["code"]),
        Ok(&json!("draining")),
        "{shown:?}"
    );
    for event in &events {
        match event {
            Ok(event) => assert!(event.is_object(), "{shown:?}: {event}"),
            Err(text) => assert_eq!(text, "[DONE]", "{shown:?}"),
        }
    }
}

const STREAM: &str = concat!(
    "event: x\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\r\n\r\n",
    ": a comment\n\n",
    "data:{ \"choices\" : [ { \"n\" : -1.5e+3 , \"t\" : true , \"delta\" : { \"content\" : \"\\u00e9\\\\\\\"\\ud83d\\ude00\" } } , { } ] } \n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" é漢🙂\"},\"finish_reason\":null}],\"a\":[],\"b\":[1,[2,false]]}\r\r",
    "data: [DONE]\n\n",
);

#[test]
fn a_stream_cut_at_any_byte_ends_with_the_error_and_all_of_it_can_be_read() {
    for cut in 0..=STREAM.len() {
        check(&STREAM.as_bytes()[..cut]);
    }
}

#[test]
fn what_was_between_events_is_followed_by_the_error_alone() {
    let said = last_words(sse::StreamPosition::Between, ERROR.as_bytes(), Family::OpenAi);
    assert_eq!(said, format!("data: {ERROR}\n\n"));
    let said = last_words(sse::StreamPosition::Between, ERROR.as_bytes(), Family::Anthropic);
    assert_eq!(said, format!("event: error\ndata: {ERROR}\n\n"));
}

#[test]
fn what_is_no_object_is_ended_where_it_is_and_the_error_follows() {
    for (cut, before) in [
        ("data: <html", Err("<html".to_owned())),
        ("data: [1,", Ok(json!([1, null]))),
        ("data: tr", Ok(json!(true))),
        ("data: {\"a\":1}", Ok(json!({"a": 1}))),
        ("data: {\"a\" 1", Err("{\"a\" 1".to_owned())),
        ("data: {]", Err("{]".to_owned())),
    ] {
        let events = read(cut.as_bytes());
        assert_eq!((events.len(), &events[0]), (2, &before), "{cut}");
        check_last(&events);
    }
}

fn check_last(events: &[Result<Value, String>]) {
    assert_eq!(
        events.last().unwrap().as_ref().unwrap()["error"]["code"],
        "draining"
    );
}

#[test]
fn an_error_of_the_workers_own_does_not_hide_ours() {
    check(br#"data: {"error":{"code":"other"},"x":"#);
}

fn objects() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z\"\\\\\u{0}-\u{1f}é漢🙂]{0,4}".prop_map(Value::from),
    ];
    let values = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a\"é]{0,2}", inner, 0..4)
                .prop_map(|members| Value::from(serde_json::Map::from_iter(members))),
        ]
    });
    prop::collection::btree_map("[a\"é]{0,2}", values, 0..4)
        .prop_map(|members| Value::from(serde_json::Map::from_iter(members)))
}

/// Escapes all characters beyond ASCII.
fn escaped(text: &str) -> String {
    let mut units = [0; 2];
    text.chars()
        .map(|char| match char {
            char if char.is_ascii() => char.to_string(),
            char => char
                .encode_utf16(&mut units)
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect(),
        })
        .collect()
}

proptest! {
    #[test]
    fn any_object_cut_anywhere_can_be_read_and_has_the_error(
        object in objects(), at in any::<prop::sample::Index>(), escape in any::<bool>(),
    ) {
        let text = object.to_string();
        let line = format!("data: {}", if escape { escaped(&text) } else { text });
        check(&line.as_bytes()[..at.index(line.len() + 1)]);
    }
}

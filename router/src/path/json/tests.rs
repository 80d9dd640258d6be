use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Walks a value by `object` and `array` instead of `skip`.
fn walk(scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
    match scanner.peek() {
        Some(b'{') => scanner.object(|scanner, _| walk(scanner)),
        Some(b'[') => scanner.array(walk),
        _ => scanner.skip().map(drop),
    }
}

fn whole(text: &[u8]) -> Result<&[u8], Malformed> {
    let mut scanner = Scanner::new(text);
    let value = scanner.skip()?;
    if scanner.peek().is_some() {
        Err(scanner.wrong("more follows"))
    } else {
        Ok(value)
    }
}

#[test]
fn an_error_names_its_line_and_column() {
    let text = b"{\n  \"a\": nope\n}";
    assert_eq!(
        whole(text).unwrap_err().describe(text),
        "expected a value at line 2 column 8"
    );
    assert_eq!(
        whole(b"{\"a\"").unwrap_err().describe(b"{\"a\""),
        "the text ends too early at line 1 column 5"
    );
}

#[test]
fn what_is_no_json_is_refused() {
    for text in [
        "",
        "{",
        "[",
        "{]",
        "[}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "[1,]",
        "{a:1}",
        "01",
        "1.",
        "-",
        "1e",
        ".5",
        "+1",
        "tru",
        "nul",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\\",
        "{} {}",
        "[1 2]",
        "'a'",
    ] {
        assert!(whole(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn nesting_is_bounded_and_costs_no_stack() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(whole(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(
        whole(nested(MAX_DEPTH + 1).as_bytes()).unwrap_err().what,
        "nested too deeply"
    );
    let alternating = "[{\"a\":".repeat(200) + "1" + &"}]".repeat(200);
    assert!(whole(alternating.as_bytes()).is_ok());
}

#[test]
fn surrogates_pair_up_or_are_replaced() {
    assert_eq!(text(br#""\ud83d\ude00""#).unwrap(), "\u{1F600}");
    assert_eq!(text(br#""\ud83d!""#).unwrap(), "\u{FFFD}!");
    assert_eq!(text(br#""\ud83d\u0041""#).unwrap(), "\u{FFFD}A");
    assert_eq!(text(br#""\ude00""#).unwrap(), "\u{FFFD}");
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn it_takes_what_serde_takes(value in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        prop_assert_eq!(whole(text.as_bytes()), Ok(text.as_bytes()));
    }

    #[test]
    fn it_agrees_with_serde_on_damaged_json(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = serde_json::to_vec(&value).unwrap();
        let at = at.index(text.len());
        text[at] = byte;
        if std::str::from_utf8(&text).is_ok() {
            let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(whole(&text).is_ok(), theirs, "{}", String::from_utf8_lossy(&text));
            let mut scanner = Scanner::new(&text);
            let walked = walk(&mut scanner).is_ok() && scanner.peek().is_none();
            prop_assert_eq!(walked, theirs, "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn strings_and_members_decode_as_serde_decodes_them(members_of in prop::collection::btree_map(any::<String>(), any::<String>(), 0..6)) {
        let text = serde_json::to_string_pretty(&members_of).unwrap();
        let found: Vec<(String, String)> = members(text.as_bytes())
            .map(|(key, value)| (key.into_owned(), super::text(value).unwrap().into_owned()))
            .collect();
        prop_assert_eq!(found, members_of.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn compact_drops_white_space_only(value in json()) {
        let of = |text: &str| {
            let mut out = Vec::new();
            compact(text.as_bytes(), |piece| out.extend_from_slice(piece));
            out
        };
        prop_assert_eq!(of(&value.to_string()), of(&serde_json::to_string_pretty(&value).unwrap()));
    }
}

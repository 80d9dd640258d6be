use proptest::prelude::*;
use serde_json::Value;

use super::value::MAX_DEPTH;
use super::*;

fn text(value: &[u8]) -> Option<String> {
    let mut spelled = b"\"".to_vec();
    Scanner::new(value)
        .string(&mut |bytes: &[u8]| spelled.extend_from_slice(bytes))
        .ok()?;
    spelled.push(b'"');
    let text: String = serde_json::from_slice(&spelled).unwrap();
    assert_eq!(
        spelled,
        serde_json::to_vec(&text).unwrap(),
        "the shortest spelling is serde's"
    );
    assert_eq!(Scanner::new(value).quoted().unwrap().text(), text);
    Some(text)
}

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

/// Function that scans a string from after its opening quote, with scanner, start of the pending bytes, and output.
type Walk = fn(&mut Scanner<'_>, &mut usize, &mut Vec<u8>) -> Result<(), Malformed>;

/// Returns the bytes that a walk emits, and its end position.
fn walked(text: &[u8], walk: Walk) -> Result<(Vec<u8>, usize), Malformed> {
    let (mut scanner, mut run, mut said) = (Scanner { bytes: text, at: 1 }, 1, Vec::new());
    walk(&mut scanner, &mut run, &mut said)?;
    said.extend_from_slice(&text[run.min(scanner.at - 1)..scanner.at - 1]);
    Ok((said, scanner.at))
}

proptest! {
    #[test]
    fn every_width_of_vector_reads_the_same(pieces in prop::collection::vec((0usize..70, prop::sample::select(vec![
        "\\u7f13", "\\u5B58", "\\u00e9", "\\u0041", "\\n", "\\\\", "\\\"", "\\/", "\\ud83d\\ude00", "\\ud83d", "x", "é", "\"", "\n", "\\x",
    ])), 0..12)) {
        let text: String = pieces.iter().map(|(count, piece)| piece.repeat(*count)).collect();
        let text = format!("\"{text}\"");
        let plain: Walk = |scanner, run, out| {
            scanner.walk_string(run, &mut |bytes: &[u8]| out.extend_from_slice(bytes), super::block::marks)
        };
        let widest: Walk = |scanner, run, out| {
            scanner.long_string(run, &mut |bytes: &[u8]| out.extend_from_slice(bytes))
        };
        let found = walked(text.as_bytes(), plain);
        prop_assert_eq!(&walked(text.as_bytes(), widest), &found);
        #[cfg(target_arch = "x86_64")]
        {
            let narrower: Walk = |scanner, run, out| {
                let mut out = |bytes: &[u8]| out.extend_from_slice(bytes);
                let done = super::block::wider::tests::narrower(scanner, run, &mut out);
                done.unwrap_or_else(|| scanner.walk_string(run, &mut out, super::block::marks))
            };
            prop_assert_eq!(&walked(text.as_bytes(), narrower), &found);
        }
        if let Ok((said, end)) = found {
            let theirs: String = serde_json::from_str(&text[..end].replace("\\ud83d\\ude00", "😀").replace("\\ud83d", "\\ufffd")).unwrap();
            prop_assert_eq!(serde_json::to_string(&theirs).unwrap(), format!("\"{}\"", String::from_utf8(said).unwrap()));
        } else {
            let mut stream = serde_json::Deserializer::from_str(&text).into_iter::<serde::de::IgnoredAny>();
            prop_assert!(!matches!(stream.next(), Some(Ok(_))), "{}", text);
        }
    }

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
    fn strings_are_read_as_serde_reads_them(texts in prop::collection::vec(any::<String>(), 0..6), escape in any::<u64>()) {
        for said in texts {
            let written = write(&said, escape);
            prop_assert_eq!(text(written.as_bytes()), Some(serde_json::from_str::<String>(&written).unwrap()));
        }
    }

    #[test]
    fn long_strings_are_read_alike_wherever_their_escapes_stand(
        runs in prop::collection::vec((0usize..140, prop::sample::select(vec!["\\", "\"", "\n", "\0", "é", "/", "😀", "\u{fffd}"])), 0..12),
        escape in any::<u64>(),
    ) {
        let said: String = runs.iter().map(|(length, special)| "x".repeat(*length) + special).collect();
        let written = write(&said, escape);
        prop_assert_eq!(text(written.as_bytes()), Some(said));
    }

    #[test]
    fn members_and_what_lies_ahead_are_found(members in prop::collection::btree_map(any::<String>(), any::<String>(), 0..6)) {
        let written = serde_json::to_string_pretty(&members).unwrap();
        let mut found = Vec::new();
        Scanner::new(written.as_bytes()).object(|scanner, key| {
            let value = scanner.quoted()?.text().into_owned();
            found.push((String::from_utf8(key.to_vec()).unwrap(), value));
            Ok(())
        }).unwrap();
        for (key, value) in &found {
            let mut ahead = Scanner::new(written.as_bytes()).ahead(key.as_bytes()).unwrap();
            prop_assert_eq!(&*ahead.quoted().unwrap().text(), value);
        }
        prop_assert_eq!(found, members.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn compact_drops_white_space_only(value in json()) {
        let of = |text: &str| {
            let mut out = Vec::new();
            Scanner::new(text.as_bytes()).compact(&mut |bytes: &[u8]| out.extend_from_slice(bytes)).unwrap();
            String::from_utf8(out).unwrap()
        };
        prop_assert_eq!(of(&value.to_string()), value.to_string());
        prop_assert_eq!(of(&serde_json::to_string_pretty(&value).unwrap()), value.to_string());
    }

    #[test]
    fn no_bytes_lead_astray(bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"\\\"u{}[]:,0d8".to_vec())], 0..200)) {
        if std::str::from_utf8(&bytes).is_ok() {
            let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
            prop_assert_eq!(whole(&bytes).is_ok(), theirs);
        }
        let quoted = [b"\"", bytes.as_slice(), b"\""].concat();
        if std::str::from_utf8(&quoted).is_ok() {
            let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&quoted).is_ok();
            prop_assert_eq!(whole(&quoted).is_ok(), theirs);
        }
    }
}

/// Spells a string in a valid way: `escape` selects a literal, a short or a numeric escape per character.
fn write(text: &str, mut escape: u64) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        escape = escape.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        match (escape >> 62, character) {
            (3, _) => character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                out += &if escape & 1 == 0 {
                    format!("\\u{unit:04x}")
                } else {
                    format!("\\u{unit:04X}")
                };
            }),
            (2, '/') => out.push_str("\\/"),
            _ => {
                let quoted = serde_json::to_string(&character).unwrap();
                out.push_str(&quoted[1..quoted.len() - 1]);
            }
        }
    }
    out + "\""
}

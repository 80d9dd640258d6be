//! Finds the model that a request names where its body is not parsed as a prompt: in JSON, a form or a query.
//!
//! Engines read the last of several values, and so does this module.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::json::{Quoted, Scanner};

/// Byte order mark of UTF-8 at the start of a text. JSON does not have it (RFC 8259, section 8.1), but some clients
/// send it.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Model that a body names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The body names this model.
    Model(String),
    /// The body was read, and names no model.
    Nothing,
    /// The body was not read, or has a form that the router does not read.
    Unread,
}

impl Named {
    fn of(name: Option<String>) -> Self {
        // Engines take an empty name as absent.
        name.filter(|name| !name.is_empty())
            .map_or(Self::Nothing, Self::Model)
    }
}

/// Reads the member `model` of a JSON object. A value that is no string names no model.
pub fn in_json(body: &[u8]) -> Named {
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    if std::str::from_utf8(body).is_err() {
        return Named::Unread;
    }
    let (mut scanner, mut name) = (Scanner::new(body), None);
    if scanner.peek() != Some(b'{') {
        return Named::Unread;
    }
    let read = scanner.object(|scanner, key| {
        if key != b"model" {
            return scanner.skip().map(drop);
        }
        name = match scanner.peek() {
            Some(b'"') => Some(scanner.quoted().map(Quoted::text)?.into_owned()),
            _ => scanner.skip().map(|_| None)?,
        };
        Ok(())
    });
    if read.is_err() || scanner.peek().is_some() {
        return Named::Unread;
    }
    Named::of(name)
}

/// Reads `model` of a query, or of a form in the same encoding.
pub fn in_query(query: &[u8]) -> Named {
    let pairs = form_urlencoded::parse(query);
    let named = pairs.filter(|(name, _)| name == "model").last();
    Named::of(named.map(|(_, model)| model.into_owned()))
}

/// Returns whether the body is a form in the encoding of queries.
pub fn is_urlencoded(head: &HeaderMap) -> bool {
    let kind = head.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim()
        .eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn model(name: &str) -> Named {
        Named::Model(name.to_owned())
    }

    #[test]
    fn a_json_object_names_its_last_top_level_model() {
        for (body, named) in [
            (r#"{"model":"a"}"#, model("a")),
            (r#" { "x":{"model":"no"}, "model" : "a/b" } "#, model("a/b")),
            (r#"{"mod\u0065l":"\u0061"}"#, model("a")),
            (r#"{"model":"a","model":"b"}"#, model("b")),
            ("\u{feff}{\"model\":\"a\"}", model("a")),
            (r#"{"model":"a","model":null}"#, Named::Nothing),
            (r#"{"model":""}"#, Named::Nothing),
            (r#"{"model":5}"#, Named::Nothing),
            ("{}", Named::Nothing),
            (r#"[{"model":"a"}]"#, Named::Unread),
            (r#"{"model":"a"} {"model":"b"}"#, Named::Unread),
            (r#"{"model":"a""#, Named::Unread),
            ("", Named::Unread),
            ("model=a", Named::Unread),
        ] {
            assert_eq!(in_json(body.as_bytes()), named, "{body}");
        }
        assert_eq!(in_json(b"{\"model\":\"\xff\"}"), Named::Unread);
    }

    #[test]
    fn a_query_names_its_last_model_decoded() {
        for (query, named) in [
            ("model=a", model("a")),
            ("x=1&model=meta%2Fa+b&y", model("meta/a b")),
            ("mod%65l=a", model("a")),
            ("model=a&model=b", model("b")),
            ("model=", Named::Nothing),
            ("models=a", Named::Nothing),
            ("", Named::Nothing),
        ] {
            assert_eq!(in_query(query.as_bytes()), named, "{query}");
        }
    }

    proptest! {
        #[test]
        fn json_names_the_model_that_a_parser_finds(
            members in prop::collection::vec(
                ("(model|mod|m\"el|x)", prop_oneof![
                    "[a-z/\"\\\\é]{0,4}".prop_map(Value::from),
                    any::<i8>().prop_map(Value::from),
                    Just(json!({ "model": "within" })),
                    Just(json!(["model"])),
                ]),
                0..5,
            ),
            pretty in any::<bool>(),
            mark in any::<bool>(),
        ) {
            let object = Value::Object(Map::from_iter(members));
            let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) };
            let text = format!("{}{}", if mark { "\u{feff}" } else { "" }, text.unwrap());
            let named = object["model"].as_str().map(str::to_owned);
            prop_assert_eq!(in_json(text.as_bytes()), Named::of(named), "{}", text);
        }
    }
}

//! Edits a body in place: bytes are inserted or removed, and all other bytes stay unchanged.

use memchr::memmem;

use super::json::Scanner;

/// Appends a field to `body`; `None` if the field exists or the body is not a JSON object.
pub fn field(body: &[u8], key: &str, value: &str) -> Option<Vec<u8>> {
    match find(body, key)? {
        FieldPosition::Missing => at_end(body, &format!("\"{key}\":{value}")),
        _ => None,
    }
}

/// Sets a field of `body`, replacing every occurrence; `None` if the body is not a JSON object.
pub fn set(body: &[u8], key: &str, value: &str) -> Option<Vec<u8>> {
    let mut spans = Vec::new();
    if memmem::find(body, format!("\"{key}\"").as_bytes()).is_some() {
        let mut scanner = Scanner::new(body);
        scanner
            .object(|scanner, name| {
                let length = scanner.skip()?.len();
                if name == key.as_bytes() {
                    let end = scanner.position();
                    spans.push(end - length..end);
                }
                Ok(())
            })
            .ok()?;
    }
    if spans.is_empty() {
        // An escaped spelling of the name is missed; the appended field takes precedence over it.
        return at_end(body, &format!("\"{key}\":{value}"));
    }
    let (mut set, mut from) = (Vec::with_capacity(body.len() + value.len()), 0);
    for span in spans {
        set.extend_from_slice(&body[from..span.start]);
        set.extend_from_slice(value.as_bytes());
        from = span.end;
    }
    set.extend_from_slice(&body[from..]);
    Some(set)
}

/// Removes a field in any spelling; `None` if it is absent or the body is not a JSON object.
pub fn without(body: &[u8], key: &str) -> Option<Vec<u8>> {
    let mut scanner = Scanner::new(body);
    if scanner.peek() != Some(b'{') {
        return None;
    }
    let open = scanner.position() + 1;
    let mut rest = body[..open].to_vec();
    // Between the ends of two values lie the comma, the name and the value.
    let (mut from, mut is_first, mut found) = (open, true, false);
    scanner
        .object(|scanner, name| {
            scanner.skip()?;
            let member = &body[from..scanner.position()];
            from = scanner.position();
            if name == key.as_bytes() {
                found = true;
                return Ok(());
            }
            let comma = member.iter().position(|byte| !byte.is_ascii_whitespace());
            match comma.filter(|at| is_first && member[*at] == b',') {
                Some(at) => rest.extend_from_slice(&member[at + 1..]),
                None => rest.extend_from_slice(member),
            }
            is_first = false;
            Ok(())
        })
        .ok()?;
    rest.extend_from_slice(&body[from..]);
    found.then_some(rest)
}

/// Appends a member to the object `object` of `body`, which is created if missing or `null`. The last member takes
/// precedence over one of the same name. `None` if `object` is another value.
pub fn member(body: &[u8], object: &str, key: &str, value: &str) -> Option<Vec<u8>> {
    match find(body, object)? {
        FieldPosition::Missing => at_end(body, &format!("\"{object}\":{{\"{key}\":{value}}}")),
        FieldPosition::Null { start, end } => {
            let mut spliced = body[..start].to_vec();
            spliced.extend_from_slice(format!("{{\"{key}\":{value}}}").as_bytes());
            spliced.extend_from_slice(&body[end..]);
            Some(spliced)
        }
        FieldPosition::Object { start, end } => {
            let inner = at_end(&body[start..end], &format!("\"{key}\":{value}"))?;
            let mut spliced = body[..start].to_vec();
            spliced.extend_from_slice(&inner);
            spliced.extend_from_slice(&body[end..]);
            Some(spliced)
        }
        FieldPosition::Other => None,
    }
}

enum FieldPosition {
    Missing,
    Null { start: usize, end: usize },
    Object { start: usize, end: usize },
    Other,
}

/// Locates a field, if its name occurs in the body. An escaped spelling is missed; the appended field takes precedence.
fn find(body: &[u8], key: &str) -> Option<FieldPosition> {
    let mut place = FieldPosition::Missing;
    if memmem::find(body, format!("\"{key}\"").as_bytes()).is_none() {
        return Some(place);
    }
    let mut scanner = Scanner::new(body);
    scanner
        .object(|scanner, name| {
            let value = scanner.skip()?;
            if name == key.as_bytes() {
                let end = scanner.position();
                let start = end - value.len();
                place = match value {
                    b"null" => FieldPosition::Null { start, end },
                    [b'{', ..] => FieldPosition::Object { start, end },
                    _ => FieldPosition::Other,
                };
            }
            Ok(())
        })
        .ok()?;
    Some(place)
}

fn at_end(object: &[u8], member: &str) -> Option<Vec<u8>> {
    let open = object.trim_ascii_start().first() == Some(&b'{');
    let inner = object.trim_ascii_end().strip_suffix(b"}").filter(|_| open)?;
    let empty = inner.trim_ascii() == b"{";
    let mut spliced = Vec::with_capacity(object.len() + member.len() + 1);
    spliced.extend_from_slice(inner);
    if !empty {
        spliced.push(b',');
    }
    spliced.extend_from_slice(member.as_bytes());
    spliced.push(b'}');
    Some(spliced)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn joined(body: &str, object: &str) -> Option<String> {
        member(body.as_bytes(), object, "n", "7").map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn everything_else_stays_as_it_came() {
        assert_eq!(
            joined("{ \"a\" : 1.0e0 }\n", "x").as_deref(),
            Some("{ \"a\" : 1.0e0 ,\"x\":{\"n\":7}}")
        );
        assert_eq!(joined("{}", "x").as_deref(), Some(r#"{"x":{"n":7}}"#));
        assert_eq!(
            joined(r#"{"x":{ },"b":2}"#, "x").as_deref(),
            Some(r#"{"x":{ "n":7},"b":2}"#)
        );
        assert_eq!(
            joined(r#"{"x":{"k":"v"},"b":2}"#, "x").as_deref(),
            Some(r#"{"x":{"k":"v","n":7},"b":2}"#)
        );
        assert_eq!(
            joined(r#"{"x": null ,"b":2}"#, "x").as_deref(),
            Some(r#"{"x": {"n":7} ,"b":2}"#)
        );
    }

    #[test]
    fn what_has_another_shape_is_left_alone() {
        for body in [r#"{"x":5}"#, r#"{"x":[{}]}"#, "[]", "5", "", "}", "{"] {
            assert_eq!(joined(body, "x"), None, "{body}");
        }
        assert_eq!(field(br#"{"x":null}"#, "x", "1"), None);
        assert_eq!(field(br#"{"y":"x"}"#, "x", "1").unwrap(), br#"{"y":"x","x":1}"#);
    }

    #[test]
    fn a_name_within_a_text_is_no_field() {
        let body = r#"{"messages":["\"x\"",{"x":1}]}"#;
        assert_eq!(
            joined(body, "x").as_deref(),
            Some(r#"{"messages":["\"x\"",{"x":1}],"x":{"n":7}}"#)
        );
    }

    #[test]
    fn a_field_that_is_set_has_no_other_value() {
        let set = |body: &str| set(body.as_bytes(), "x", "7").map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(set("{}").as_deref(), Some(r#"{"x":7}"#));
        assert_eq!(set(r#"{"y": "x"}"#).as_deref(), Some(r#"{"y": "x","x":7}"#));
        assert_eq!(
            set(r#"{"x": {"x":1} , "y":2, "x":"a"}"#).as_deref(),
            Some(r#"{"x": 7 , "y":2, "x":7}"#)
        );
        assert_eq!(set(r#"{"\u0078":1}"#).as_deref(), Some(r#"{"\u0078":1,"x":7}"#));
        assert_eq!(set("[]"), None);
    }

    #[test]
    fn a_field_that_is_taken_out_leaves_the_others_as_they_came() {
        let without =
            |body: &str| without(body.as_bytes(), "x").map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(without(r#"{"x":1}"#).as_deref(), Some("{}"));
        assert_eq!(
            without(r#" { "x" : [1] , "y":2.0 } "#).as_deref(),
            Some(r#" { "y":2.0 } "#)
        );
        assert_eq!(without(r#"{"y":2 ,"x":"}"}"#).as_deref(), Some(r#"{"y":2}"#));
        assert_eq!(
            without(r#"{"x":1,"x":2,"y":3,"x":4}"#).as_deref(),
            Some(r#"{"y":3}"#)
        );
        assert_eq!(
            without(r#"{"\u0078":1,"y":{"x":1}}"#).as_deref(),
            Some(r#"{"y":{"x":1}}"#)
        );
        for body in [r#"{"y":"x"}"#, "{}", "[]", "", r#"{"x":"#] {
            assert_eq!(without(body), None, "{body}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z\"\\\\x{}]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[xyn\"]", inner, 0..4)
                    .prop_map(|members| Value::from(Map::from_iter(members))),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_is_what_setting_the_member_would_be(value in values(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let spliced = joined(text.as_ref().unwrap(), "x");
            let mut wanted = value;
            let settable = wanted.is_object()
                && wanted.get("x").is_none_or(|x| x.is_null() || x.is_object());
            let taken_out = without(text.as_ref().unwrap().as_bytes(), "x");
            let mut rest = wanted.clone();
            let had = rest.as_object_mut().and_then(|members| members.remove("x")).is_some();
            let rest_as_read: Option<Value> = taken_out.map(|bytes| serde_json::from_slice(&bytes).unwrap());
            prop_assert_eq!(rest_as_read, had.then_some(rest));
            if settable {
                if wanted["x"].is_null() {
                    wanted["x"] = json!({});
                }
                wanted["x"]["n"] = 7.into();
                let read: Value = serde_json::from_str(&spliced.unwrap()).unwrap();
                prop_assert_eq!(read, wanted);
            } else {
                prop_assert_eq!(spliced, None);
            }
        }
    }
}

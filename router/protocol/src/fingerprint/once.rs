//! Messages with duplicate members.
//!
//! Engines follow Python's `json.loads`: the last value at the position of the first. Messages are hashed while they
//! are read, so a message with a duplicate is rewritten without it and read again.

use crate::json::{Malformed, Scanner};

/// Members that are hashed or compared, of a message, its parts and its calls.
const NAMES: [&[u8]; 21] = [
    b"role",
    b"reasoning",
    b"reasoning_content",
    b"content",
    b"name",
    b"tool_call_id",
    b"tool_calls",
    b"function_call",
    b"type",
    b"text",
    b"refusal",
    b"image_url",
    b"url",
    b"uuid",
    b"function",
    b"id",
    b"arguments",
    b"input",
    b"tool_use_id",
    b"thinking",
    b"source",
];

/// Greatest depth of objects with these members: message, calls, call, function.
const DEEPEST: u32 = 3;

/// Rewrites the message that begins here with each of [`NAMES`] once per object. Deeper levels stay unchanged.
pub(super) fn once(message: &mut Scanner<'_>) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::new();
    value(message, 0, &mut out)?;
    Ok(out)
}

fn value(scanner: &mut Scanner<'_>, depth: u32, out: &mut Vec<u8>) -> Result<(), Malformed> {
    match scanner.peek() {
        Some(b'{') if depth <= DEEPEST => object(scanner, depth, out),
        Some(b'[') if depth <= DEEPEST => array(scanner, depth, out),
        _ => scanner.skip().map(|span| out.extend_from_slice(span)),
    }
}

fn array(scanner: &mut Scanner<'_>, depth: u32, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut from = scanner.position();
    scanner.array(|scanner| {
        scanner.peek();
        out.extend_from_slice(scanner.since(from));
        value(scanner, depth + 1, out)?;
        from = scanner.position();
        Ok(())
    })?;
    out.extend_from_slice(scanner.since(from));
    Ok(())
}

fn object<'a>(scanner: &mut Scanner<'a>, depth: u32, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut from = scanner.position();
    // For each member: the bytes up to its value, and a scanner at the value.
    let mut members: Vec<(&'a [u8], Scanner<'a>)> = Vec::new();
    let mut first = [None; NAMES.len()];
    scanner.object(|scanner, key| {
        scanner.peek();
        let (head, value) = (scanner.since(from), scanner.clone());
        scanner.skip()?;
        from = scanner.position();
        let place = NAMES
            .iter()
            .position(|name| *name == key)
            .map(|name| first[name].get_or_insert(members.len()));
        match place.and_then(|place| members.get_mut(*place)) {
            Some((_, earlier)) => *earlier = value,
            None => members.push((head, value)),
        }
        Ok(())
    })?;
    for (head, mut member) in members {
        out.extend_from_slice(head);
        value(&mut member, depth + 1, out)?;
    }
    out.extend_from_slice(scanner.since(from));
    Ok(())
}

/// Numbered members of one object that were seen so far.
#[derive(Default)]
pub(super) struct Met(u8);

impl Met {
    /// Records the member with this number, below 8; sets `twice` if it was seen before.
    #[inline]
    pub(super) fn note(&mut self, number: u8, twice: &mut bool) {
        *twice |= self.0 >> number & 1 == 1;
        self.0 |= 1 << number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(message: &str) -> String {
        String::from_utf8(once(&mut Scanner::new(message.as_bytes())).unwrap()).unwrap()
    }

    #[test]
    fn a_member_given_twice_has_the_place_of_the_first_and_the_value_of_the_last() {
        for (message, expected) in [
            (
                r#"{ "name":"a" , "x":1, "ro\u006ce": "b", "name" : null,"x":2,"role":"c","name":"d"}"#,
                r#"{ "name":"d" , "x":1, "ro\u006ce": "c","x":2}"#,
            ),
            (
                r#"{"content":[{"type":"a","image_url":{"url":1,"url":[2]},"type":"b"} ,3 ],"content": [ {"uuid":4, "uuid":5} ]}"#,
                r#"{"content":[ {"uuid":5} ]}"#,
            ),
            (
                r#"{"tool_calls":[{"function":{"arguments":{"id":1,"id":2},"name":3,"name":4}}]}"#,
                r#"{"tool_calls":[{"function":{"arguments":{"id":1,"id":2},"name":4}}]}"#,
            ),
            ("[ ]", "[ ]"),
            ("{ }", "{ }"),
        ] {
            assert_eq!(written(message), expected);
        }
    }
}

//! One pass over the body: is it JSON, and where are the few fields that the router needs?
//!
//! The bytes are looked at and forwarded as they came; nothing is written again. Unknown fields, roles and content
//! parts pass through unread: validating the API is the worker's business. So there are three outcomes:
//!
//! - not JSON at all: refused with 400, because no worker could do better;
//! - JSON of an unexpected shape (`"messages": 5`): passed on without a fingerprint, and the worker says what is wrong;
//! - else: a [`Parsed`] that points into the body.

use std::borrow::Cow;

use super::json::{Malformed, Scanner, text};
use crate::error::ApiError;

/// What the router needs to know of a request's body. Spans are valid JSON values within it.
#[derive(Debug, Default)]
pub struct Parsed<'a> {
    /// The model's name, if given.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The conversation's name, if the client gives one in the body.
    pub session: Option<Cow<'a, str>>,
    /// Separates tenants' caches: part of the fingerprint.
    pub cache_salt: Option<Cow<'a, str>>,
    /// `messages` of a chat.
    pub messages: Option<&'a [u8]>,
    /// `tools` of a chat.
    pub tools: Option<&'a [u8]>,
    /// `prompt` of a completion.
    pub prompt: Option<&'a [u8]>,
}

/// Reads a request body.
///
/// # Errors
/// [`ApiError::MalformedJson`] if the body is not JSON, with the place.
pub fn parse<'a>(body: &'a [u8]) -> Result<Parsed<'a>, ApiError> {
    let refuse = |error: Malformed| ApiError::MalformedJson(error.describe(body));
    if let Err(error) = std::str::from_utf8(body) {
        return Err(refuse(Malformed {
            at: error.valid_up_to(),
            what: "not UTF-8",
        }));
    }
    let mut scanner = Scanner::new(body);
    let mut parsed = Parsed::default();
    let mut cache_key = None;
    let member = |scanner: &mut Scanner<'a>, key: Cow<'a, str>| {
        let value = scanner.skip()?;
        match &*key {
            "model" => parsed.model = text(value),
            "stream" => parsed.stream = value == b"true",
            "session_id" => parsed.session = text(value).filter(|name| !name.is_empty()),
            "prompt_cache_key" => cache_key = text(value).filter(|name| !name.is_empty()),
            "cache_salt" => parsed.cache_salt = text(value),
            "messages" => parsed.messages = Some(value).filter(|value| value.starts_with(b"[")),
            "tools" => parsed.tools = Some(value).filter(|value| value.starts_with(b"[")),
            "prompt" => parsed.prompt = Some(value),
            _ => {}
        }
        Ok(())
    };
    scanner.object(member).map_err(refuse)?;
    if scanner.peek().is_some() {
        return Err(refuse(Malformed {
            at: scanner.position(),
            what: "more follows the JSON value",
        }));
    }
    parsed.session = parsed.session.or(cache_key);
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_finds_the_fields_wherever_they_stand() {
        let parsed =
            parse(br#" { "messages" : [ 1 ] , "stream":true, "model":"m\u0041", "x":{"model":"no"} } "#)
                .unwrap();
        assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("mA"), true));
        assert_eq!(parsed.messages, Some(&b"[ 1 ]"[..]));
    }

    #[test]
    fn unknown_shapes_pass_without_a_prompt_but_keep_model_and_stream() {
        let parsed = parse(br#"{"model":"m","stream":true,"messages":5}"#).unwrap();
        assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("m"), true));
        assert!(parsed.messages.is_none());
        assert!(parse(b"[1,2]").unwrap().messages.is_none());
        assert!(parse(br#"{"model":7}"#).unwrap().model.is_none());
    }

    #[test]
    fn what_is_not_json_is_refused_with_the_place() {
        for body in ["", "{", "{\"a\":}", "nope", "{\"messages\":[{]}", "{} trailing"] {
            let error = parse(body.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("line 1 column"), "{body}: {error}");
        }
        assert!(
            parse(b"{\"model\":\"\xff\"}")
                .unwrap_err()
                .to_string()
                .contains("not UTF-8 at line 1 column 11")
        );
    }

    #[test]
    fn a_session_is_named_by_either_field_and_an_empty_name_is_none() {
        let session = |body: &'static str| parse(body.as_bytes()).unwrap().session.map(Cow::into_owned);
        assert_eq!(
            session(r#"{"prompt_cache_key":"b","session_id":"a"}"#).as_deref(),
            Some("a")
        );
        assert_eq!(session(r#"{"prompt_cache_key":"b"}"#).as_deref(), Some("b"));
        assert_eq!(session(r#"{"session_id":""}"#), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&body);
        }
    }
}

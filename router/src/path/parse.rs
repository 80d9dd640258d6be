//! One pass over the body: is it JSON, what are the few fields that matter, and what is its prompt's fingerprint?
//!
//! The bytes are looked at and forwarded as they came; nothing is written again. Unknown fields, roles and content
//! parts pass through unread: validating the API is the worker's business. So there are three outcomes:
//!
//! - not JSON at all: refused with 400, because no worker could do better;
//! - JSON of an unexpected shape (`"messages": 5`): passed on without a fingerprint, and the worker says what is wrong;
//! - else: a [`Parsed`].

use std::borrow::Cow;
use std::cell::RefCell;

use super::admit::Endpoint;
use super::fingerprint::{Draft, Fingerprint};
use super::json::{Malformed, Quoted, Scanner};
use crate::error::ApiError;

mod namespace;

use namespace::Namespace;

/// What the router needs to know of a request's body.
#[derive(Debug)]
pub struct Parsed<'a> {
    /// The model's name, if given.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The conversation's name, if the client gives one in the body.
    pub session: Option<Cow<'a, str>>,
    /// Whether it may call tools.
    pub has_tools: bool,
    /// The prompt's keys.
    pub fingerprint: Fingerprint,
}

thread_local! {
    /// Reused from request to request, so that reading one allocates only what it keeps.
    static DRAFT: RefCell<Draft> = RefCell::default();
}

/// Reads the body of a request to this endpoint, which says whether `messages` or `prompt` is the prompt: an engine passes
/// over the other one, and so does this.
///
/// # Errors
/// [`ApiError::MalformedJson`] if the body is not JSON, with the place.
pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Parsed<'_>, ApiError> {
    let refuse = |error: Malformed| ApiError::MalformedJson(error.describe(body));
    check_utf8(body).map_err(refuse)?;
    DRAFT.with_borrow_mut(|draft| {
        draft.clear();
        members(endpoint, body, draft).map_err(refuse)
    })
}

fn check_utf8(body: &[u8]) -> Result<(), Malformed> {
    simdutf8::basic::from_utf8(body).map(drop).map_err(|_| {
        // Once more, for the place.
        let at = std::str::from_utf8(body)
            .err()
            .map_or(0, |error| error.valid_up_to());
        Malformed {
            at,
            what: "not UTF-8",
        }
    })
}

fn members<'a>(endpoint: Endpoint, body: &'a [u8], draft: &mut Draft) -> Result<Parsed<'a>, Malformed> {
    let (mut model, mut stream, mut namespace) = (None, false, Namespace::default());
    let (mut has_tools, mut within) = (false, false);
    let (mut session, mut cache_key) = (None, None);
    let mut scanner = Scanner::new(body);
    scanner.object(|scanner, key| {
        match key {
            b"messages" if endpoint == Endpoint::Chat => draft.messages(scanner)?,
            b"tools" => {
                has_tools = scanner.peek() == Some(b'[');
                draft.tools(scanner)?;
            }
            b"prompt" if endpoint == Endpoint::Completions => draft.prompt(scanner)?,
            b"model" => model = text(scanner)?,
            b"stream" => stream = scanner.skip()? == b"true",
            // The answer repeats the prompt, or goes on within its last message: the next turn has other keys than these.
            b"echo" | b"continue_final_message" => within |= scanner.skip()? == b"true",
            b"session_id" => session = text(scanner)?.filter(|name| !name.is_empty()),
            b"prompt_cache_key" => cache_key = text(scanner)?.filter(|name| !name.is_empty()),
            _ => match Namespace::place(key) {
                Some(place) => namespace.take(place, scanner)?,
                None => scanner.skip().map(drop)?,
            },
        }
        Ok(())
    })?;
    if scanner.peek().is_some() {
        return Err(Malformed {
            at: scanner.position(),
            what: "more follows the JSON value",
        });
    }
    let mut fingerprint = draft.finish(model.as_deref().unwrap_or_default(), namespace.salt().as_deref());
    if within {
        fingerprint.reply = None;
    }
    Ok(Parsed {
        model,
        stream,
        session: session.or(cache_key),
        has_tools,
        fingerprint,
    })
}

/// A string's text; anything else has none.
fn text<'a>(scanner: &mut Scanner<'a>) -> Result<Option<Cow<'a, str>>, Malformed> {
    if scanner.peek() == Some(b'"') {
        scanner.quoted().map(Quoted::text).map(Some)
    } else {
        scanner.skip().map(|_| None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fingerprint::Extent;
    use super::*;

    fn parse(body: &[u8]) -> Result<Parsed<'_>, ApiError> {
        super::parse(Endpoint::Chat, body)
    }

    #[test]
    fn it_finds_the_fields_wherever_they_stand() {
        let parsed =
            parse(br#" { "messages" : [ 1 ] , "stream":true, "model":"m\u0041", "x":{"model":"no"} } "#)
                .unwrap();
        assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("mA"), true));
        assert_eq!(
            parsed.fingerprint.extent,
            Extent::Bytes(0),
            "a message that is none leaves no trace"
        );
    }

    #[test]
    fn unknown_shapes_pass_without_a_prompt_but_keep_model_and_stream() {
        let parsed = parse(br#"{"model":"m","stream":true,"messages":5}"#).unwrap();
        assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("m"), true));
        assert!(parsed.fingerprint.reply.is_none());
        assert!(parse(b"[1,2]").unwrap().fingerprint.reply.is_none());
        assert!(parse(br#"{"model":7}"#).unwrap().model.is_none());
    }

    #[test]
    fn an_answer_that_the_next_turn_does_not_repeat_as_it_comes_is_not_learned() {
        let learned = |endpoint, extra: &str| {
            let body = format!(r#"{{"prompt":"x","messages":[{{"role":"user","content":"x"}}]{extra}}}"#);
            super::parse(endpoint, body.as_bytes())
                .unwrap()
                .fingerprint
                .reply
                .is_some()
        };
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            for member in [r#","echo":true"#, r#","continue_final_message": true"#] {
                assert!(!learned(endpoint, member), "{member}");
                assert!(learned(endpoint, &member.replace("true", "false")), "{member}");
            }
        }
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
            let _ = super::parse(Endpoint::Chat, &body);
            let _ = super::parse(Endpoint::Completions, &body);
        }
    }
}

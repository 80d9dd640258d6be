//! OpenAI's responses, `/v1/responses`: items, instructions, and typed events or one response, which engines may store.
//!
//! A response is a list of items. A lone message appears again in the next turn's `input`. Calls are separate items
//! there, so a response with calls is not learned.

use policy::estimate::Finish;
use policy::fingerprint::{Field, Pieces};
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use super::{EndpointFacts, GenAiOperation, Work, parsed};
use crate::fingerprint::{Draft, Hashed, message};
use crate::json::{Malformed, Scanner};
use crate::reply::Piece;
use crate::watch::{StreamFact, Usage, Watch};

pub(super) const ENDPOINT: EndpointFacts = EndpointFacts {
    stores_responses: true,
    runs_tools: true,
    ..EndpointFacts::new(
        "responses",
        &["/v1/responses"],
        Work::Generation(GenAiOperation::Chat),
    )
};

/// Returns the id of the stored response that a path concerns.
pub(crate) fn stored(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/responses/")?.split('/').next()
}

/// Returns the key under which a response's id is stored.
pub fn response_key(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

pub(super) fn read_prompt(
    member: &[u8],
    scanner: &mut Scanner<'_>,
    draft: &mut Draft,
) -> Result<bool, Malformed> {
    match member {
        b"instructions" => draft.system(scanner)?,
        b"input" if scanner.peek() == Some(b'"') => draft.user_text(scanner)?,
        b"input" => draft.conversation(scanner, item)?,
        b"tools" => draft.tools(scanner)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Reads an item of `input`: a message, or another item, which is hashed whole.
fn item(scanner: &mut Scanner<'_>, pieces: &mut Pieces) -> Result<(), Malformed> {
    if scanner.peek() == Some(b'{') && scanner.ahead(b"role").is_none() {
        pieces.begin_message("item");
        pieces.field(Field::Other);
        return scanner.compact(&mut Hashed(pieces));
    }
    message(scanner, pieces)
}

#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: StreamFact<'a>,
    #[serde(borrow, default)]
    delta: StreamFact<'a>,
    #[serde(borrow, default)]
    response: Option<ResponseObject<'a>>,
}

#[derive(Deserialize)]
struct ResponseObject<'a> {
    #[serde(borrow, default)]
    id: StreamFact<'a>,
    #[serde(borrow, default)]
    status: StreamFact<'a>,
    #[serde(default)]
    usage: Option<ResponsesUsage>,
    #[serde(borrow, default)]
    output: Option<Vec<Item<'a>>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: StreamFact<'a>,
    #[serde(borrow, default)]
    content: Option<Vec<ContentPart<'a>>>,
}

#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: StreamFact<'a>,
}

#[derive(Deserialize)]
struct ResponsesUsage {
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    #[serde(default)]
    input_tokens_details: Option<InputTokenDetails>,
}

#[derive(Deserialize)]
struct InputTokenDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

pub(super) fn read_response(watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
    if watch.is_stream() {
        event(watch, json, reply);
    } else {
        whole(watch, json, reply);
    }
}

fn event(watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
    let Some(event) = parsed::<ResponsesEvent<'_>>(json) else {
        reply(Piece::Unrepeated);
        return;
    };
    if let Some(response) = &event.response {
        said(watch, response);
    }
    let StreamFact::Text(kind) = &event.kind else {
        return;
    };
    match (&**kind, &event.delta) {
        ("response.output_text.delta", StreamFact::Text(text)) => {
            reply(Piece::Text(text));
            watch.saw_token();
        }
        (
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta",
            StreamFact::Text(text),
        ) => {
            reply(Piece::Reasoning(text));
            watch.saw_token();
        }
        ("response.completed" | "response.incomplete" | "response.failed", _) => watch.complete = true,
        (kind, StreamFact::Text(_)) if kind.ends_with(".delta") => {
            reply(Piece::Unrepeated);
            watch.saw_token();
        }
        _ => {}
    }
}

fn whole(watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
    let Some(response) = parsed::<ResponseObject<'_>>(json) else {
        reply(Piece::Unrepeated);
        return;
    };
    said(watch, &response);
    for item in response.output.iter().flatten() {
        if !item.kind.is("message") {
            reply(Piece::Unrepeated);
        }
        for part in item.content.iter().flatten() {
            match &part.text {
                StreamFact::Text(text) => reply(Piece::Text(text)),
                _ => reply(Piece::Unrepeated),
            }
        }
    }
    watch.saw_token();
}

fn said(watch: &mut Watch, response: &ResponseObject<'_>) {
    if let StreamFact::Text(id) = &response.id {
        watch.response_key = Some(response_key(id));
    }
    if let Some(usage) = &response.usage {
        let details = usage.input_tokens_details.as_ref();
        let cached = details.and_then(|details| details.cached_tokens);
        watch.usage = Some(Usage::reported(usage.input_tokens, usage.output_tokens, cached));
    }
    if response.status.is("completed") {
        watch.finish = Finish::Stop;
    } else if response.status.is("incomplete") {
        watch.finish = Finish::Length;
    }
}

//! Saying an error on an event stream that broke off anywhere, so that its client can read it.
//!
//! A client of this API parses each event's data as JSON and looks for `error` in it. What was cut within an event has
//! left already, because nothing on the way is held back: `data: {"choices":[{"delta":{"content":"h`. A line break alone
//! would make a broken event of it, and the client would report bad JSON instead of what happened. So the JSON that is
//! open is closed, and the error goes in as its last member: `"}}],"error":{…}}`.
//!
//! What is no JSON object cannot be mended: it is ended where it is, and the error follows as an event of its own.
//! Rejected: holding each event back until it is whole. It would make this easy, and every token later.

mod json;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use sse::StreamPosition;

use super::routes::Family;

/// How a line with JSON begins, as every client knows it: some insist on the blank.
const FIELD: &[u8] = b"data: ";
/// What tells an error apart from other events to Anthropic's clients.
const ERROR_EVENT: &[u8] = b"event: error\n";
/// What OpenAI's streams end with.
const DONE: &[u8] = b"[DONE]";

/// What to send on a stream that stands there, so that `error`, a JSON object, is the last thing that its client reads.
#[must_use]
pub fn last_words(standing: StreamPosition<'_>, error: &[u8], family: Family) -> Bytes {
    let mut said = Vec::with_capacity(error.len() + 64);
    match standing {
        StreamPosition::Between => own_event(&mut said, error, family),
        StreamPosition::InEvent { after_cr: false } => {
            said.push(b'\n');
            own_event(&mut said, error, family);
        }
        StreamPosition::InEvent { after_cr: true } | StreamPosition::InLongLine => {
            said.extend_from_slice(b"\n\n");
            own_event(&mut said, error, family);
        }
        StreamPosition::InLine(line) => in_line(&mut said, line, error, family),
    }
    Bytes::from(said)
}

fn own_event(said: &mut Vec<u8>, error: &[u8], family: Family) {
    if family == Family::Anthropic {
        said.extend_from_slice(ERROR_EVENT);
    }
    said.extend_from_slice(FIELD);
    said.extend_from_slice(error);
    said.extend_from_slice(b"\n\n");
}

fn in_line(said: &mut Vec<u8>, line: &[u8], error: &[u8], family: Family) {
    if let Some(rest) = FIELD.strip_prefix(line) {
        said.extend_from_slice(rest);
        said.extend_from_slice(error);
        said.extend_from_slice(b"\n\n");
        return;
    }
    let mut told = false;
    if let Some(payload) = sse::data(line) {
        if let Some(rest) = DONE.strip_prefix(payload) {
            said.extend_from_slice(rest);
        } else {
            told = json::close(said, payload, error);
        }
    }
    said.extend_from_slice(b"\n\n");
    if !told {
        own_event(said, error, family);
    }
}

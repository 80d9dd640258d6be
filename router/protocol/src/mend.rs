//! Ends an interrupted event stream with an error that its client can read.
//!
//! Clients parse each event's data as JSON and look for `error` in it. A stream can be cut within an event: `data:
//! {"choices":[{"delta":{"content":"h`. A line break alone would produce a malformed event, so the open JSON is closed
//! with the error as its last member: `"}}],"error":{…}}`. After other data the error follows as a separate event.
//! Rejected: holding each event back until it is complete, which would delay every token.

mod json;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use sse::StreamPosition;

use super::api::Family;

/// Prefix of a data line; some clients require the space.
const FIELD: &[u8] = b"data: ";
const DONE: &[u8] = b"[DONE]";

/// Returns the bytes that end a stream so that `error`, a JSON object, is the last data that its client reads.
pub fn last_words(position: StreamPosition<'_>, error: &[u8], family: Family) -> Bytes {
    let mut said = Vec::with_capacity(error.len() + 64);
    match position {
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
    said.extend_from_slice(family.error_event());
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

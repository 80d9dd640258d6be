//! Finds the first event of a response that is relayed without being parsed.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::watch::Step;

/// Reader of a response up to the first line with data. Comments, names of events and empty lines do not count.
#[derive(Debug)]
pub struct FirstEvent {
    place: FirstEventState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstEventState {
    /// The start of a line, of which this number of bytes equals the beginning of `data`.
    Field(usize),
    /// Within a line that has no data.
    OtherLine,
    /// The response has begun, or is no event stream.
    Begun,
}

const DATA: &[u8] = b"data";

impl FirstEvent {
    /// Returns a reader of the response with this head.
    pub fn of(head: &HeaderMap) -> Self {
        let kind = head.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        Self::new(kind, head.contains_key(CONTENT_ENCODING))
    }

    /// Returns a reader of a response with this content type, and with a content coding if `encoded`.
    pub fn new(content_type: Option<&str>, encoded: bool) -> Self {
        let is_stream = content_type.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let place = if is_stream && !encoded {
            FirstEventState::Field(0)
        } else {
            FirstEventState::Begun
        };
        Self { place }
    }

    /// Reads the next bytes. Returns [`Step::Token`] once the first event, or the first byte of another response, has
    /// come.
    pub fn push(&mut self, bytes: &[u8]) -> Step {
        for &byte in bytes {
            self.place = match self.place {
                FirstEventState::Begun => return Step::Token,
                _ if matches!(byte, b'\n' | b'\r') => FirstEventState::Field(0),
                FirstEventState::Field(known) if DATA[known] == byte => match known + 1 {
                    known if known == DATA.len() => FirstEventState::Begun,
                    known => FirstEventState::Field(known),
                },
                FirstEventState::Field(_) | FirstEventState::OtherLine => FirstEventState::OtherLine,
            };
        }
        match self.place {
            FirstEventState::Begun if !bytes.is_empty() => Step::Token,
            _ => Step::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(fields: &[(http::HeaderName, &'static str)]) -> FirstEvent {
        let fields = fields.iter().cloned();
        FirstEvent::of(
            &fields
                .map(|(name, value)| (name, HeaderValue::from_static(value)))
                .collect(),
        )
    }

    #[test]
    fn comments_and_fields_without_data_do_not_begin_a_stream_however_it_is_cut() {
        let stream = b": ping\n\nevent: delta\r\nid: 1\rdat: x\n: data: no\ndata: yes\n\n";
        let begins = stream.len() - ": yes\n\n".len();
        for step in 1..stream.len() {
            let mut first = of(&[(CONTENT_TYPE, "text/event-stream; charset=utf-8")]);
            let mut at = 0;
            for piece in stream.chunks(step) {
                at += piece.len();
                let expected = if at >= begins { Step::Token } else { Step::Nothing };
                assert_eq!(first.push(piece), expected, "{at} bytes, {step} at a time");
            }
        }
    }

    #[test]
    fn any_byte_begins_another_response() {
        for fields in [
            &[][..],
            &[(CONTENT_TYPE, "application/json")],
            &[(CONTENT_TYPE, "text/event-stream"), (CONTENT_ENCODING, "gzip")],
        ] {
            let mut first = of(fields);
            assert_eq!(first.push(b""), Step::Nothing);
            assert_eq!(first.push(b":"), Step::Token, "{fields:?}");
        }
    }
}

//! Answers to a gateway.

use std::collections::HashMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};

use super::head::{DESTINATION, NAMESPACE};
use super::wire::{
    self, AnswerPart, AppendAction, BodyMutation, CommonResponse, HeaderMutation, HeaderValueOption,
    HttpStatus, ImmediateResponse, Mutation, PartResponse, ProcessingResponse, StreamedBody, Struct,
    ValueKind,
};
use protocol::api::Family;
use protocol::error::ApiError;

/// Largest number of a body's bytes in one message, as the protocol recommends.
pub(super) const PIECE_BYTES: usize = 62 * 1024;

/// Headers that the gateway manages on its own connections. They are neither read nor changed.
const GATEWAYS_OWN: [HeaderName; 11] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    HOST,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

fn part(
    part: impl FnOnce(PartResponse) -> AnswerPart,
    response: Option<CommonResponse>,
) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(part(PartResponse { response })),
        dynamic_metadata: None,
    }
}

pub(super) fn go_on(of: impl FnOnce(PartResponse) -> AnswerPart) -> ProcessingResponse {
    part(of, None)
}

pub(super) fn piece(
    of: impl FnOnce(PartResponse) -> AnswerPart,
    body: Bytes,
    end_of_stream: bool,
) -> ProcessingResponse {
    let streamed = StreamedBody { body, end_of_stream };
    let response = CommonResponse {
        body_mutation: Some(BodyMutation {
            mutation: Some(Mutation::Streamed(streamed)),
        }),
        ..CommonResponse::default()
    };
    part(of, Some(response))
}

/// Returns a body as answers in pieces, at least one if the body ends here.
pub(super) fn pieces(mut body: Bytes, ends: bool) -> impl Iterator<Item = ProcessingResponse> {
    let mut is_over = body.is_empty() && !ends;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let next = body.split_to(body.len().min(PIECE_BYTES));
        is_over = body.is_empty();
        Some(piece(AnswerPart::RequestBody, next, is_over && ends))
    })
}

/// Returns an answer that names these endpoints and changes the request. `body`: the new body, if it changed.
pub(super) fn picked(
    of: impl FnOnce(PartResponse) -> AnswerPart,
    endpoints: &[SocketAddr],
    mut changes: HeaderMutation,
    body: Option<Bytes>,
) -> ProcessingResponse {
    let listed: Vec<String> = endpoints.iter().map(SocketAddr::to_string).collect();
    let listed = listed.join(",");
    changes
        .set_headers
        .push(header(DESTINATION, listed.clone().into(), true));
    if let Some(body) = &body {
        let length = body.len().to_string();
        changes
            .set_headers
            .push(header(CONTENT_LENGTH.as_str(), length.into(), true));
    }
    let response = CommonResponse {
        header_mutation: Some(changes),
        body_mutation: body.map(|body| BodyMutation {
            mutation: Some(Mutation::Body(body)),
        }),
        // Routes may depend on the header.
        clear_route_cache: true,
    };
    let value = |kind| wire::Value { kind: Some(kind) };
    let one = |name: &str, kind| Struct {
        fields: HashMap::from([(name.to_owned(), value(kind))]),
    };
    let destination = one(DESTINATION, ValueKind::Text(listed));
    ProcessingResponse {
        dynamic_metadata: Some(one(NAMESPACE, ValueKind::Struct(destination))),
        ..part(of, Some(response))
    }
}

/// Returns an answer that adds `marks` to the response's head, and removes the headers of `said_for_router` that
/// `marks` lacks.
pub(super) fn answered(said_for_router: &HeaderMap, marks: &HeaderMap) -> ProcessingResponse {
    let response = CommonResponse {
        header_mutation: Some(changes(said_for_router, marks)),
        ..CommonResponse::default()
    };
    part(AnswerPart::ResponseHeaders, Some(response))
}

pub(super) fn refused(error: &ApiError, family: Family, marks: &HeaderMap) -> ProcessingResponse {
    let response = error.response_for(family);
    let mut headers = response.headers().clone();
    headers.remove(CONNECTION);
    for (name, value) in marks {
        headers.insert(name, value.clone());
    }
    let told = ImmediateResponse {
        status: Some(HttpStatus {
            code: i32::from(error.status().as_u16()),
        }),
        headers: Some(changes(&HeaderMap::new(), &headers)),
        body: error.json_for(family),
        details: format!("tailroute_{}", error.code()),
    };
    ProcessingResponse {
        response: Some(AnswerPart::Immediate(told)),
        dynamic_metadata: None,
    }
}

pub(super) fn changes(before: &HeaderMap, after: &HeaderMap) -> HeaderMutation {
    let is_ours = |name: &&HeaderName| !GATEWAYS_OWN.contains(name);
    let mut changes = HeaderMutation::default();
    for name in after.keys().filter(is_ours) {
        let values = after.get_all(name);
        if before.get_all(name).iter().eq(values.iter()) {
            continue;
        }
        for (at, value) in values.iter().enumerate() {
            let raw = Bytes::copy_from_slice(HeaderValue::as_bytes(value));
            changes.set_headers.push(header(name.as_str(), raw, at == 0));
        }
    }
    let gone = before
        .keys()
        .filter(is_ours)
        .filter(|name| !after.contains_key(*name));
    changes.remove_headers = gone.map(|name| name.as_str().to_owned()).collect();
    changes
}

fn header(name: &str, value: Bytes, replaces: bool) -> HeaderValueOption {
    let action = if replaces {
        AppendAction::OverwriteIfExistsOrAdd
    } else {
        AppendAction::AppendIfExistsOrAdd
    };
    HeaderValueOption {
        header: Some(wire::HeaderValue {
            key: name.to_owned(),
            raw_value: value,
            ..wire::HeaderValue::default()
        }),
        append_action: action as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differing_headers_are_changed_and_never_the_gateways_own() {
        let map = |pairs: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(*name, HeaderValue::from_static(value));
            }
            map
        };
        let before = map(&[("host", "a"), ("x-same", "1"), ("x-key", "k"), ("x-list", "1")]);
        let after = map(&[
            ("x-same", "1"),
            ("te", "trailers"),
            ("x-list", "1"),
            ("x-list", "2"),
        ]);
        let changes = changes(&before, &after);
        assert_eq!(changes.remove_headers, ["x-key"]);
        let set: Vec<_> = changes
            .set_headers
            .iter()
            .map(|option| {
                let header = option.header.as_ref().unwrap();
                (&*header.key, header.bytes(), option.append_action)
            })
            .collect();
        assert_eq!(set, [("x-list", &b"1"[..], 2), ("x-list", &b"2"[..], 0)]);
    }

    #[test]
    fn a_body_is_sent_in_pieces_and_the_last_one_ends_it() {
        let told = |length: usize, ends| {
            let pieces = pieces(vec![b'x'; length].into(), ends);
            let piece = |told: ProcessingResponse| {
                let Some(AnswerPart::RequestBody(body)) = told.response else {
                    panic!("no body")
                };
                match body.response.unwrap().body_mutation.unwrap().mutation {
                    Some(Mutation::Streamed(piece)) => (piece.body.len(), piece.end_of_stream),
                    other => panic!("{other:?}"),
                }
            };
            pieces.map(piece).collect::<Vec<_>>()
        };
        assert_eq!(told(0, true), [(0, true)]);
        assert_eq!(told(0, false), []);
        assert_eq!(told(PIECE_BYTES, true), [(PIECE_BYTES, true)]);
        assert_eq!(told(PIECE_BYTES + 1, true), [(PIECE_BYTES, false), (1, true)]);
        assert_eq!(told(1, false), [(1, false)]);
    }
}

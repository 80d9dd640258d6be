//! Any answer of an engine on the wire, in any pieces: its body is a naive reader's, its head says nothing that does not hold or
//! that only the router says, and what is believed of its count is within the bound.
#![no_main]

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use libfuzzer_sys::fuzz_target;
use policy::units::Millis;
use protocol::claim::{Allowed, context};
use protocol::headers;
use protocol::api::Endpoint;
use protocol::watch::{ResponseReport, Watch};
use tailroute_http::upstream::{DecodedResponse, decode};

const BODY_BYTES: u64 = 60;
const MAX_TOKENS: u64 = 16;
/// What a chat template may add.
const TEMPLATE: u64 = 1024;

/// The body of an answer whose head is known to have one reading, and whether it has ended.
fn naive(wire: &[u8]) -> (Vec<u8>, bool) {
    let mut rest = wire;
    loop {
        let (fields, behind) = head(rest);
        rest = behind;
        let code = fields.first().and_then(|line| line.split(' ').nth(1).map(str::to_owned));
        if code.as_deref().is_some_and(|code| code.starts_with('1')) {
            continue;
        }
        if matches!(code.as_deref(), Some("204" | "304")) {
            return (Vec::new(), true);
        }
        let value = |name: &str| {
            fields[1..].iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim_matches([' ', '\t']).to_owned())
            })
        };
        if value("transfer-encoding").is_some() {
            return chunks(rest);
        }
        let length = value("content-length").map(|length| length.parse::<u64>().expect("a length"));
        let Some(length) = length else { return (rest.to_vec(), true) };
        let here = rest.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        return (rest[..here].to_vec(), here as u64 == length);
    }
}

/// The lines of the head that begins here, and what is behind it. Empty lines before it are passed over.
fn head(mut rest: &[u8]) -> (Vec<String>, &[u8]) {
    let mut lines = Vec::new();
    loop {
        let end = rest.iter().position(|byte| *byte == b'\n').expect("a line's end");
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        rest = &rest[end + 1..];
        if !line.is_empty() {
            lines.push(String::from_utf8_lossy(line).into_owned());
        } else if !lines.is_empty() {
            return (lines, rest);
        }
    }
}

fn chunks(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let digits = line.split([';', ' ', '\t']).next().unwrap_or_default();
        let size = usize::try_from(u64::from_str_radix(digits, 16).expect("a size")).unwrap_or(usize::MAX);
        rest = &rest[end + 2..];
        if size == 0 {
            let ended = rest.starts_with(b"\r\n") || rest.windows(4).any(|four| four == b"\r\n\r\n");
            return (body, ended);
        }
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        match rest.get(size..).and_then(|rest| rest.strip_prefix(b"\r\n")) {
            Some(more) => rest = more,
            None => break,
        }
    }
    (body, false)
}

fn check_head(answer: &DecodedResponse) {
    let has = |name| answer.headers.contains_key(name);
    assert!(!(has(CONTENT_LENGTH) && has(TRANSFER_ENCODING)));
    assert!(answer.headers.get_all(CONTENT_LENGTH).iter().count() <= 1);
    if answer.is_whole && answer.status != 304 && has(CONTENT_LENGTH) {
        assert_eq!(answer.headers[CONTENT_LENGTH], answer.body.len().to_string());
    }
    let (mut head, mut trailers) = (answer.headers.clone(), answer.trailers.clone().unwrap_or_default());
    headers::strip_hop_by_hop(&mut head);
    headers::strip_routers_own(&mut head);
    headers::strip_trailers(&mut trailers);
    assert!(!head.contains_key(TRANSFER_ENCODING) && !trailers.contains_key(CONTENT_LENGTH));
    assert!(head.keys().chain(trailers.keys()).all(|name| !headers::is_routers_own(name.as_str())));
}

fn read(endpoint: Endpoint, answer: &DecodedResponse, size: usize) -> ResponseReport {
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let mut watch = Watch::new(endpoint, kind, false);
    for piece in answer.body.chunks(size) {
        watch.push(piece, |_| {});
    }
    watch.end(|_| {});
    assert_eq!(watch.passed.bytes(), answer.body.len() as u64);
    watch.seen()
}

fn check_count(endpoint: Endpoint, answer: &DecodedResponse, size: usize) {
    let seen = read(endpoint, answer, size);
    assert_eq!(seen, read(endpoint, answer, usize::MAX));
    let allowed = Allowed { bytes: BODY_BYTES, max_tokens: Some(MAX_TOKENS), choices: 2, ..Allowed::default() };
    let took = Millis(1e3);
    let answered = answer.body.len() as u64;
    let (believed, clamped) = allowed.believed(seen, answered, took, || context(Some(u64::MAX)));
    if let Some(usage) = believed.usage {
        assert!(usage.prompt <= BODY_BYTES + TEMPLATE);
        assert!(usage.completion <= answered.max(2 * MAX_TOKENS));
        assert!(usage.cached.is_none_or(|cached| cached <= usage.prompt));
    }
    let told = believed.queue.unwrap_or_default() + believed.prefill.unwrap_or_default();
    assert!(told.0 <= took.0 + 10.0);
    assert_eq!(clamped.names().count() == 0, believed == seen);
}

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (endpoint, size, wire) = input;
    let size = 1 + usize::from(size);
    // What is wrong with a line is found out when it has ended, or not at all.
    let whole = decode(std::iter::once(wire)).ok().flatten();
    let split = decode(wire.chunks(size)).ok().flatten();
    assert_eq!(whole, split);
    let Some(answer) = whole else { return };
    assert_eq!(naive(wire), (answer.body.clone(), answer.is_whole));
    check_head(&answer);
    let endpoint = match endpoint % 4 {
        0 => Endpoint::Chat,
        1 => Endpoint::Messages,
        2 => Endpoint::Responses,
        _ => Endpoint::Generate,
    };
    check_count(endpoint, &answer, size);
});

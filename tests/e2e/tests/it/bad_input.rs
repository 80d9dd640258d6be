//! Invalid input: each request gets a complete error in OpenAI's format, with the right status.

use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::json;
use tailroute_e2e::client::{CHAT, H2, code_of};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::raw::{RawAnswer, Wire, attempt, exchange, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::within;

const MAX_BODY: usize = 256 * 1024;
const MAX_HEAD: usize = 16 * 1024;
const SOON: Duration = Duration::from_millis(50);

/// One engine and a router with tight limits.
async fn fleet() -> Fleet {
    Fleet::start(vec![quick()], |config| {
        config.limits.max_body_bytes = MAX_BODY.try_into().unwrap();
        config.limits.max_header_bytes = MAX_HEAD.try_into().unwrap();
    })
    .await
}

/// One engine and a router with short timeouts for slow clients.
async fn impatient() -> Fleet {
    Fleet::start(vec![quick()], |config| {
        config.limits.header_timeout = SOON;
        config.limits.body_timeout = SOON;
    })
    .await
}

fn post(fields: &[&str], body: &str) -> Vec<u8> {
    let length = format!("content-length: {}", body.len());
    let fields: Vec<&str> = fields.iter().copied().chain([length.as_str()]).collect();
    request(&format!("POST {CHAT}"), &fields, body)
}

fn good_body() -> String {
    ask("hello", json!({})).to_string()
}

/// More bytes than the buffers between client and router hold.
fn endless_headers() -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nx-pad: {}", "p".repeat(16 << 20)).into_bytes()
}

/// Returns how a response differs from this error, if it does.
fn wrong(answer: Option<&RawAnswer>, status: u16, code: &str) -> Option<String> {
    let Some(answer) = answer else {
        return Some("no answer".to_owned());
    };
    let given = answer.headers.get("x-tailroute-error").map(String::as_str);
    let right = answer.status == status
        && given == Some(code)
        && answer.error_code() == code
        && (status != 405 || answer.headers.contains_key("allow"));
    (!right).then(|| format!("{answer:?}"))
}

#[tokio::test]
async fn every_bad_request_is_answered_with_its_status_and_code() {
    let fleet = fleet().await;
    let pad = |count: usize| format!("x-pad: {}", "p".repeat(count));
    let (pad_router, pad_hyper) = (pad(MAX_HEAD + 1), pad(MAX_HEAD + 512 * 1024));
    let many: Vec<String> = (0..101).map(|i| format!("x-{i}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = |count: usize| request(&format!("GET /{}", "u".repeat(count)), &[], "");
    let unknown_model = json!({ "model": "gpt-\"17\"", "messages": [] }).to_string();
    let far_too_large = "x".repeat(16 << 20);
    let too_large = "x".repeat(MAX_BODY + 1);
    let chunked = format!("{:x}\r\n{too_large}\r\n0\r\n\r\n", too_large.len());
    let table: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("no JSON", post(&[], "{\"model\":"), 400, "malformed_json"),
        ("an empty body", post(&[], ""), 400, "malformed_json"),
        ("JSON and more", post(&[], "{} {}"), 400, "malformed_json"),
        (
            "no UTF-8 where text is",
            [
                &request(&format!("POST {CHAT}"), &["content-length: 13"], "")[..],
                b"{\"model\":\"\xff\"}",
            ]
            .concat(),
            400,
            "malformed_json",
        ),
        (
            "no HTTP",
            b"hello, is this the router?\r\n\r\n".to_vec(),
            400,
            "malformed_http",
        ),
        (
            "no header",
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n".to_vec(),
            400,
            "malformed_http",
        ),
        (
            "an unknown version",
            b"GET / HTTP/7.3\r\n\r\n".to_vec(),
            400,
            "malformed_http",
        ),
        (
            "two lengths",
            post(&["content-length: 1"], &good_body()),
            400,
            "malformed_http",
        ),
        (
            "a length that is none",
            request(&format!("POST {CHAT}"), &["content-length: -1"], ""),
            400,
            "malformed_http",
        ),
        (
            "an unknown model",
            post(&[], &unknown_model),
            404,
            "model_not_found",
        ),
        (
            "the workers' control routes",
            request("GET /v1/tailroute", &[], ""),
            404,
            "not_found",
        ),
        (
            "the workers' hints",
            request("POST /v1/tailroute/hints", &["content-length: 2"], "{}"),
            404,
            "not_found",
        ),
        (
            "a wrong method",
            request(&format!("GET {CHAT}"), &[], ""),
            405,
            "method_not_allowed",
        ),
        (
            "a wrong method for models",
            request("DELETE /v1/models", &[], ""),
            405,
            "method_not_allowed",
        ),
        (
            "too large as declared",
            post(&[], &too_large),
            413,
            "body_too_large",
        ),
        (
            "too large in chunks",
            request(&format!("POST {CHAT}"), &["transfer-encoding: chunked"], &chunked),
            413,
            "body_too_large",
        ),
        ("a long target", long(9 * 1024), 414, "uri_too_long"),
        ("a very long target", long(70 * 1024), 414, "uri_too_long"),
        (
            "large headers",
            post(&[&pad_router], &good_body()),
            431,
            "headers_too_large",
        ),
        (
            "huge headers",
            post(&[&pad_hyper], &good_body()),
            431,
            "headers_too_large",
        ),
        ("headers without end", endless_headers(), 431, "headers_too_large"),
        (
            "far too large as declared",
            post(&[], &far_too_large),
            413,
            "body_too_large",
        ),
        (
            "many headers",
            post(&many, &good_body()),
            431,
            "headers_too_large",
        ),
    ];
    let mut all_wrong = Vec::new();
    for (what, bytes, status, code) in table {
        // A client that writes everything before it reads must receive the response.
        let answer = attempt(fleet.address(), &bytes).await;
        let wrong = match &answer {
            Ok(answer) => wrong(answer.as_ref(), status, code),
            Err(error) => Some(error.clone()),
        };
        all_wrong.extend(wrong.map(|wrong| format!("{what}: {wrong}")));
        let good = fleet.chat(&[], &ask("still there?", json!({}))).await;
        assert_eq!(good.status, 200, "after {what}");
    }
    assert!(all_wrong.is_empty(), "{all_wrong:#?}");
    fleet.at_rest().await;
}

#[tokio::test]
async fn an_oversized_content_length_is_rejected_before_the_body() {
    let fleet = fleet().await;
    for fields in [
        &["content-length: 1000000000"][..],
        &["content-length: 1000000000", "expect: 100-continue"],
    ] {
        let answer = exchange(fleet.address(), &request(&format!("POST {CHAT}"), fields, "")).await;
        assert_eq!(
            (answer.status, answer.error_code().as_str()),
            (413, "body_too_large")
        );
    }
}

#[tokio::test]
async fn a_slow_client_gets_a_408_whichever_part_is_late() {
    let fleet = impatient().await;
    let whole = post(&[], &good_body());
    let head = whole.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    for late_from in [1, 20, head - 2, head, head + 1, whole.len() - 1] {
        let mut wire = Wire::connect(fleet.address()).await;
        wire.write(&whole[..late_from]).await;
        let answer = wire.answer().await.expect("an answer");
        assert_eq!(
            wrong(Some(&answer), 408, "request_timeout"),
            None,
            "after {late_from} bytes"
        );
        assert!(wire.closes().await);
    }
    // A later request on a connection that has served one.
    let mut wire = Wire::connect(fleet.address()).await;
    wire.write(&whole).await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
    wire.write(&whole[..20]).await;
    let answer = wire.answer().await.expect("an answer");
    assert_eq!(wrong(Some(&answer), 408, "request_timeout"), None);
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_silent_client_is_disconnected_without_a_response() {
    let fleet = Fleet::start(vec![quick()], |config| config.limits.client_idle_timeout = SOON).await;
    let mut silent = Wire::connect(fleet.address()).await;
    assert!(silent.closes().await);
    let mut idle = Wire::connect(fleet.address()).await;
    idle.write(&post(&[], &good_body())).await;
    assert_eq!(idle.answer().await.unwrap().status, 200);
    assert!(idle.closes().await, "nothing is wrong with being done");
}

#[tokio::test]
async fn a_truncated_body_reaches_no_worker() {
    let fleet = fleet().await;
    let body = good_body();
    let chunk = format!("{:x}\r\n{body}\r\n", body.len());
    for (what, bytes) in [
        ("cut", post(&[], &body)[..130].to_vec()),
        (
            "no last chunk",
            request(&format!("POST {CHAT}"), &["transfer-encoding: chunked"], &chunk),
        ),
        (
            "no chunk's size",
            request(&format!("POST {CHAT}"), &["transfer-encoding: chunked"], "zz\r\n"),
        ),
    ] {
        let mut wire = Wire::connect(fleet.address()).await;
        wire.write(&bytes).await;
        wire.finish_writing().await;
        let answer = wire.answer().await;
        assert_eq!(wrong(answer.as_ref(), 400, "body_cut_short"), None, "{what}");
        fleet.at_rest().await;
    }
    assert_eq!(fleet.received(), [0]);
}

#[tokio::test]
async fn requests_on_one_connection_are_answered_in_order() {
    let fleet = fleet().await;
    let one = post(&[], &good_body());
    let bad = post(&[], "{");
    let mut wire = Wire::connect(fleet.address()).await;
    for bytes in [&one, &bad, &one] {
        wire.write(bytes).await;
        let status = wire.answer().await.unwrap().status;
        assert_eq!(status, if bytes == &bad { 400 } else { 200 });
    }
    wire.write(&[&one[..], &bad, &one].concat()).await;
    for status in [200, 400, 200] {
        assert_eq!(wire.answer().await.unwrap().status, status);
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn over_http2_errors_are_complete_and_the_connection_continues() {
    let fleet = fleet().await;
    let h2 = H2::connect(fleet.address()).await;
    let far_too_large = "x".repeat(8 * MAX_BODY);
    let pad = format!("/{}", "u".repeat(9 * 1024));
    for (path, body, status, code) in [
        (CHAT, "{", 400, "malformed_json"),
        (CHAT, far_too_large.as_str(), 413, "body_too_large"),
        ("/v1/tailroute", "", 404, "not_found"),
        ("/v1/models", "", 405, "method_not_allowed"),
        (pad.as_str(), "", 414, "uri_too_long"),
    ] {
        let answer = h2.post(path, body.to_owned()).await;
        assert_eq!(answer.status(), status, "{code}");
        let bytes = within(answer.into_body().collect()).await.expect(code).to_bytes();
        assert_eq!(code_of(&serde_json::from_slice(&bytes).unwrap()), code);
        assert_eq!(h2.post(CHAT, good_body()).await.status(), 200, "after {code}");
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn an_http_1_0_connection_is_closed_after_the_response() {
    let fleet = fleet().await;
    for (body, status) in [(good_body(), 200), ("{".to_owned(), 400)] {
        let mut wire = Wire::connect(fleet.address()).await;
        let head = format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
        wire.write(&[head.as_bytes(), body.as_bytes()].concat()).await;
        assert_eq!(wire.answer().await.expect("an answer").status, status);
        assert!(wire.closes().await);
    }
}

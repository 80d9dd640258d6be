//! What strangers send: each answered in full, in OpenAI's shape, with the right status.

use std::time::Duration;

use serde_json::json;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::raw::{RawAnswer, Wire, attempt, exchange, request};
use tailroute_e2e::talk::ask;

const MAX_BODY: usize = 256 * 1024;
const MAX_HEAD: usize = 16 * 1024;
const SOON: Duration = Duration::from_millis(50);

/// One engine behind tight limits.
async fn fleet() -> Fleet {
    Fleet::start(vec![quick()], |config| {
        config.limits.max_body_bytes = MAX_BODY.try_into().unwrap();
        config.limits.max_header_bytes = MAX_HEAD.try_into().unwrap();
    })
    .await
}

/// One engine behind a router that does not wait for slow clients.
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

/// What is wrong with an answer that should be this error, if anything.
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
    let many: Vec<String> = (0..600).map(|i| format!("x-{i}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = |count: usize| request(&format!("GET /{}", "u".repeat(count)), &[], "");
    let unknown_model = json!({ "model": "gpt-\"17\"", "messages": [] }).to_string();
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
        (
            "many headers",
            post(&many, &good_body()),
            431,
            "headers_too_large",
        ),
    ];
    let mut all_wrong = Vec::new();
    for (what, bytes, status, code) in table {
        // Whether a client that writes all of it before it reads gets to see the answer.
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

//! The limits of a response that a gateway carries: those of the data port.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::talk::ask;

use crate::gateway::{Gateway, Stream};
use crate::start;

const TOKEN: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"so\"}}]}\n\n";
const SPEECH: &str = "/v1/audio/speech";

/// What the gateway shows of a response, the request's path, and the error that ends it.
const CASES: [(&str, &str, &str, &str); 8] = [
    ("nothing", CHAT, "worker_timeout", "(3 s)"),
    ("head", CHAT, "worker_timeout", "(3 s)"),
    ("comments", CHAT, "worker_timeout", "(3 s)"),
    ("token", CHAT, "worker_timeout", "(1 s)"),
    ("deadline", CHAT, "deadline_exceeded", "deadline"),
    ("nothing", SPEECH, "worker_timeout", "(3 s)"),
    ("comments", SPEECH, "worker_timeout", "(3 s)"),
    ("token", SPEECH, "worker_timeout", "(1 s)"),
];

async fn ends(gateway: &Gateway, (case, path, code, says): (&str, &str, &str, &str)) -> Stream {
    let deadline = [("x-request-timeout-ms", "2000")];
    let fields = if case == "deadline" { &deadline[..] } else { &[] };
    let body = ask("hello", json!({ "input": "hello" })).to_string();
    let mut stream = gateway.open(("POST", path), fields, false, None).await;
    stream.body(body.as_bytes(), true);
    stream.named().await;
    stream.pieces().await;
    if !matches!(case, "nothing" | "deadline") {
        stream.answer(200, "text/event-stream", false, None);
        stream.told().await.unwrap();
    }
    match case {
        "comments" => {
            stream.answer_body(b": ping\n\n", false);
            stream.goes_on(b": ping\n\n").await;
        }
        "token" => {
            stream.answer_body(TOKEN, false);
            stream.goes_on(TOKEN).await;
        }
        _ => {}
    }
    let (status, _, error) = stream.immediate().await;
    let error = error["error"].clone();
    assert_eq!(
        (status, error["code"].as_str()),
        (504, Some(code)),
        "{case} {path}"
    );
    assert!(
        error["message"].as_str().unwrap().contains(says),
        "{case} {path} {error}"
    );
    stream
}

#[tokio::test]
async fn a_picked_request_has_the_limits_of_the_data_port() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.limits.first_byte_timeout = Duration::from_secs(3);
        config.limits.idle_timeout = Duration::from_secs(1);
        config.failure.breaker_failures = 1000;
    })
    .await;
    let streams = join_all(CASES.map(|case| ends(&gateway, case))).await;
    fleet.at_rest().await;
    // Until then the gateway has closed none of them.
    drop(streams);
}

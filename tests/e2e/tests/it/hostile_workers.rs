//! Workers that answer with what is not true: what of it reaches clients, and what is believed.

use bytes::Bytes;
use serde_json::json;
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::route;
use tailroute_e2e::raw::{RawAnswer, Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::Upstream;

const CHUNKED: &str = "transfer-encoding: chunked\r\n";

/// A client's connection on which a chat was asked, and what the worker has answered it with.
async fn answered(router: &Server, worker: &mut Upstream, answer: &str) -> (RawAnswer, Wire) {
    let mut wire = Wire::connect(router.address).await;
    let body = ask("hello", json!({ "max_tokens": 4 })).to_string();
    let length = format!("content-length: {}", body.len());
    let fields = ["content-type: application/json", &*length];
    wire.write(&request(&format!("POST {CHAT}"), &fields, &body))
        .await;
    let mut exchange = worker.next().await;
    exchange.send(answer.as_bytes()).await;
    // Where only the end of the connection ends the body.
    drop(exchange);
    (wire.answer().await.expect("an answer"), wire)
}

#[tokio::test]
async fn a_body_that_is_chunked_and_has_a_length_reaches_the_client_whole_and_without_the_length() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    for (kind, body) in [
        ("application/octet-stream", "ABCDEFGHIJKLMNOPQRST"),
        ("application/json", r#"{"choices":[],"object":"x"}"#),
        ("text/event-stream", "data: {\"choices\":[]}\n\ndata: [DONE]\n\n"),
    ] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 5\r\n{CHUNKED}\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let (answer, _) = answered(&router, &mut worker, &answer).await;
        assert_eq!(String::from_utf8_lossy(&answer.body), body, "{kind}");
        assert!(
            !(answer.headers.contains_key("content-length")
                && answer.headers.contains_key("transfer-encoding")),
            "{kind}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn an_answer_whose_end_can_be_read_in_two_ways_is_a_502() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |config| config.limits.retries = 0).await;
    for fields in [
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 5, 5\r\n",
        "transfer-encoding: gzip\r\n",
        "transfer-encoding: chunked, gzip\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n5\r\nABCDE\r\n0\r\n\r\n");
        let (answer, _) = answered(&router, &mut worker, &answer).await;
        assert_eq!(
            (answer.status, &*answer.error_code()),
            (502, "worker_failed"),
            "{fields}"
        );
    }
    let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nABCDE\r\n0\r\n\r\n";
    let (answer, _) = answered(&router, &mut worker, old).await;
    assert_eq!(answer.status, 502);
}

#[tokio::test]
async fn an_answer_that_has_no_body_takes_none_from_the_next_one() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    for fields in [
        "content-length: 5\r\n",
        CHUNKED,
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
    ] {
        let answer = format!("HTTP/1.1 204 No Content\r\n{fields}\r\n5\r\nABCDE\r\n0\r\n\r\n");
        let (answer, mut wire) = answered(&router, &mut worker, &answer).await;
        assert_eq!(answer.status, 204, "{fields}");
        assert!(answer.body.is_empty());
        assert!(
            !answer.headers.contains_key("content-length"),
            "{fields}: {answer:?}"
        );
        // The client's connection goes on with the next answer and nothing else.
        wire.write(&request("GET /v1/models", &[], "")).await;
        let next = wire.answer().await.expect("the next answer");
        assert_eq!(next.status, 200);
        assert!(next.body.starts_with(b"{"), "{next:?}");
    }
}

#[tokio::test]
async fn what_is_passed_on_unread_is_framed_by_the_same_rules() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |config| config.limits.retries = 0).await;
    for (fields, status) in [
        ("content-length: 5\r\ntransfer-encoding: chunked\r\n", 200),
        ("content-length: 5\r\ncontent-length: 6\r\n", 502),
        ("transfer-encoding: gzip, chunked\r\n", 502),
        ("transfer-encoding: gzip\r\n", 502),
    ] {
        let asked = client::open(router.address, "GET", "/v1/something", &[], Bytes::new());
        let answered = async {
            let mut exchange = worker.next().await;
            let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n14\r\nABCDEFGHIJKLMNOPQRST\r\n0\r\n\r\n");
            exchange.send(answer.as_bytes()).await;
        };
        let (answer, ()) = tokio::join!(asked, answered);
        let answer = answer.unwrap();
        assert_eq!(answer.status, status, "{fields}");
        if status == 200 {
            assert_eq!(answer.header("content-length"), None);
            assert_eq!(answer.whole().await.body, "ABCDEFGHIJKLMNOPQRST");
        }
    }
}

/// What only the router says, as a worker would say it.
const ROUTERS_OWN: &str = "x-tailroute-error: evil\r\nx-tailroute-worker: evil\r\nx-tailroute-decision: evil\r\n\
    x-tailroute-explain: evil\r\nx-tailroute-new: evil\r\nx-ratelimit-limit-tokens: evil\r\nx-ratelimit-new: evil\r\n";

#[tokio::test]
async fn no_worker_speaks_for_the_router_in_headers_or_trailers() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    for path in [CHAT, "/v1/something"] {
        for head in ["200 OK", "400 Bad Request", "503 Service Unavailable"] {
            let body = ask("hello", json!({})).to_string();
            let asked = client::open(router.address, "POST", path, &[("te", "trailers")], body);
            let answered = async {
                let mut exchange = worker.next().await;
                let answer = format!(
                    "HTTP/1.1 {head}\r\n{ROUTERS_OWN}x-engine: kept\r\ntrailer: x-tailroute-error, x-checksum\r\n\
                     {CHUNKED}\r\n2\r\n{{}}\r\n0\r\nx-checksum: 1\r\n{ROUTERS_OWN}\r\n"
                );
                exchange.send(answer.as_bytes()).await;
            };
            let (answer, ()) = tokio::join!(asked, answered);
            let mut answer = answer.unwrap();
            for (name, value) in &answer.headers {
                assert_ne!(value, "evil", "{name} of {path}");
            }
            assert_eq!(answer.header("x-engine"), Some("kept"));
            let trailers = answer.trailers().await;
            assert!(trailers.values().all(|value| value != "evil"), "{trailers:?}");
        }
    }
}

#[tokio::test]
async fn no_client_speaks_for_the_router_to_a_worker() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    let spoken = [
        ("x-tailroute-evict-first-tokens", "1000000"),
        ("x-tailroute-explain", "1"),
        ("x-tailroute-new", "1"),
        ("x-ratelimit-limit-tokens", "1"),
    ];
    for path in [CHAT, "/v1/something"] {
        let body = ask("hello", json!({})).to_string();
        let asked = client::open(router.address, "POST", path, &spoken, body);
        let answered = async {
            let exchange = worker.next().await;
            for (name, _) in spoken {
                assert_eq!(exchange.header(name), None, "{path}");
            }
            exchange.answer("200 OK", "{}").await;
        };
        let (answer, ()) = tokio::join!(asked, answered);
        assert_eq!(answer.unwrap().status, 200);
    }
}

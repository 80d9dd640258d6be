//! Workers with false or invalid responses: the parts that reach clients, and the parts that are believed.

use bytes::Bytes;
use config::Rate;
use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, Whole};
use tailroute_e2e::fleet::{at_rest, metrics, route};
use tailroute_e2e::raw::{RawAnswer, Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::Upstream;

use crate::admission::{bearer, key};

const CHUNKED: &str = "transfer-encoding: chunked\r\n";

/// Sends a chat on a client's connection, and answers it with this. Returns the response and the connection.
async fn answered(router: &Server, worker: &mut Upstream, answer: &str) -> (RawAnswer, Wire) {
    let mut wire = Wire::connect(router.address).await;
    let body = ask("hello", json!({ "max_tokens": 4 })).to_string();
    let length = format!("content-length: {}", body.len());
    let fields = ["content-type: application/json", &*length];
    wire.write(&request(&format!("POST {CHAT}"), &fields, &body))
        .await;
    let mut exchange = worker.next().await;
    exchange.send(answer.as_bytes()).await;
    // The worker closes, in case the close ends the body.
    drop(exchange);
    (wire.answer().await.expect("an answer"), wire)
}

#[tokio::test]
async fn a_chunked_response_with_a_length_is_forwarded_without_the_length() {
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
async fn a_response_with_ambiguous_framing_is_a_502() {
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
async fn a_response_without_a_body_consumes_nothing_of_the_next_one() {
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
        // The client's connection continues with the next response only.
        wire.write(&request("GET /v1/models", &[], "")).await;
        let next = wire.answer().await.expect("the next answer");
        assert_eq!(next.status, 200);
        assert!(next.body.starts_with(b"{"), "{next:?}");
    }
}

#[tokio::test]
async fn responses_that_are_not_parsed_are_framed_by_the_same_rules() {
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

/// Header fields that only the router may set, sent by a worker.
const ROUTERS_OWN: &str = "x-tailroute-error: evil\r\nx-tailroute-worker: evil\r\nx-tailroute-decision: evil\r\n\
    x-tailroute-explain: evil\r\nx-tailroute-new: evil\r\nx-ratelimit-limit-tokens: evil\r\nx-ratelimit-new: evil\r\n";

#[tokio::test]
async fn the_routers_own_headers_of_a_worker_are_removed() {
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
async fn the_routers_own_headers_of_a_client_are_removed() {
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

/// A token count that no response has.
const ABSURD: u64 = u32::MAX as u64;
/// Tokens that a chat template may add to a prompt.
const TEMPLATE: u64 = 1024;

/// A limit of many tokens, of which hardly any come back within a test.
const MANY: Rate = Rate {
    per_s: 1.0,
    burst: 1e6,
};

/// A router with the key `a`, which has a token limit.
async fn bounded(worker: &Upstream, tokens: Rate) -> Server {
    route(&[worker.address], |config| {
        let mut key = key("a");
        key.tokens = Some(tokens);
        config.keys = vec![key];
        // Messages take no salt.
        config.admission.unsalted_messages = true;
    })
    .await
}

/// Sends a request with the key `a`, and answers it with this.
async fn turn(router: &Server, worker: &mut Upstream, (path, body): (&str, &Value), answer: &str) -> Whole {
    let secret = bearer("a");
    let fields = [("authorization", &*secret)];
    let asked = client::open(router.address, "POST", path, &fields, body.to_string());
    let answered = async {
        let exchange = worker.next().await;
        exchange.answer("200 OK", answer).await;
    };
    let (asked, ()) = tokio::join!(asked, answered);
    let whole = asked.unwrap().whole().await;
    at_rest(router).await;
    whole
}

/// Calls the admin port.
async fn admin(router: &Server, method: &str, path: &str, body: &Value) -> Whole {
    let body = Some(body).filter(|body| !body.is_null());
    client::admin(router.admin_address, method, path, &[], body).await
}

/// Returns the tokens that the key `a` has left.
async fn left(router: &Server) -> f64 {
    let keys = admin(router, "GET", "/admin/v1/keys", &json!(null)).await.json();
    assert_eq!(keys["keys"][0]["name"], "a");
    keys["keys"][0]["tokens"]["left"].as_f64().unwrap()
}

#[tokio::test]
async fn reported_usage_is_capped_at_a_plausible_value_in_every_api() {
    let mut worker = Upstream::start().await;
    let router = bounded(&worker, MANY).await;
    let chat = json!({ "model": "sim", "max_tokens": 8, "messages": [{ "role": "user", "content": "hi" }] });
    let openai = json!({ "prompt_tokens": ABSURD, "completion_tokens": ABSURD,
        "prompt_tokens_details": { "cached_tokens": ABSURD } });
    let anthropic =
        json!({ "input_tokens": ABSURD, "output_tokens": ABSURD, "cache_read_input_tokens": ABSURD });
    let responses = json!({ "model": "sim", "max_output_tokens": 8, "input": "hi" });
    let generate = json!({ "text": "hi", "sampling_params": { "max_new_tokens": 8 } });
    for (path, body, answer) in [
        (CHAT, &chat, json!({ "choices": [], "usage": openai })),
        (
            "/v1/completions",
            &json!({ "model": "sim", "max_tokens": 8, "prompt": "hi" }),
            json!({ "choices": [], "usage": openai }),
        ),
        (
            "/v1/messages",
            &chat,
            json!({ "type": "message", "content": [], "usage": anthropic }),
        ),
        (
            "/v1/responses",
            &responses,
            json!({ "id": "r", "status": "completed", "usage": anthropic }),
        ),
        (
            "/generate",
            &generate,
            json!({ "text": "so", "meta_info": openai }),
        ),
    ] {
        let answer = answer.to_string();
        let before = left(&router).await;
        assert_eq!(
            turn(&router, &mut worker, (path, body), &answer).await.status,
            200,
            "{path}"
        );
        let paid = before - left(&router).await;
        let most = body.to_string().len() as u64 + 100 + TEMPLATE + answer.len() as u64;
        assert!(paid > 0.0 && paid <= most as f64, "{path}: {paid} of {most}");
    }
    let page = metrics(&router).await;
    for what in ["prompt", "completion"] {
        assert_eq!(
            page.sum("tailroute_claims_clamped_total", &[("what", what)]),
            5.0,
            "{what}"
        );
    }
    let bound = 1e5;
    for sample in page
        .samples()
        .iter()
        .filter(|sample| sample.name.contains("token"))
    {
        assert!(sample.value < bound, "{sample:?}");
    }
    let decisions = admin(&router, "GET", "/admin/v1/decisions", &json!(null)).await;
    assert!(
        !decisions.text().contains(&ABSURD.to_string()),
        "{}",
        decisions.text()
    );
}

#[tokio::test]
async fn usage_of_a_prompt_with_media_is_capped_at_the_models_context() {
    let listed = r#"{"data":[{"id":"sim","max_model_len":50000}]}"#;
    let mut worker = Upstream::saying(&[("/v1/models", listed)]).await;
    let router = bounded(&worker, MANY).await;
    let image = json!({ "type": "image_url", "image_url": { "url": "http://images.test/1" } });
    let body =
        json!({ "model": "sim", "max_tokens": 1, "messages": [{ "role": "user", "content": [image] }] });
    for (claim, paid) in [(30_000, 30_001.0), (ABSURD, 50_001.0)] {
        let before = left(&router).await;
        let usage = json!({ "prompt_tokens": claim, "completion_tokens": 1 });
        let answer = json!({ "choices": [], "usage": usage }).to_string();
        turn(&router, &mut worker, (CHAT, &body), &answer).await;
        let took = before - left(&router).await;
        // Some are refilled in the meantime.
        assert!((paid - 10_000.0..=paid).contains(&took), "{took} of {paid}");
    }
}

#[tokio::test]
async fn reported_usage_blocks_a_key_for_at_most_an_hour_and_can_be_reset() {
    let mut worker = Upstream::start().await;
    let a_minute = Rate {
        per_s: 1000.0 / 60.0,
        burst: 1000.0,
    };
    let router = bounded(&worker, a_minute).await;
    let body = json!({ "model": "sim", "messages": [{ "role": "user", "content": "hi" }] });
    let usage = json!({ "prompt_tokens": ABSURD, "completion_tokens": ABSURD });
    let answer = json!({ "choices": [], "usage": usage }).to_string();
    turn(&router, &mut worker, (CHAT, &body), &answer).await;
    let secret = bearer("a");
    let fields = [("authorization", &*secret)];
    let refused = client::call(router.address, "POST", CHAT, &fields, body.to_string()).await;
    assert_eq!(
        (refused.status.as_u16(), &*refused.error_code()),
        (429, "rate_limit_exceeded")
    );
    let wait: f64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((3000.0..=3661.0).contains(&wait), "{wait}");
    assert!(left(&router).await < 0.0);

    let reset = "/admin/v1/keys/a/reset";
    let missing = admin(
        &router,
        "POST",
        "/admin/v1/keys/nobody/reset",
        &json!({ "reason": "x" }),
    )
    .await;
    assert_eq!(missing.status, 404);
    assert_eq!(
        admin(&router, "POST", reset, &json!({})).await.status,
        422,
        "a reason is asked for"
    );
    let done = admin(&router, "POST", reset, &json!({ "reason": "a broken engine" })).await;
    assert_eq!(
        (done.status.as_u16(), done.json()["tokens"]["left"].as_f64()),
        (200, Some(1000.0))
    );
    let audit = admin(&router, "GET", "/admin/v1/audit", &json!(null))
        .await
        .json();
    let entry = &audit["entries"][0];
    assert_eq!(
        (&entry["action"], &entry["target"]),
        (&json!("keys.reset"), &json!("a")),
        "{audit}"
    );
    assert!(
        entry["before"]["tokens"]["left"].as_f64().unwrap() < 0.0,
        "{entry}"
    );
    let served = turn(&router, &mut worker, (CHAT, &body), r#"{"choices":[]}"#).await;
    assert_eq!(served.status, 200);
}

#[tokio::test]
async fn implausible_engine_times_are_capped() {
    let mut worker = Upstream::start().await;
    let router = bounded(&worker, MANY).await;
    let body = json!({ "model": "sim", "messages": [{ "role": "user", "content": "hi" }] });
    let times = json!({ "time_to_first_token_ms": 1e300, "queue_time_ms": 0 });
    let answer = json!({ "choices": [], "metrics": times }).to_string();
    turn(&router, &mut worker, (CHAT, &body), &answer).await;
    let page = metrics(&router).await;
    assert_eq!(
        page.sum("tailroute_claims_clamped_total", &[("what", "times")]),
        1.0
    );
}

//! Bounds that hold for any client: the charge of a key for responses without usage, a worker's concurrent requests
//! under any name, and slots that slow senders and readers cannot hold.

use std::net::SocketAddr;
use std::time::Duration;

use config::{Config, Key, Rate};
use http_body_util::BodyExt as _;
use serde_json::json;
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, H2, Whole};
use tailroute_e2e::fleet::{Fleet, at_rest, quick, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::{Exchange, Upstream};
use tailroute_e2e::wait::{until, until_at_gate, within};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;

use crate::admission::{bearer, key};

const TOKEN: &str = r#"{"choices":[{"index":0,"delta":{"content":" token"}}]}"#;

/// Sets a limit of a thousand tokens for the key, without a refill during the test.
fn a_thousand(config: &mut Config) {
    let tokens = Some(Rate {
        per_s: 1e-6,
        burst: 1_000.0,
    });
    config.keys = vec![Key { tokens, ..key("a") }];
    config.health.queue_interval = None;
}

fn one_at_a_time(config: &mut Config) {
    config.admission.max_concurrent_per_worker = std::num::NonZeroU32::new(1);
    config.health.queue_interval = None;
}

async fn left(address: SocketAddr) -> i64 {
    let bearer = bearer("a");
    let answer = client::call(address, "GET", "/v1/models", &[("authorization", &bearer)], "").await;
    let left = answer.header("x-ratelimit-remaining-tokens").unwrap();
    left.parse().unwrap()
}

fn post(address: SocketAddr, path: &'static str, body: String) -> JoinHandle<Result<client::Answer, String>> {
    let bearer = bearer("a");
    tokio::spawn(
        async move { client::open(address, "POST", path, &[("authorization", &bearer)], body).await },
    )
}

async fn tokens(exchange: &mut Exchange, count: usize) {
    for _ in 0..count {
        exchange.chunk(format!("data: {TOKEN}\n\n").as_bytes()).await;
    }
}

#[tokio::test]
async fn a_stream_without_usage_is_charged_by_its_events() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], a_thousand).await;
    let answer = post(
        router.address,
        CHAT,
        ask("hi", json!({ "stream": true })).to_string(),
    );
    let mut exchange = upstream.next().await;
    exchange.begin_events().await;
    tokens(&mut exchange, 300).await;
    exchange.chunk(b"data: [DONE]\n\n").await;
    exchange.end().await;
    assert!(answer.await.unwrap().unwrap().whole().await.clean);
    at_rest(&router).await;
    let left = left(router.address).await;
    assert!((400..=700).contains(&left), "{left} of 1000 after 300 tokens");
}

#[tokio::test]
async fn several_choices_are_all_charged() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], a_thousand).await;
    let answer = post(
        router.address,
        CHAT,
        ask("hi", json!({ "stream": true, "n": 2 })).to_string(),
    );
    let mut exchange = upstream.next().await;
    exchange.begin_events().await;
    for _ in 0..100 {
        tokens(&mut exchange, 1).await;
        let other = TOKEN.replace(r#""index":0"#, r#""index":1"#);
        exchange.chunk(format!("data: {other}\n\n").as_bytes()).await;
    }
    exchange.chunk(b"data: [DONE]\n\n").await;
    exchange.end().await;
    assert!(answer.await.unwrap().unwrap().whole().await.clean);
    at_rest(&router).await;
    let left = left(router.address).await;
    assert!((500..=800).contains(&left), "{left} of 1000 after 200 tokens");
}

#[tokio::test]
async fn a_disconnected_client_is_charged_for_the_chunks_received() {
    let mut paid = Vec::new();
    for count in [1, 41, 300] {
        let mut upstream = Upstream::start().await;
        let router = route(&[upstream.address], a_thousand).await;
        let answer = post(
            router.address,
            CHAT,
            ask("hi", json!({ "stream": true })).to_string(),
        );
        let mut exchange = upstream.next().await;
        exchange.begin_events().await;
        let mut answer = answer.await.unwrap().unwrap();
        for _ in 0..count {
            tokens(&mut exchange, 1).await;
            // With its event's framing, each piece is longer than its text.
            answer.bytes(TOKEN.len()).await;
        }
        drop(answer);
        exchange.hung_up().await;
        at_rest(&router).await;
        paid.push(1_000 - left(router.address).await);
    }
    let [one, few, many] = paid[..] else {
        unreachable!()
    };
    assert!(
        (40..=80).contains(&(few - one)),
        "{paid:?} for 1, 41 and 300 tokens"
    );
    assert!((299..=600).contains(&(many - one)), "{paid:?}");
}

#[tokio::test]
async fn an_unparsable_response_is_charged_by_its_bytes() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], a_thousand).await;
    let answer = post(router.address, CHAT, ask("hi", json!({})).to_string());
    let mut exchange = upstream.next().await;
    let fields = "content-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 2000\r\n";
    let head = format!("HTTP/1.1 200 OK\r\n{fields}connection: close\r\n\r\n");
    exchange.send(head.as_bytes()).await;
    exchange.send(&[b'z'; 2000]).await;
    assert_eq!(answer.await.unwrap().unwrap().whole().await.body.len(), 2000);
    at_rest(&router).await;
    let left = left(router.address).await;
    assert!((300..=800).contains(&left), "{left} of 1000 after 2000 bytes");
}

#[tokio::test]
async fn unparsable_prompts_are_charged() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], a_thousand).await;
    let several = json!({ "model": "sim", "prompt": [words(1, 100), words(2, 100)], "stream": true });
    let batch = json!({ "text": [words(3, 100), words(4, 100)] });
    for (path, body) in [("/v1/completions", several), ("/generate", batch)] {
        let before = left(router.address).await;
        let answer = post(router.address, path, body.to_string());
        let exchange = upstream.next().await;
        let after = left(router.address).await;
        assert!(
            (200..=500).contains(&(before - after)),
            "{path}: {before} to {after}"
        );
        exchange.answer("400 Bad Request", "{}").await;
        assert_eq!(answer.await.unwrap().unwrap().whole().await.status, 400);
        at_rest(&router).await;
        assert_eq!(left(router.address).await, before, "the worker did nothing");
    }
}

#[tokio::test]
async fn a_request_that_ends_in_the_queue_is_not_charged() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        a_thousand(config);
        one_at_a_time(config);
    })
    .await;
    let (address, parts) = (router.address, router.parts().clone());
    let first = post(address, CHAT, ask("hi", json!({})).to_string());
    let exchange = upstream.next().await;
    let before = left(address).await;
    let body = ask(&words(1, 300), json!({})).to_string();
    let bearer = bearer("a");
    let headers = [("authorization", &*bearer), ("x-request-timeout-ms", "50")];
    let late = client::open(address, "POST", CHAT, &headers, body.clone()).await;
    let late: Whole = late.unwrap().whole().await;
    assert_eq!(
        (late.status.as_u16(), late.error_code().as_str()),
        (504, "deadline_exceeded")
    );
    assert_eq!(left(address).await, before, "nothing was sent");
    let leaver = post(address, CHAT, body);
    until_at_gate(&parts.proxy.admission.gate, 1, 1).await;
    assert!(left(address).await < before - 200, "charged while it waits");
    leaver.abort();
    until_at_gate(&parts.proxy.admission.gate, 0, 1).await;
    until("it is back", || parts.proxy.in_flight() == 1).await;
    assert_eq!(left(address).await, before, "nothing was sent");
    exchange.answer("200 OK", "{}").await;
    assert_eq!(first.await.unwrap().unwrap().whole().await.status, 200);
}

#[tokio::test]
async fn a_request_past_its_own_deadline_at_the_worker_is_charged() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], a_thousand).await;
    let body = ask(&words(1, 300), json!({})).to_string();
    let bearer = bearer("a");
    let headers = [("authorization", &*bearer), ("x-request-timeout-ms", "2000")];
    let late = client::open(router.address, "POST", CHAT, &headers, body).await;
    assert_eq!(late.unwrap().whole().await.status, 504);
    let _exchange = upstream.next().await;
    at_rest(&router).await;
    let left = left(router.address).await;
    assert!(
        left < 800,
        "{left} of 1000: the worker may have computed all of it"
    );
}

async fn waits(router: &Server, waiting: usize, inside: usize) {
    let parts = router.parts();
    until("it waits", || {
        parts.proxy.admission.gate.counts()
            == metrics::AdmissionGauges {
                waiting,
                admitted: inside,
            }
    })
    .await;
}

/// Returns the next chat request. A router of another test may query a port that was its worker's.
async fn chat(upstream: &mut Upstream) -> Exchange {
    loop {
        let exchange = upstream.next().await;
        if exchange.head.contains(CHAT) {
            return exchange;
        }
    }
}

#[tokio::test]
async fn the_concurrency_limit_of_a_worker_holds_for_any_model_name() {
    let mut upstreams = [Upstream::start().await, Upstream::start().await];
    let addresses = upstreams.each_ref().map(|upstream| upstream.address);
    let router = route(&addresses, |config| {
        one_at_a_time(config);
        config.workers[0].models = vec!["m".to_owned(), "also-m".to_owned()];
        config.workers[1].models = vec!["n".to_owned()];
    })
    .await;
    let ask_for = |model: &str| {
        let mut body = ask("hi", json!({}));
        match model {
            "" => drop(body.as_object_mut().unwrap().remove("model")),
            model => body["model"] = model.into(),
        }
        post(router.address, CHAT, body.to_string())
    };
    let mut sent = vec![ask_for("m")];
    let at_m = chat(&mut upstreams[0]).await;
    sent.push(ask_for("also-m"));
    waits(&router, 1, 1).await;
    sent.push(ask_for("n"));
    let at_n = chat(&mut upstreams[1]).await;
    sent.push(ask_for(""));
    waits(&router, 2, 2).await;
    assert!(!upstreams[0].has_more() && !upstreams[1].has_more());
    at_n.answer("200 OK", "{}").await;
    chat(&mut upstreams[1]).await.answer("200 OK", "{}").await;
    at_m.answer("200 OK", "{}").await;
    chat(&mut upstreams[0]).await.answer("200 OK", "{}").await;
    for answer in sent {
        assert_eq!(answer.await.unwrap().unwrap().whole().await.status, 200);
    }
    waits(&router, 0, 0).await;
}

/// Sends part of a body, and waits until the router has begun to read it.
async fn slow_body(address: SocketAddr, length: usize, first: &[u8]) -> Wire {
    let mut wire = Wire::connect(address).await;
    let length = format!("content-length: {length}");
    let head = request(&format!("POST {CHAT}"), &[&length, "expect: 100-continue"], "");
    wire.write(&head).await;
    wire.read_past(b"100 Continue\r\n\r\n").await;
    wire.write(first).await;
    wire
}

#[tokio::test]
async fn slow_bodies_take_no_slot() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.max_in_flight = 2.try_into().unwrap();
    })
    .await;
    let body = ask("hi", json!({})).to_string();
    let mut slow = Vec::new();
    for _ in 0..4 {
        slow.push(slow_body(fleet.address(), body.len(), &body.as_bytes()[..1]).await);
    }
    assert_eq!(fleet.chat(&[], &ask("hi", json!({}))).await.status, 200);
    for mut wire in slow {
        wire.write(&body.as_bytes()[1..]).await;
        assert_eq!(wire.answer().await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_slot_is_free_once_its_response_is_complete() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.max_in_flight = 1.try_into().unwrap();
    })
    .await;
    for turn in 0..100 {
        // Each on its own connection, so that only the responses order them.
        let body = ask("hi", json!({ "stream": turn % 2 == 0, "max_tokens": 3 }));
        assert_eq!(fleet.chat(&[], &body).await.status, 200, "turn {turn}");
    }
}

#[tokio::test]
async fn buffered_bodies_share_one_bound() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.max_unread_bytes = 3_000.try_into().unwrap();
    })
    .await;
    let body = ask(&words(1, 300), json!({ "max_tokens": 1 }));
    let long = format!("{:<2500}", body.to_string());
    let mut slow = slow_body(fleet.address(), long.len(), &long.as_bytes()[..2_400]).await;
    let refused = within(async {
        loop {
            let answer = fleet.chat(&[], &body).await;
            if answer.status != 200 {
                return answer;
            }
        }
    })
    .await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code().as_str()),
        (503, "overloaded")
    );
    slow.write(&long.as_bytes()[2_400..]).await;
    assert_eq!(slow.answer().await.unwrap().status, 200);
    assert_eq!(fleet.chat(&[], &body).await.status, 200);
}

/// Sends events as fast as they are accepted, until the router disconnects.
async fn flood(mut exchange: Exchange) {
    exchange.begin_events().await;
    let mut worker = exchange.into_stream();
    let event = format!("data: {}\n\n", TOKEN.replace("token", &"x".repeat(60_000)));
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    within(async { while worker.write_all(chunk.as_bytes()).await.is_ok() {} }).await;
}

fn soon_idle(config: &mut Config) {
    config.limits.idle_timeout = Duration::from_secs(2);
}

fn soon_over(config: &mut Config) {
    config.failure.total_timeout = Some(Duration::from_secs(2));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_dropped_and_its_worker_freed() {
    for tweak in [soon_idle, soon_over] {
        let mut upstream = Upstream::start().await;
        let router = route(&[upstream.address], tweak).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = within(socket.connect(router.address)).await.unwrap();
        let body = ask("hi", json!({ "stream": true })).to_string();
        let length = format!("content-length: {}", body.len());
        let asked = request(&format!("POST {CHAT}"), &[&length], &body);
        client.write_all(&asked).await.unwrap();
        flood(upstream.next().await).await;
        at_rest(&router).await;
    }
}

#[tokio::test]
async fn an_unread_http_2_stream_is_dropped_and_the_others_continue() {
    for tweak in [soon_idle, soon_over] {
        let mut upstream = Upstream::start().await;
        let router = route(&[upstream.address], tweak).await;
        let client = H2::connect(router.address).await;
        let body = ask("hi", json!({ "stream": true })).to_string();
        let (unread, ()) = tokio::join!(client.post(CHAT, body.clone()), async {
            flood(upstream.next().await).await;
        });
        at_rest(&router).await;
        assert!(
            unread.into_body().collect().await.is_err(),
            "it does not look whole"
        );
        let (read, ()) = tokio::join!(client.post(CHAT, body), async {
            let mut exchange = upstream.next().await;
            exchange.begin_events().await;
            exchange.chunk(b"data: [DONE]\n\n").await;
            exchange.end().await;
        });
        let read = read.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(read, "data: [DONE]\n\n");
    }
}

//! Exchanges with workers that end before both messages are whole, and what requests announce to workers.

use std::time::Duration;

use tailroute_e2e::fleet::{at_rest, configured, metrics, route};
use tailroute_e2e::raw::{RawAnswer, Wire, request};
use tailroute_e2e::upstream::{Exchange, Upstream};
use tailroute_e2e::wait::{PATIENCE, until};
use tokio::net::TcpListener;

/// A request whose body is passed on while it comes.
const UPLOAD: &str = "POST /v1/files/f/parts";
const NOT_FOUND: &[u8] =
    b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
const NO_CONTENT: &[u8] = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
/// A request to an endpoint that the router blocks.
const EVIL: &str = "POST /reset_prefix_cache HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
const UPGRADE: [&str; 4] = [
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
];

fn upgrade(fields: &[&str], body: &str) -> Vec<u8> {
    request("GET /v1/x", &[&UPGRADE[..], fields].concat(), body)
}

fn upload(fields: &[&str], body: &str) -> Vec<u8> {
    request(UPLOAD, fields, body)
}

/// Sends a request that a worker answers with 200. Returns what arrived there, on a connection other than `held`.
async fn arrives(upstream: &mut Upstream, client: &mut Wire, bytes: &[u8]) -> Exchange {
    client.write(bytes).await;
    let mut exchange = upstream.next().await;
    exchange.send(OK).await;
    assert_eq!(answer(client).await.status, 200);
    exchange
}

async fn answer(client: &mut Wire) -> RawAnswer {
    client.answer().await.expect("an answer")
}

#[tokio::test]
async fn an_upgrade_announces_no_body_and_one_that_is_refused_ends_its_connection() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    for fields in [&[][..], &["content-length: 0"]] {
        let mut client = Wire::connect(router.address).await;
        client.write(&upgrade(fields, "")).await;
        let mut asked = upstream.next().await;
        for field in ["content-length", "transfer-encoding", "expect", "trailer"] {
            assert_eq!(asked.header(field), None, "{field}");
        }
        assert_eq!(asked.header("upgrade"), Some("websocket"));
        asked.send(NOT_FOUND).await;
        assert_eq!(answer(&mut client).await.status, 404);
        // The next request comes on another connection, and this one is closed.
        let length = format!("content-length: {}", EVIL.len());
        let next = arrives(&mut upstream, &mut client, &upload(&[&length], EVIL)).await;
        assert_eq!(next.body, EVIL.as_bytes());
        asked.hung_up().await;
    }
    at_rest(&router).await;
}

#[tokio::test]
async fn an_upgrade_with_a_body_is_refused_before_a_worker_sees_it() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let length = format!("content-length: {}", EVIL.len());
    let chunks = format!("{:x}\r\n{EVIL}\r\n0\r\n\r\n", EVIL.len());
    for bytes in [
        upgrade(&[&length], EVIL),
        upgrade(&[&length], ""),
        upgrade(&["transfer-encoding: chunked"], &chunks),
        upgrade(&["transfer-encoding: chunked"], "0\r\n\r\n"),
    ] {
        let mut client = Wire::connect(router.address).await;
        client.write(&bytes).await;
        let refused = answer(&mut client).await;
        assert_eq!(
            (refused.status, &*refused.error_code()),
            (400, "upgrade_with_body")
        );
        assert!(client.closes().await, "the body is no request");
    }
    assert!(!upstream.has_more());
    at_rest(&router).await;
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_ends_its_connection() {
    let mut upstream = Upstream::start().await;
    upstream.hands_over_early();
    let router = route(&[upstream.address], |_| {}).await;
    let mut client = Wire::connect(router.address).await;
    let length = format!("content-length: {}", 2 * EVIL.len());
    client.write(&upload(&[&length], EVIL)).await;
    let mut early = upstream.next().await;
    early.send(NOT_FOUND).await;
    assert_eq!(answer(&mut client).await.status, 404);
    // The rest of the body goes to the same worker, and then nothing more.
    client.write(EVIL.as_bytes()).await;
    let mut other = Wire::connect(router.address).await;
    let next = arrives(&mut upstream, &mut other, &request("GET /v1/files/f", &[], "")).await;
    assert!(next.head.starts_with("GET /v1/files/f HTTP/1.1\r\n"));
    early.read_to_end().await;
    assert_eq!(early.body, EVIL.repeat(2).as_bytes());
    at_rest(&router).await;
}

#[tokio::test]
async fn a_client_that_leaves_within_its_body_ends_the_workers_connection() {
    let mut upstream = Upstream::start().await;
    upstream.hands_over_early();
    let router = route(&[upstream.address], |_| {}).await;
    for fields in [&["content-length: 100000"][..], &["transfer-encoding: chunked"]] {
        let body = if fields[0].starts_with("content") {
            EVIL.to_owned()
        } else {
            format!("{:x}\r\n{EVIL}\r\n", EVIL.len())
        };
        let mut client = Wire::connect(router.address).await;
        client.write(&upload(fields, &body)).await;
        let mut left = upstream.next().await;
        drop(client);
        let mut other = Wire::connect(router.address).await;
        arrives(&mut upstream, &mut other, &request("GET /v1/files/f", &[], "")).await;
        left.read_to_end().await;
        assert!(
            body.as_bytes().starts_with(&left.body),
            "a part, and no end of the body"
        );
    }
    at_rest(&router).await;
}

#[tokio::test]
async fn a_switch_of_protocols_that_was_not_asked_for_is_a_failure() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let mut client = Wire::connect(router.address).await;
    client.write(&request("GET /v1/files/f", &[], "")).await;
    let mut exchange = upstream.next().await;
    exchange
        .send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    assert_eq!(answer(&mut client).await.error_code(), "worker_failed");
    exchange.hung_up().await;
    // Another protocol than the one asked for is no WebSocket.
    client.write(&upgrade(&[], "")).await;
    let mut exchange = upstream.next().await;
    exchange
        .send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n")
        .await;
    assert_eq!(answer(&mut client).await.error_code(), "worker_failed");
    exchange.hung_up().await;
    at_rest(&router).await;
}

#[tokio::test]
async fn a_body_is_announced_as_it_is_sent_whatever_the_method() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let mut client = Wire::connect(router.address).await;
    let sized = format!("content-length: {}", EVIL.len());
    let chunks = format!("{:x}\r\n{EVIL}\r\n0\r\n\r\n", EVIL.len());
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let line = format!("{method} /v1/files/f");
        let has_meaning = ["POST", "PUT", "PATCH"].contains(&method);
        for fields in [&[][..], &["content-length: 0"]] {
            client.write(&request(&line, fields, "")).await;
            let mut bare = upstream.next().await;
            assert_eq!(
                bare.header("content-length"),
                has_meaning.then_some("0"),
                "{method}"
            );
            assert_eq!(bare.header("transfer-encoding"), None, "{method}");
            bare.send(NO_CONTENT).await;
            assert_eq!(answer(&mut client).await.status, 204);
        }
        client.write(&request(&line, &[&sized], EVIL)).await;
        let mut whole = upstream.next().await;
        assert_eq!(whole.body, EVIL.as_bytes(), "{method}");
        whole.send(NO_CONTENT).await;
        assert_eq!(answer(&mut client).await.status, 204);
        client
            .write(&request(&line, &["transfer-encoding: chunked"], &chunks))
            .await;
        let mut streamed = upstream.next().await;
        assert_eq!(streamed.header("transfer-encoding"), Some("chunked"), "{method}");
        assert_eq!(streamed.header("content-length"), None, "{method}");
        streamed.read_to(chunks.len()).await;
        assert_eq!(streamed.body, chunks.as_bytes(), "{method}");
        streamed.send(NO_CONTENT).await;
        assert_eq!(answer(&mut client).await.status, 204);
    }
    at_rest(&router).await;
}

#[tokio::test]
async fn a_request_that_has_passed_the_router_before_is_refused() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let mut client = Wire::connect(router.address).await;
    let other = "via: 1.1 tailroute, 1.1 tailroute-0000000000000000";
    let passed = arrives(
        &mut upstream,
        &mut client,
        &request("GET /v1/files/f", &[other], ""),
    )
    .await;
    let mut fields = passed.head.lines().filter_map(|line| line.split_once(": "));
    let own = fields.rfind(|(name, _)| name.eq_ignore_ascii_case("via"));
    let own = format!("via: {}", own.expect("the router names itself").1);
    for line in ["GET /v1/files/f", "GET /v1/models", "POST /v1/chat/completions"] {
        client.write(&request(line, &[other, &own], "")).await;
        let refused = answer(&mut client).await;
        assert_eq!((refused.status, &*refused.error_code()), (508, "loop_detected"));
    }
    assert!(!upstream.has_more());
    at_rest(&router).await;
}

#[tokio::test]
async fn a_router_that_is_its_own_worker_says_so_and_costs_one_request_per_probe() {
    let upstream = Upstream::start().await;
    let own = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let mut config = configured(&[upstream.address, own]);
    config.server.listen = own;
    config.health.interval = Duration::from_millis(20);
    config.health.timeout = PATIENCE;
    config.health.queue_interval = None;
    let interval = config.health.interval;
    let began = std::time::Instant::now();
    let router = tailroute::serve::Server::start(config).await.unwrap();
    router.wait_ready(PATIENCE).await;
    // With its only engine gone, nothing else would end the round of a probe.
    drop(upstream);
    let worker = router.parts().state.routing.fleet.workers()[1].clone();
    until("the worker is named as a loop", || {
        worker
            .failing()
            .is_some_and(|failure| failure.error.contains("leads back"))
    })
    .await;
    let mut requests = 0.0;
    while requests < 5.0 {
        requests = metrics(&router).await.sum("tailroute_requests_total", &[]);
    }
    let probes = began.elapsed().as_secs_f64() / interval.as_secs_f64() + 2.0;
    assert!(requests <= probes, "{requests} requests for {probes} probes");
    assert!(!worker.is_well());
}

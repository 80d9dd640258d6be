//! Graceful shutdown: requests in flight finish, new ones are not accepted, and at the limit the rest is cut.

use std::time::Duration;

use serde_json::json;
use tailroute_e2e::client::{self, CHAT, code_of, events};
use tailroute_e2e::fleet::{Fleet, quick, route, stuck_in_decode, stuck_in_prefill};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};
use tokio::net::TcpStream;

async fn refuses(address: std::net::SocketAddr) {
    within(async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A drain has to last as long as the longest stream:
/// <https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/548>.
#[tokio::test]
async fn a_stream_in_flight_finishes_while_new_connections_are_refused() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let (address, admin) = (router.address, router.admin_address);
    let body = ask("hello", json!({ "stream": true })).to_string();
    let respond = async {
        let mut exchange = upstream.next().await;
        exchange.begin_events().await;
        exchange
    };
    let (answer, mut exchange) = tokio::join!(client::open(address, "POST", CHAT, &[], body), respond);
    let mut answer = answer.unwrap();
    assert_eq!(client::call(admin, "GET", "/readyz", &[], "").await.status, 200);

    let draining = tokio::spawn(router.drain());
    refuses(address).await;
    assert_eq!(client::call(admin, "GET", "/readyz", &[], "").await.status, 503);
    assert_eq!(client::call(admin, "GET", "/livez", &[], "").await.status, 200);
    for _ in 0..3 {
        exchange.chunk(b"data: 1\n\n").await;
        assert_eq!(answer.bytes(9).await, b"data: 1\n\n");
    }
    assert!(!draining.is_finished());
    exchange.chunk(b"data: [DONE]\n\n").await;
    exchange.end().await;
    let answer = answer.whole().await;
    assert!(answer.clean && answer.body == "data: [DONE]\n\n");
    assert_eq!(within(draining).await.unwrap(), 0, "nothing was cut");
    refuses(admin).await;
}

#[tokio::test]
async fn connections_are_accepted_during_the_drain_delay() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.drain_delay = Duration::from_secs(3);
    })
    .await;
    let (address, admin) = (fleet.address(), fleet.router.admin_address);
    let body = ask("hello", json!({})).to_string();
    let lasting = client::H2::connect(address).await;
    let draining = tokio::spawn(fleet.router.drain());
    within(async {
        while client::call(admin, "GET", "/readyz", &[], "").await.status != 503 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let answer = client::call(address, "POST", CHAT, &[], body.clone()).await;
    assert_eq!(answer.status, 200, "a new connection is taken");
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(lasting.post(CHAT, body).await.status(), 200);
    refuses(address).await;
    assert_eq!(within(draining).await.unwrap(), 0);
}

#[tokio::test]
async fn idle_connections_do_not_delay_a_drain() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.drain_timeout = Duration::from_secs(3600);
    })
    .await;
    let body = ask("hello", json!({})).to_string();
    let length = format!("content-length: {}", body.len());
    let mut served = Wire::connect(fleet.address()).await;
    served
        .write(&request(&format!("POST {CHAT}"), &[&length], &body))
        .await;
    assert_eq!(served.answer().await.unwrap().status, 200);
    let mut fresh = Wire::connect(fleet.address()).await;
    let h2 = client::H2::connect(fleet.address()).await;
    // Neither client closes before the router does.
    assert_eq!(within(fleet.router.drain()).await, 0);
    assert!(served.closes().await && fresh.closes().await);
    drop(h2);
}

#[tokio::test]
async fn a_request_in_flight_on_a_keep_alive_connection_is_its_last() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let address = router.address;
    let body = ask("hello", json!({})).to_string();
    let length = format!("content-length: {}", body.len());
    let one = request(&format!("POST {CHAT}"), &[&length], &body);
    let mut wire = Wire::connect(address).await;
    wire.write(&one).await;
    let exchange = upstream.next().await;
    let draining = tokio::spawn(router.drain());
    refuses(address).await;
    exchange.answer("200 OK", "{}").await;
    let answer = wire.answer().await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.headers.get("connection").map(String::as_str),
        Some("close")
    );
    assert!(wire.closes().await);
    assert_eq!(within(draining).await.unwrap(), 0);
}

/// The response's head was sent before the drain, and its client may send the next request just when it ends.
#[tokio::test]
async fn a_stream_begun_before_a_drain_is_followed_by_one_last_request() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let address = router.address;
    let ask = |extra| {
        let body = ask("hello", extra).to_string();
        let length = format!("content-length: {}", body.len());
        request(&format!("POST {CHAT}"), &[&length], &body)
    };
    let mut wire = Wire::connect(address).await;
    wire.write(&ask(json!({ "stream": true }))).await;
    let mut stream = upstream.next().await;
    stream.begin_events().await;
    wire.read_past(b"\r\n\r\n").await;
    let draining = tokio::spawn(router.drain());
    refuses(address).await;
    // Longer than an unused connection is left open.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    stream.chunk(b"data: [DONE]\n\n").await;
    stream.end().await;
    wire.read_past(b"0\r\n\r\n").await;
    wire.write(&ask(json!({}))).await;
    upstream.next().await.answer("200 OK", "{}").await;
    let answer = wire.answer().await.expect("it was taken");
    assert_eq!(answer.headers["connection"], "close");
    assert!(wire.closes().await);
    assert_eq!(within(draining).await.unwrap(), 0);
}

#[tokio::test]
async fn at_the_drain_limit_remaining_requests_are_cut_and_counted() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |config| {
        config.limits.drain_timeout = Duration::from_millis(50);
    })
    .await;
    let body = ask("hello", json!({ "stream": true }));
    let mut answers = Vec::new();
    for _ in 0..3 {
        let mut answer = fleet.open(&[], &body).await;
        answer.chunk().await.unwrap().unwrap();
        answers.push(answer);
    }
    let parts = std::sync::Arc::clone(fleet.router.parts());
    assert_eq!(within(fleet.router.drain()).await, 3);
    for answer in answers {
        let answer = answer.whole().await;
        assert!(!answer.clean, "what was cut must not look complete");
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        let last = text.trim_end().rsplit("data: ").next().unwrap();
        let error: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(error["error"]["code"], "draining");
    }
    until("nothing in flight", || parts.proxy.in_flight() == 0).await;
    within(fleet.engines[0].stats_when(|stats| stats.aborted.decode == 3)).await;
}

/// A stream as engines send it, with characters of one to four bytes, raw and escaped.
const STREAM: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" é漢🙂\\ud83d\\ude42\"},\"logprobs\":-1.5e-3}]}\n\n",
    "data: [DONE]\n\n",
);

/// Checks what a client reads of a cut stream: complete JSON events, the last of which reports the drain.
fn says_draining(body: &[u8], cut: usize) {
    let events = events(body);
    let last = events.last().unwrap();
    assert_eq!(code_of(last), "draining", "cut at {cut}");
    for event in &events {
        assert!(
            event.is_object() || *event == json!("[DONE]"),
            "cut at {cut}: {event}"
        );
    }
}

#[tokio::test]
async fn a_stream_cut_at_any_byte_ends_with_a_readable_error_event() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        config.limits.drain_timeout = Duration::from_millis(50);
    })
    .await;
    let body = ask("hello", json!({ "stream": true })).to_string();
    let mut open = Vec::new();
    for cut in 1..=STREAM.len() {
        let request = client::open(router.address, "POST", CHAT, &[], body.clone());
        let respond = async {
            let mut exchange = upstream.next().await;
            exchange.begin_events().await;
            exchange.chunk(&STREAM.as_bytes()[..cut]).await;
            exchange
        };
        let (answer, exchange) = tokio::join!(request, respond);
        let mut answer = answer.unwrap();
        // Everything before the cut was sent, whatever part of an event it is.
        let seen = answer.bytes(cut).await;
        assert_eq!(seen, &STREAM.as_bytes()[..cut]);
        open.push((answer, exchange, seen));
    }
    assert_eq!(within(router.drain()).await, STREAM.len());
    for (cut, (answer, _exchange, mut seen)) in (1..).zip(open) {
        let rest = answer.whole().await;
        assert!(!rest.clean, "what was cut must not look complete");
        seen.extend_from_slice(&rest.body);
        says_draining(&seen, cut);
    }
}

#[tokio::test]
async fn a_request_without_a_response_at_the_drain_limit_gets_a_503() {
    let fleet = Fleet::start(vec![stuck_in_prefill()], |config| {
        config.limits.drain_timeout = Duration::from_millis(50);
    })
    .await;
    let body = ask("hello", json!({}));
    let address = fleet.address();
    let waiting = tokio::spawn(client::open(address, "POST", CHAT, &[], body.to_string()));
    within(fleet.engines[0].stats_when(|stats| stats.running == 1)).await;
    assert_eq!(within(fleet.router.drain()).await, 1);
    let answer = within(waiting).await.unwrap().expect("an answer").whole().await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("x-tailroute-error"), Some("draining"));
    within(fleet.engines[0].stats_when(|stats| stats.aborted.prefill == 1)).await;
}

//! Connections of clients that disconnect, are silent, or leave requests unfinished: the resources they hold, and for
//! how long.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use config::Config;
use serde_json::json;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, at_rest, quick, route, stuck_in_prefill};
use tailroute_e2e::raw::{self, Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// HTTP/2's preface, and default settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET / http`, authority `h`, in HPACK.
const GET: &[u8] = b"\x82\x86\x84\x01\x01h";

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, 1][..], payload].concat()
}

async fn http2(address: SocketAddr, frames: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&[PREFACE, frames].concat()).await.unwrap();
    stream
}

/// Returns the types of the frames received until the router closes.
async fn frames_until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = within(stream.read_to_end(&mut all)).await;
    let (mut kinds, mut rest) = (Vec::new(), &all[..]);
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = rest {
        kinds.push(*kind);
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        rest = payload.get(length..).unwrap_or_default();
    }
    kinds
}

/// Reads until a HEADERS frame has come.
async fn answered(stream: &mut TcpStream) {
    let mut all = Vec::new();
    within(async {
        while !all
            .windows(5)
            .any(|five| five[3] == HEADERS && five[4] & END_HEADERS != 0)
        {
            assert!(stream.read_buf(&mut all).await.unwrap() > 0);
        }
    })
    .await;
}

async fn idle_http2(address: SocketAddr) -> TcpStream {
    let mut stream = http2(address, &frame(HEADERS, END_HEADERS | END_STREAM, GET)).await;
    answered(&mut stream).await;
    stream
}

fn question() -> Vec<u8> {
    let body = ask("a question", json!({ "stream": true })).to_string();
    let length = format!("content-length: {}", body.len());
    request(&format!("POST {CHAT}"), &[&length], &body)
}

#[tokio::test]
async fn a_body_that_looks_like_an_http_response_passes_unchanged() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let pieces = [
        "400 Bad Request",
        "414 URI Too Long",
        "431 Request Header Fields Too Large",
    ]
    .map(|status| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"));
    let asked = client::open(router.address, "GET", "/v1/files/looks", &[], String::new());
    let respond = async {
        let mut exchange = upstream.next().await;
        let length: usize = pieces.iter().map(String::len).sum();
        exchange
            .send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").as_bytes())
            .await;
        exchange
    };
    let (answer, mut exchange) = tokio::join!(asked, respond);
    let mut answer = answer.unwrap();
    for piece in &pieces {
        exchange.send(piece.as_bytes()).await;
        assert_eq!(answer.bytes(piece.len()).await, piece.as_bytes());
    }
    assert!(answer.whole().await.clean);
}

/// A client whose request is followed by these bytes disconnects while the worker computes.
async fn leaves_after(rest: &[u8], by_reset: bool) {
    let fleet = Fleet::start(vec![stuck_in_prefill()], |_| {}).await;
    let mut stream = TcpStream::connect(fleet.address()).await.unwrap();
    stream.write_all(&[&question()[..], rest].concat()).await.unwrap();
    within(fleet.engines[0].stats_when(|stats| stats.running + stats.waiting == 1)).await;
    if by_reset {
        stream.set_zero_linger().unwrap();
    }
    drop(stream);
    within(fleet.engines[0].stats_when(|stats| stats.aborted.total() == 1)).await;
    fleet.at_rest().await;
}

/// hyper does not read while it holds unparsed bytes, and would not see the end of the connection after them.
#[tokio::test]
async fn a_disconnect_is_detected_whatever_follows_the_request() {
    let pipelined = question();
    for rest in [
        &b""[..],
        b"\r\n",
        b"G",
        b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n",
        &pipelined.repeat(3),
    ] {
        for by_reset in [false, true] {
            leaves_after(rest, by_reset).await;
        }
    }
}

/// A FIN cannot arrive while the receive buffer is full.
#[tokio::test]
async fn a_client_that_pipelines_too_much_is_disconnected() {
    for rest in [b"\r\n".repeat(10_000), question().repeat(100), vec![b'x'; 20_000]] {
        let fleet = Fleet::start(vec![stuck_in_prefill()], |_| {}).await;
        let mut stream = TcpStream::connect(fleet.address()).await.unwrap();
        stream.write_all(&question()).await.unwrap();
        within(fleet.engines[0].stats_when(|stats| stats.running + stats.waiting == 1)).await;
        within(async { while stream.write_all(&rest).await.is_ok() {} }).await;
        within(fleet.engines[0].stats_when(|stats| stats.aborted.total() == 1)).await;
        fleet.at_rest().await;
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    const COUNT: usize = 200;
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    let mut wire = Wire::connect(fleet.address()).await;
    let all = question().repeat(COUNT);
    assert!((20_000..60_000).contains(&all.len()), "{}", all.len());
    wire.write(&all).await;
    for number in 0..COUNT {
        assert_eq!(wire.answer().await.expect("an answer").status, 200, "{number}");
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_half_closed_client_gets_responses_that_need_no_worker() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    let mut wire = Wire::connect(fleet.address()).await;
    wire.write(&request("GET /v1/models", &[], "").repeat(3)).await;
    wire.finish_writing().await;
    for _ in 0..3 {
        assert_eq!(wire.answer().await.expect("an answer").status, 200);
    }
    assert!(wire.closes().await);
}

#[tokio::test]
async fn an_http2_connection_without_a_stream_ends_with_goaway_after_the_idle_time() {
    let fleet = Fleet::start(vec![quick()], |config: &mut Config| {
        config.limits.header_timeout = Duration::from_millis(50);
        config.limits.client_idle_timeout = Duration::from_millis(200);
    })
    .await;
    let began = Instant::now();
    let asked = http2(fleet.address(), &frame(HEADERS, END_HEADERS | END_STREAM, GET)).await;
    let kinds = frames_until_closed(asked).await;
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn an_unfinished_header_block_times_out_like_a_head() {
    let fleet = Fleet::start(vec![quick()], |config: &mut Config| {
        config.limits.header_timeout = Duration::from_millis(50);
    })
    .await;
    let mut stream = idle_http2(fleet.address()).await;
    let mut next = frame(HEADERS, END_STREAM, GET);
    next[8] = 3;
    stream.write_all(&next).await.unwrap();
    frames_until_closed(stream).await;
}

/// Connections without requests must not keep out clients with requests.
#[tokio::test]
async fn at_the_connection_limit_idle_connections_are_evicted() {
    let fleet = Fleet::start(vec![quick()], |config: &mut Config| {
        config.limits.max_connections = 4.try_into().unwrap();
    })
    .await;
    let address = fleet.address();
    let mut idle = vec![
        idle_http2(address).await,
        TcpStream::connect(address).await.unwrap(),
    ];
    for half in [
        &b"GET / HTTP/1.1\r\nhost"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(half).await.unwrap();
        idle.push(stream);
    }
    for _ in 0..8 {
        let answer = within(client::call(address, "GET", "/v1/models", &[], "")).await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn unfinished_heads_count_against_the_bound_on_unread_bytes() {
    let fleet = Fleet::start(vec![quick()], |config: &mut Config| {
        config.limits.max_body_bytes = 4096.try_into().unwrap();
        config.limits.max_unread_bytes = (100 * 1024).try_into().unwrap();
    })
    .await;
    let half = format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}", "a".repeat(60 * 1024));
    let mut halves = Vec::new();
    let refused = within(async {
        loop {
            let mut wire = Wire::connect(fleet.address()).await;
            wire.write(half.as_bytes()).await;
            if let Ok(answer) = tokio::time::timeout(Duration::from_secs(3), wire.answer()).await {
                break answer.expect("an answer");
            }
            halves.push(wire);
        }
    })
    .await;
    assert_eq!(halves.len(), 1, "one has room, a second one has not");
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (503, "overloaded")
    );
    drop(halves);
    let whole = format!("{half}\r\n\r\n");
    within(async { while raw::exchange(fleet.address(), whole.as_bytes()).await.status != 404 {} }).await;
}

#[tokio::test]
async fn a_rejected_request_is_answered_after_a_slow_earlier_response() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let mut wire = Wire::connect(router.address).await;
    wire.write(&[&question()[..], b"GET / HTTP/1.1\r\nno colon\r\n\r\n"].concat())
        .await;
    let mut exchange = upstream.next().await;
    exchange.begin_events().await;
    for _ in 0..3 {
        exchange.chunk(b"data: 1\n\n").await;
        wire.read_past(b"data: 1\n\n").await;
    }
    exchange.chunk(b"data: [DONE]\n\n").await;
    exchange.end().await;
    wire.read_past(b"0\r\n\r\n").await;
    let refused = wire.answer().await.expect("an answer");
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (400, "malformed_http")
    );
    assert!(wire.closes().await);
    at_rest(&router).await;
}

#[tokio::test]
async fn a_drain_does_not_wait_for_connections_without_a_request() {
    let fleet = Fleet::start(vec![quick()], |config: &mut Config| {
        config.limits.drain_timeout = Duration::from_secs(60);
    })
    .await;
    let address = fleet.address();
    let _idle = idle_http2(address).await;
    let mut block = idle_http2(address).await;
    let mut next = frame(HEADERS, END_STREAM, GET);
    next[8] = 3;
    block.write_all(&next).await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"GET / HTTP/1.1\r\nhost").await.unwrap();
    until("the router has read what there is", || {
        fleet.router.parts().proxy.in_flight() == 0
    })
    .await;
    let began = Instant::now();
    assert_eq!(within(fleet.router.drain()).await, 0);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

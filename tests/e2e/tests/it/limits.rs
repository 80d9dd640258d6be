//! Limits by what is waited for: an idle client, a head, the first token, the next one, a probe of a busy worker.
//!
//! Each limit has a value of its own, so that the time that an error names shows which one applied.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fleet::health::Probe;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::json;
use tailroute_e2e::client::{self, CHAT, H2};
use tailroute_e2e::fleet::{Fleet, at_rest, configured, quick, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::{Exchange, Upstream};
use tailroute_e2e::wait::{until, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const FIRST: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(1);
const ROLE: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n";
const TOKEN: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"so\"}}]}\n\n";
const SPEECH: &str = "/v1/audio/speech";

/// What a worker does with a request, its path, and what its client gets: a status and an error with this text.
const CASES: [(&str, &str, u16, &str); 10] = [
    ("nothing", CHAT, 504, "(3 s)"),
    ("head", CHAT, 200, "(3 s)"),
    ("comments", CHAT, 200, "(3 s)"),
    ("role", CHAT, 200, "(3 s)"),
    ("token", CHAT, 200, "(1 s)"),
    ("nothing", SPEECH, 504, "(3 s)"),
    ("head", SPEECH, 200, ""),
    ("comments", SPEECH, 200, ""),
    ("token", SPEECH, 200, ""),
    ("deadline", CHAT, 504, "deadline"),
];

/// Plays a case until the router disconnects.
async fn play(mut exchange: Exchange, case: &str) {
    match case {
        "nothing" | "deadline" => {}
        _ => exchange.begin_events().await,
    }
    match case {
        "role" => exchange.chunk(ROLE).await,
        "token" => exchange.chunk(TOKEN).await,
        "comments" => {
            // The router disconnects in between.
            let mut stream = exchange.into_stream();
            while stream.write_all(b"8\r\n: ping\n\n\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            return;
        }
        _ => {}
    }
    exchange.hung_up().await;
}

/// Sends the request of a case. Returns the status and what came of the body.
async fn asked(address: SocketAddr, is_http2: bool, case: &str, path: &str) -> (u16, String) {
    let mut body = ask("hello", json!({ "stream": case != "nothing", "user": case }));
    body["input"] = json!("hello");
    let body = body.to_string();
    if case == "deadline" {
        let fields = [("x-request-timeout-ms", "2000")];
        let answer = client::call(address, "POST", path, &fields, body).await;
        return (answer.status.as_u16(), answer.text().to_owned());
    }
    if is_http2 {
        let mut answer = H2::connect(address).await.post(path, body).await;
        let mut text = Vec::new();
        while let Some(Ok(frame)) = within(answer.body_mut().frame()).await {
            text.extend(frame.into_data().unwrap_or_default());
        }
        return (answer.status().as_u16(), String::from_utf8(text).unwrap());
    }
    let answer = client::call(address, "POST", path, &[], body).await;
    (answer.status.as_u16(), answer.text().to_owned())
}

#[tokio::test]
async fn a_response_is_bounded_by_what_is_waited_for_over_both_protocols() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        config.limits.first_byte_timeout = FIRST;
        config.limits.idle_timeout = IDLE;
        config.failure.breaker_failures = 1000;
    })
    .await;
    let address = router.address;
    let playing = tokio::spawn(async move {
        let mut playing = Vec::new();
        for _ in 0..2 * CASES.len() {
            let exchange = upstream.next().await;
            let body: serde_json::Value = serde_json::from_slice(&exchange.body).unwrap();
            let case = body["user"].as_str().unwrap().to_owned();
            playing.push(tokio::spawn(async move { play(exchange, &case).await }));
        }
        join_all(playing).await;
        upstream
    });
    let all = CASES.iter().flat_map(|case| [(case, false), (case, true)]);
    join_all(all.map(|((case, path, status, says), is_http2)| async move {
        let answer = asked(address, is_http2, case, path).await;
        assert_eq!(answer.0, *status, "{case} {path} {answer:?}");
        assert!(answer.1.contains(says), "{case} {path} {answer:?}");
    }))
    .await;
    let _upstream = within(playing).await.unwrap();
    at_rest(&router).await;
}

fn question() -> Vec<u8> {
    let body = ask("a question", json!({})).to_string();
    let length = format!("content-length: {}", body.len());
    request(&format!("POST {CHAT}"), &[&length], &body)
}

/// Agents that think for longer than a head may take use their connections again.
#[tokio::test]
async fn connections_of_thinking_agents_are_kept() {
    const HEAD: Duration = Duration::from_millis(100);
    let fleet = Fleet::start(vec![quick()], |config| config.limits.header_timeout = HEAD).await;
    let address = fleet.address();
    let agents = (0..20).map(|agent: u32| async move {
        let mut wire = Wire::connect(address).await;
        for _ in 0..4 {
            wire.write(&question()).await;
            assert_eq!(wire.answer().await.expect("an answer").status, 200);
            tokio::time::sleep(HEAD + 10 * agent * Duration::from_millis(1)).await;
        }
    });
    join_all(agents).await;
    fleet.at_rest().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_without_an_error() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.client_idle_timeout = Duration::from_millis(200);
    })
    .await;
    let mut used = Wire::connect(fleet.address()).await;
    used.write(&question()).await;
    assert_eq!(used.answer().await.expect("an answer").status, 200);
    let mut blank = Wire::connect(fleet.address()).await;
    blank.write(b"\r\n").await;
    for wire in [&mut used, &mut blank] {
        assert!(wire.answer().await.is_none());
        assert!(wire.closes().await);
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn half_a_head_times_out_on_a_connection_that_may_be_idle_for_longer() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.header_timeout = Duration::from_millis(100);
    })
    .await;
    let mut wire = Wire::connect(fleet.address()).await;
    wire.write(&question()).await;
    assert_eq!(wire.answer().await.expect("an answer").status, 200);
    wire.write(b"POST / HTTP/1.1\r\nhost: ").await;
    let late = wire.answer().await.expect("an answer");
    assert_eq!(
        (late.status, late.error_code().as_str()),
        (408, "request_timeout")
    );
    assert!(wire.closes().await);
    fleet.at_rest().await;
}

#[tokio::test]
async fn late_probes_pass_a_worker_over_but_never_the_last_one() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.health.interval = Duration::from_secs(3600);
    })
    .await;
    let parts = fleet.router.parts();
    let workers = parts.state.routing.fleet.workers();
    let late = |worker: usize| {
        for _ in 0..50 {
            parts.state.note_health(&workers[worker], Probe::Late);
        }
    };
    late(0);
    for turn in 0..6 {
        let answer = fleet.chat(&[], &ask(&turn.to_string(), json!({}))).await;
        assert_eq!(
            (answer.status.as_u16(), answer.worker().as_str()),
            (200, workers[1].name())
        );
    }
    late(1);
    for turn in 6..9 {
        assert_eq!(
            fleet.chat(&[], &ask(&turn.to_string(), json!({}))).await.status,
            200
        );
    }
    parts.state.note_health(&workers[0], Probe::Busy);
    assert!(!workers[0].is_late() && workers[1].is_late());
    parts.state.note_health(&workers[1], Probe::Bad);
    assert!(!workers[1].is_ready(), "a refused probe takes it out");
    fleet.at_rest().await;
}

/// Serves an engine's probes, and records which connection each of them took.
async fn engine(listener: TcpListener, probed: Arc<Mutex<Vec<usize>>>) {
    for connection in 0.. {
        let (mut stream, _) = listener.accept().await.unwrap();
        let probed = Arc::clone(&probed);
        tokio::spawn(async move {
            let mut head = Vec::new();
            while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                if !head.ends_with(b"\r\n\r\n") {
                    continue;
                }
                if head.starts_with(b"GET /health ") {
                    probed.lock().push(connection);
                }
                head.clear();
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                if stream.write_all(answer).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// A host name may move to another address while the old process lives.
#[tokio::test]
async fn a_probe_is_the_last_call_on_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = configured(&[listener.local_addr().unwrap()]);
    config.health.interval = Duration::from_millis(20);
    config.health.queue_interval = Some(Duration::from_millis(20));
    let probed = Arc::new(Mutex::new(Vec::new()));
    let serving = tokio::spawn(engine(listener, Arc::clone(&probed)));
    let router = tailroute::serve::Server::start(config).await.unwrap();
    until("probes have come", || probed.lock().len() >= 10).await;
    drop(router);
    serving.abort();
    let mut connections = probed.lock().clone();
    let probes = connections.len();
    connections.sort_unstable();
    connections.dedup();
    assert_eq!(connections.len(), probes, "each took another one");
}

#[tokio::test]
async fn a_silent_connection_is_idle() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.limits.header_timeout = Duration::from_millis(20);
        config.limits.client_idle_timeout = Duration::from_millis(400);
    })
    .await;
    let began = std::time::Instant::now();
    let mut silent = TcpStream::connect(fleet.address()).await.unwrap();
    assert_eq!(within(silent.read(&mut [0; 8])).await.unwrap(), 0);
    assert!(began.elapsed() >= Duration::from_millis(400));
}

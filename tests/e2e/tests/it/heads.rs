//! The heads of requests and responses, handled as a proxy should on any endpoint.

use config::{Forwarded, Network};
use serde_json::json;
use sim_engine::Captured;
use tailroute_e2e::client::{self, CHAT, Fields, Whole};
use tailroute_e2e::fleet::{Fleet, at_rest, quick, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::Upstream;

async fn exchange(fleet: &Fleet, headers: Fields<'_>) -> (Captured, Whole) {
    let answer = fleet
        .chat(headers, &ask("hello", json!({ "max_tokens": 1 })))
        .await;
    assert_eq!(answer.status, 200);
    let mut turns = fleet.engines[0].captured();
    turns.retain(|request| request.uri.path() == CHAT);
    (turns.pop().expect("a turn"), answer)
}

fn header<'a>(request: &'a Captured, name: &str) -> Option<&'a str> {
    request.headers.get(name).map(|value| value.to_str().unwrap())
}

const SPOOFED: Fields<'static> = &[
    ("forwarded", "for=6.6.6.6"),
    ("x-forwarded-for", "6.6.6.6"),
    ("x-forwarded-proto", "https"),
    ("x-real-ip", "6.6.6.6"),
];

#[tokio::test]
async fn forwarded_headers_name_the_client_and_cannot_be_forged() {
    let fleet = Fleet::of(1).await;
    let (arrived, _) = exchange(&fleet, SPOOFED).await;
    for (name, value) in [
        ("forwarded", Some("for=127.0.0.1;proto=http")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-proto", Some("http")),
        ("x-forwarded-host", Some("router.test")),
        ("x-real-ip", None),
    ] {
        assert_eq!(header(&arrived, name), value, "{name}");
    }
}

#[tokio::test]
async fn forwarded_headers_of_a_trusted_proxy_are_kept() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.http.trusted_proxies = vec![Network::parse("127.0.0.0/8").unwrap()];
    })
    .await;
    let (arrived, _) = exchange(&fleet, SPOOFED).await;
    assert_eq!(header(&arrived, "x-forwarded-for"), Some("6.6.6.6, 127.0.0.1"));
    assert_eq!(
        header(&arrived, "forwarded"),
        Some("for=6.6.6.6, for=127.0.0.1;proto=http")
    );
    assert_eq!(header(&arrived, "x-forwarded-proto"), Some("https"));
}

#[tokio::test]
async fn forwarded_headers_can_be_disabled() {
    let fleet = Fleet::start(vec![quick()], |config| config.http.forwarded = Forwarded::Off).await;
    let (arrived, _) = exchange(&fleet, SPOOFED).await;
    for (name, _) in SPOOFED {
        assert_eq!(header(&arrived, name), None, "{name}");
    }
}

#[tokio::test]
async fn a_trace_is_continued_or_begun() {
    let fleet = Fleet::of(1).await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let (arrived, _) = exchange(&fleet, &[("traceparent", parent), ("tracestate", "a=b")]).await;
    assert_eq!(header(&arrived, "traceparent"), Some(parent));
    assert_eq!(header(&arrived, "tracestate"), Some("a=b"));
    let mut made = Vec::new();
    for _ in 0..2 {
        let (arrived, answer) = exchange(&fleet, &[("traceparent", "00-0-0-0"), ("tracestate", "a=b")]).await;
        assert_eq!(header(&arrived, "tracestate"), None);
        let parent = header(&arrived, "traceparent").unwrap().to_owned();
        assert_eq!(parent.len(), 55);
        // The request id is the trace id.
        let id = header(&arrived, "x-request-id").unwrap();
        assert_eq!(parent.split('-').nth(1), Some(id));
        assert_eq!(answer.header("x-request-id"), Some(id));
        made.push(parent);
    }
    assert_ne!(made[0], made[1]);
}

#[tokio::test]
async fn a_request_keeps_its_id_and_a_rejected_one_has_one_too() {
    let fleet = Fleet::of(1).await;
    let (arrived, answer) = exchange(&fleet, &[("x-request-id", "req-7")]).await;
    assert_eq!(header(&arrived, "x-request-id"), Some("req-7"));
    assert_eq!(answer.header("x-request-id"), Some("req-7"));
    let (arrived, _) = exchange(&fleet, &[("x-request-id", "two words")]).await;
    assert_eq!(header(&arrived, "x-request-id").unwrap().len(), 32);
    let refused = client::call(fleet.address(), "POST", CHAT, &[("x-request-id", "req-8")], "{").await;
    assert_eq!(
        (refused.status.as_u16(), refused.header("x-request-id")),
        (400, Some("req-8"))
    );
}

#[tokio::test]
async fn a_response_has_server_timing_and_via() {
    let fleet = Fleet::of(1).await;
    let (arrived, answer) = exchange(&fleet, &[("via", "1.0 front")]).await;
    let via: Vec<_> = arrived.headers.get_all("via").iter().collect();
    let own = via[1].to_str().unwrap().strip_prefix("1.1 tailroute-").unwrap();
    assert_eq!(
        (via.len(), via[0].as_bytes(), own.len()),
        (2, &b"1.0 front"[..], 16)
    );
    assert_eq!(answer.header("via"), Some("1.1 tailroute"));
    let timing = answer.header("server-timing").unwrap();
    let dur = |name: &str| {
        let metric = timing
            .split(", ")
            .find_map(|metric| metric.strip_prefix(name))
            .expect(timing);
        metric.strip_prefix(";dur=").unwrap().parse::<f64>().unwrap()
    };
    let (own, total) = (dur("tailroute"), dur("total"));
    assert!(0.0 < own && own <= total, "{timing}");
    let refused = client::call(fleet.address(), "POST", CHAT, &[], "{").await;
    assert!(refused.header("server-timing").is_some());
    assert_eq!(refused.header("via"), None, "it is the router's own");
}

#[tokio::test]
async fn trailers_are_forwarded_to_clients_that_accept_them() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let body = ask("hello", json!({})).to_string();
    let length = format!("content-length: {}", body.len());
    for takes in [true, false] {
        let fields = [&length[..], if takes { "te: trailers" } else { "te: gzip" }];
        let mut wire = Wire::connect(router.address).await;
        wire.write(&request(&format!("POST {CHAT}"), &fields, &body))
            .await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.header("te"), takes.then_some("trailers"));
        exchange
            .send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\nconnection: close\r\n\r\n2\r\nab\r\n0\r\nx-sum: 7\r\n\r\n")
            .await;
        let end: &[u8] = if takes {
            b"2\r\nab\r\n0\r\nx-sum: 7\r\n\r\n"
        } else {
            b"2\r\nab\r\n0\r\n\r\n"
        };
        wire.read_past(end).await;
    }
    at_rest(&router).await;
}

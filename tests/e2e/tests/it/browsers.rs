//! Web pages that use the API from a browser, and responses that refer to a worker.

use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::route;
use tailroute_e2e::raw::{Wire, exchange, request};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::within;

use crate::admission::{bearer, key};

const PAGE: &str = "https://chat.example.com";
const PREFLIGHT: [(&str, &str); 3] = [
    ("origin", PAGE),
    ("access-control-request-method", "POST"),
    ("access-control-request-headers", "authorization,content-type"),
];

fn origin(answer: &client::Whole) -> Option<&str> {
    answer.header("access-control-allow-origin")
}

#[tokio::test]
async fn a_preflight_needs_no_key_and_no_worker() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |config| config.keys = vec![key("a")]).await;
    for path in [CHAT, "/v1/models", "/v1/anything", "/nowhere"] {
        let answer = client::call(router.address, "OPTIONS", path, &PREFLIGHT, "").await;
        assert_eq!(
            (answer.status.as_u16(), origin(&answer)),
            (204, Some("*")),
            "{path}"
        );
        assert_eq!(
            answer.header("access-control-allow-headers"),
            Some("authorization,content-type")
        );
        assert!(
            answer
                .header("access-control-allow-methods")
                .unwrap()
                .contains("POST")
        );
        assert!(answer.header("access-control-allow-credentials").is_none());
    }
    let other = client::call(router.address, "OPTIONS", CHAT, &[("origin", PAGE)], "").await;
    assert_eq!(other.status, 401, "it is no preflight");
    assert!(!worker.has_more());
}

#[tokio::test]
async fn relayed_and_own_responses_allow_the_same_pages() {
    for (allowed, expected) in [
        (vec!["*"], Some("*")),
        (vec!["https://other.example.com", PAGE], Some(PAGE)),
        (vec!["https://other.example.com"], None),
        (vec![], None),
    ] {
        let mut worker = Upstream::start().await;
        let router = route(&[worker.address], |config| {
            config.keys = vec![key("a")];
            config.http.cors_origins = allowed.iter().map(|origin| (*origin).to_owned()).collect();
        })
        .await;
        let secret = bearer("a");
        let with_key = [("origin", PAGE), ("authorization", &*secret)];
        let chat = r#"{"model":"sim","messages":[]}"#;
        for (method, path, headers, body, status) in [
            ("POST", CHAT, &with_key[..1], chat, 401),
            ("POST", CHAT, &with_key[..], "{", 400),
            ("POST", CHAT, &with_key[..], r#"{"model":"none"}"#, 404),
            ("GET", CHAT, &with_key[..], "", 405),
            ("GET", "/nowhere", &with_key[..], "", 404),
            ("GET", "/v1/models", &with_key[..], "", 200),
            ("GET", "/health", &with_key[..1], "", 200),
            ("OPTIONS", CHAT, &PREFLIGHT[..], "", 204),
        ] {
            let answer = client::call(router.address, method, path, headers, body).await;
            assert_eq!(
                (answer.status.as_u16(), origin(&answer)),
                (status, expected),
                "{path}"
            );
        }
        let call = client::call(router.address, "POST", CHAT, &with_key, chat);
        let work = async {
            let mut exchange = worker.next().await;
            let cors = "access-control-allow-origin: https://engine.example\r\naccess-control-allow-credentials: true";
            let answer = format!("HTTP/1.1 200 OK\r\n{cors}\r\ncontent-length: 2\r\n\r\n{{}}");
            exchange.send(answer.as_bytes()).await;
        };
        let (answer, ()) = within(async { tokio::join!(call, work) }).await;
        assert_eq!((answer.status.as_u16(), origin(&answer)), (200, expected));
        let credentials = answer.header("access-control-allow-credentials");
        assert_eq!(
            credentials,
            expected.filter(|origin| *origin != "*").map(|_| "true")
        );
        let plain = client::call(router.address, "GET", "/v1/models", &with_key[1..], "").await;
        assert_eq!(
            (origin(&plain), plain.header("vary")),
            (None, None),
            "no page asks"
        );
    }
}

#[tokio::test]
async fn only_allowed_pages_open_websockets() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |config| {
        config.http.cors_origins = vec![PAGE.to_owned()]
    })
    .await;
    let ask = |origin: &str| {
        let origin = format!("origin: {origin}");
        let fields = [
            "upgrade: websocket",
            "connection: upgrade",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
            &origin,
        ];
        request("GET /v1/realtime?model=sim", &fields, "")
    };
    let refused = exchange(router.address, &ask("https://evil.example")).await;
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (403, "origin_not_allowed")
    );
    assert!(!worker.has_more());
    let mut wire = Wire::connect(router.address).await;
    wire.write(&ask(PAGE)).await;
    let mut exchange = worker.next().await;
    exchange
        .send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(wire.answer().await.unwrap().status, 404);
}

#[tokio::test]
async fn no_response_leads_a_client_past_the_router() {
    let (mut worker, other) = (Upstream::start().await, Upstream::start().await);
    let router = route(&[worker.address, other.address], |_| {}).await;
    router.parts().state.routing.fleet.workers()[1].set_admin_state(fleet::overrides::AdminState::Cordoned);
    let (own, peer) = (worker.address, other.address);
    let store = "https://bucket.example/x?sig=1";
    for (name, given, seen) in [
        ("location", format!("http://{own}/v1/x?a=b"), Some("/v1/x?a=b")),
        ("location", format!("http://{peer}/v1/x"), Some("/v1/x")),
        (
            "location",
            format!("//{own}//evil.example/"),
            Some("/evil.example/"),
        ),
        (
            "location",
            format!("http://localhost:{}/v1/x", own.port()),
            Some("/v1/x"),
        ),
        ("location", "http://0.0.0.0:8000/v1/x".to_owned(), Some("/v1/x")),
        ("location", store.to_owned(), Some(store)),
        ("location", "/v1/x".to_owned(), Some("/v1/x")),
        ("content-location", format!("http://{own}/v1/x"), Some("/v1/x")),
        (
            "link",
            format!("<http://{own}/v1/x>; rel=next"),
            Some("</v1/x>; rel=next"),
        ),
        (
            "refresh",
            format!("1; url=http://{own}/v1/x"),
            Some("1; url=/v1/x"),
        ),
        (
            "set-cookie",
            "a=b; Domain=127.0.0.1; Secure".to_owned(),
            Some("a=b; Secure"),
        ),
        ("alt-svc", "h2=\":8443\"".to_owned(), None),
    ] {
        for (method, path) in [("GET", "/v1/x/"), ("POST", CHAT)] {
            let call = client::call(router.address, method, path, &[], r#"{"model":"sim"}"#);
            let work = async {
                let mut exchange = worker.next().await;
                let answer = format!(
                    "HTTP/1.1 307 Temporary Redirect\r\n{name}: {given}\r\ncontent-length: 0\r\n\r\n"
                );
                exchange.send(answer.as_bytes()).await;
            };
            let (answer, ()) = within(async { tokio::join!(call, work) }).await;
            assert_eq!(
                (answer.status.as_u16(), answer.header(name)),
                (307, seen),
                "{name}: {given}"
            );
        }
    }
}

#[tokio::test]
async fn a_known_path_with_a_slash_reaches_the_worker_without_it() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    for (path, line) in [
        ("/v1/chat/completions/?a=b", "POST /v1/chat/completions?a=b "),
        ("/v1/%63ompletions/", "POST /v1/%63ompletions "),
        ("/v1/files/", "POST /v1/files "),
        ("/v1/other/", "POST /v1/other/ "),
    ] {
        let call = client::call(router.address, "POST", path, &[], r#"{"model":"sim"}"#);
        let work = async {
            let exchange = worker.next().await;
            assert!(exchange.head.starts_with(line), "{}", exchange.head);
            exchange.answer("200 OK", "{}").await;
        };
        let (answer, ()) = within(async { tokio::join!(call, work) }).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    let models = client::call(router.address, "GET", "/v1/models/", &[], "").await;
    assert_eq!(models.json()["data"][0]["id"], "sim");
}

#[tokio::test]
async fn encoded_bodies_are_refused_by_name_and_a_byte_order_mark_is_left_out() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    let body = r#"{"model":"sim","messages":[]}"#;
    for path in [CHAT, "/v1/responses", "/v1/audio/transcriptions", "/v1/videos"] {
        for coding in ["gzip", "zstd", "br", "deflate", "identity, gzip", "x-unknown"] {
            let headers = [("content-encoding", coding)];
            let refused = client::call(router.address, "POST", path, &headers, body).await;
            assert_eq!(
                (refused.status.as_u16(), refused.error_code().as_str()),
                (415, "unsupported_encoding"),
                "{path} {coding}"
            );
            assert_eq!(refused.header("accept-encoding"), Some("identity"));
            let named = coding.rsplit(' ').next().unwrap();
            assert!(refused.text().contains(named), "{}", refused.text());
        }
    }
    assert!(!worker.has_more());
    for (headers, sent) in [
        (&[("content-encoding", "identity")][..], body.to_owned()),
        (&[], format!("\u{feff}{body}")),
        (
            &[("content-type", "application/json; charset=utf-16")],
            body.to_owned(),
        ),
        (&[("content-type", "text/plain")], body.to_owned()),
    ] {
        let call = client::call(router.address, "POST", CHAT, headers, sent);
        let work = async {
            let exchange = worker.next().await;
            assert_eq!(std::str::from_utf8(&exchange.body).unwrap(), body);
            assert_eq!(
                exchange.header("content-length"),
                Some(body.len().to_string().as_str())
            );
            exchange.answer("200 OK", "{}").await;
        };
        let (answer, ()) = within(async { tokio::join!(call, work) }).await;
        assert_eq!(answer.status, 200, "{headers:?}");
    }
    let wide: Vec<u8> = body.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for bytes in [wide.clone(), [&b"\xff\xfe"[..], &wide].concat()] {
        let refused = client::call(router.address, "POST", CHAT, &[], bytes).await;
        assert_eq!(refused.error_code(), "malformed_json");
        assert!(refused.text().contains("not UTF-8"), "{}", refused.text());
    }
}

#[tokio::test]
async fn health_checks_need_no_key_and_reach_no_worker() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |config| {
        tailroute_e2e::fleet::probe_often(config);
        config.keys = vec![key("a")];
    })
    .await;
    for path in ["/health", "/ping", "/health/"] {
        for method in ["GET", "HEAD"] {
            let answer = client::call(router.address, method, path, &[], "").await;
            assert_eq!(answer.status, 200, "{method} {path}");
        }
    }
    assert_eq!(
        client::call(router.address, "GET", "/version", &[], "")
            .await
            .status,
        401
    );
    worker.set_well(false);
    let workers = router.parts().state.routing.fleet.workers();
    tailroute_e2e::wait::until("it is down", || !workers[0].is_ready()).await;
    let answer = client::call(router.address, "GET", "/health", &[], "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.error_code().as_str()),
        (503, "no_worker_ready")
    );
    assert!(!worker.has_more());
}

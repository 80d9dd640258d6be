//! Tests of how a turn is delivered: the head of its response, and what its key pays.

use std::time::Duration;

use http::Method;
use tokio::time::timeout;

use crate::testing::{Delivered, Script, Seat, Upload, chat, usage};

const CHAT: &str = "/v1/chat/completions";
const KEY: (&str, &str) = ("authorization", "Bearer secret");
const BURST: u64 = 10_000;

#[tokio::test(start_paused = true)]
async fn the_head_names_worker_and_decision_and_none_of_the_workers_secrets() {
    let fields = [
        "content-type: application/json",
        "x-tailroute-worker: me",
        "x-tailroute-error: mine",
        "x-ratelimit-remaining-requests: 1",
        "location: http://10.0.0.2:8000/v1/x",
        "connection: x-hop",
        "x-hop: 1",
        "x-other: 1",
    ];
    // The path, and whether its response is that of a decision.
    for (path, decision) in [(CHAT, "0"), ("/v1/audio/transcriptions", "")] {
        let seat = Seat::new();
        seat.script("a", [Script::whole(200, &fields, "{}")]);
        let delivered = seat.post(path, &[], &chat("hi")).await;
        for (name, expected) in [
            ("x-tailroute-worker", "a"),
            ("x-tailroute-decision", decision),
            ("x-tailroute-error", ""),
            ("x-ratelimit-remaining-requests", ""),
            ("location", "/v1/x"),
            ("x-hop", ""),
            ("x-other", "1"),
            ("x-tailroute-explain", ""),
        ] {
            assert_eq!(delivered.field(name), expected, "{path}: {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_version_of_a_response_is_the_routers() {
    for path in [CHAT, "/v1/audio/transcriptions"] {
        let seat = Seat::new();
        seat.script(
            "a",
            [Script::silent().text("HTTP/1.0 200 S\r\ncontent-length: 2\r\n\r\n{}")],
        );
        let response = seat.ask(path, &[], &chat("hi")).await;
        assert_eq!(
            (response.status().as_u16(), response.version()),
            (200, http::Version::HTTP_11),
            "{path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_gets_the_clients_request_with_the_routers_fields() {
    let turn = chat("hi");
    for (method, path, body) in [
        (Method::POST, CHAT, &*turn),
        (Method::POST, "/v1/audio/transcriptions?a=b", "four"),
        (Method::GET, "/v1/responses/resp_1/input_items", ""),
    ] {
        let seat = Seat::new();
        let line = format!("{method} {path} http/1.1\r\n").to_lowercase();
        let fields = [("x-other", "1"), ("x-tailroute-policy", "tail")];
        drop(seat.send(method, path, &fields, Upload::whole(body)).await);
        let heard = seat.upstream.heard("a").remove(0);
        assert_eq!(heard.body, body, "{path}");
        assert!(heard.head.starts_with(&line), "{path}: {}", heard.head);
        for (field, is_sent) in [
            ("x-other: 1", true),
            ("host: 10.0.0.1:8000", true),
            ("x-request-id: ", true),
            ("x-tailroute-policy", false),
        ] {
            assert_eq!(
                heard.head.contains(&format!("\r\n{field}")),
                is_sent,
                "{path}: {field}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_pays_for_what_a_worker_may_have_computed() {
    let counted = Script::events().token("Hi").chunk(&usage(100, 5, None)).done();
    // The response of every worker, the time that the client waits, its deadline; then what the key pays: the count, the
    // estimate, the estimate and the tokens that passed, or nothing.
    #[rustfmt::skip]
    let cases = [
        ("counted", counted, 60_000, "60000", "count"),
        ("a passed deadline", Script::silent(), 60_000, "500", "estimate"),
        ("a client that leaves", Script::silent(), 500, "60000", "estimate"),
        ("a client that leaves a stream", Script::events().wait(60_000), 500, "60000", "estimate"),
        ("a client that leaves after two tokens", Script::events().token("eight by").wait(60_000), 500, "60000", "tokens"),
        ("a lost connection", Script::silent().cut(), 60_000, "60000", "nothing"),
        ("no connection", Script::refused(), 60_000, "60000", "nothing"),
        ("a refusal", Script::whole(429, &[], ""), 60_000, "60000", "nothing"),
        ("an error", Script::whole(500, &[], ""), 60_000, "60000", "nothing"),
        ("an error of the client", Script::whole(400, &[], ""), 60_000, "60000", "nothing"),
    ];
    for (case, script, patience_ms, deadline_ms, expected) in cases {
        let seat = Seat::with_key(BURST as f64, |_| {});
        for name in ["a", "b", "c"] {
            seat.script(name, [script.clone()]);
        }
        let estimate = seat.turn("hi").tokens(&seat.proxy.state.routing).0;
        let body = chat("hi");
        let fields = [KEY, ("x-request-timeout-ms", deadline_ms)];
        let asking = seat.post(CHAT, &fields, &body);
        let delivered: Option<Delivered> = timeout(Duration::from_millis(patience_ms), asking).await.ok();
        drop(delivered);
        let paid = BURST - seat.tokens_left();
        let expected = match expected {
            "count" => 105,
            "estimate" => estimate,
            "tokens" => estimate + 2,
            _ => 0,
        };
        assert_eq!(paid, expected, "{case}");
        assert_eq!((seat.in_flight(), seat.proxy.in_flight()), ([0; 3], 0), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_and_refusals_are_not() {
    let whole = |status| Script::whole(status, &[], "");
    let begun = || Script::events().token("Hi");
    let relayed = "/v1/audio/transcriptions";
    for (case, path, script, is_logged) in [
        ("a lost connection", CHAT, Script::silent().cut(), true),
        ("silence", CHAT, Script::silent(), true),
        ("lost before the first event", CHAT, Script::events().cut(), true),
        ("a stream that is cut", CHAT, begun().cut(), true),
        ("a stream that falls silent", CHAT, begun(), true),
        ("a complete stream", CHAT, begun().done(), false),
        ("a refusal", CHAT, whole(429), false),
        ("an error of the client", CHAT, whole(400), false),
        (
            "relayed: a lost connection",
            relayed,
            Script::silent().cut(),
            true,
        ),
        ("relayed: silence", relayed, Script::silent(), true),
        (
            "relayed: a response that falls silent",
            relayed,
            Script::head(200, &[]).chunk("x"),
            true,
        ),
        ("relayed: complete", relayed, whole(200), false),
    ] {
        let seat = Seat::with(|config| config.limits.retries = 0);
        seat.script("a", [script]);
        seat.post(path, &[], &chat("hi")).await;
        let next = seat
            .worker("a")
            .failures
            .count(seat.proxy.state.routing.clock.now());
        assert_eq!(
            next.is_none(),
            is_logged,
            "{case}: the next message within a minute is held back"
        );
    }
}

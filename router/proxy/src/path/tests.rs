//! Tests of which requests are answered, and by whom.

use std::num::NonZeroUsize;
use std::time::Duration;

use fleet::overrides::AdminState;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_LENGTH};

use super::*;
use crate::testing::{Delivered, Script, Seat, Upload, chat, pass_ms, within};

const CHAT: &str = "/v1/chat/completions";

/// Sends a request, which `a` answers, and sums it up.
async fn sum_up(seat: &Seat, method: Method, path: &str, fields: &[(&str, &str)], body: Upload) -> String {
    seat.script("a", [Script::tokens(&["Hi"])]);
    let began = Instant::now();
    let response = seat.send(method, path, fields, body).await;
    let delivered = Delivered::read(response, began).await;
    assert_eq!(seat.proxy.in_flight(), 0);
    seat.sum_up(&delivered)
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_by_a_worker_or_by_the_router() {
    let long = format!("/v1/chat/completions?{}", "x".repeat(8 * 1024));
    let huge = "x".repeat(65 << 10);
    let turn = || Upload::whole(&chat("hi"));
    let none = || Upload::whole("");
    let with_mark = Upload::whole(&format!("\u{feff}{}", chat("hi")));
    let other_model = || Upload::whole(&chat("hi").replace("\"m\"", "\"x\""));
    let part = |name: &str, value: &str| {
        let head = format!("content-disposition: form-data; name=\"{name}\"");
        Upload::whole(&format!("--x\r\n{head}\r\n\r\n{value}\r\n--x--\r\n"))
    };
    let form = [("content-type", "multipart/form-data; boundary=x")];
    let audio = "/v1/audio/transcriptions";
    let (get, post, options) = (|| Method::GET, || Method::POST, || Method::OPTIONS);
    #[rustfmt::skip]
    let cases = [
        ("a turn", post(), CHAT, &[][..], turn(), "200 a; asked a; ok 1"),
        ("with a slash at the end of its path", post(), "/v1/chat/completions/?a=b", &[], turn(), "200 a; asked a; ok 1"),
        ("with a byte order mark", post(), CHAT, &[], with_mark, "200 a; asked a; ok 1"),
        ("of no model", post(), CHAT, &[], Upload::whole("{}"), "200 a; asked a; ok 1"),
        ("of an unknown model", post(), CHAT, &[], other_model(), "404 model_not_found; asked ; client_error 1"),
        ("no JSON", post(), CHAT, &[], Upload::whole("hi"), "400 malformed_json; asked ; client_error 1"),
        ("an encoded body", post(), CHAT, &[("content-encoding", "gzip")], turn(), "415 unsupported_encoding; asked ; client_error 1"),
        ("a plain encoding", post(), CHAT, &[("content-encoding", "identity")], turn(), "200 a; asked a; ok 1"),
        ("an encoded upload", post(), "/v1/files", &[("content-encoding", "gzip")], turn(), "415 unsupported_encoding; asked ; client_error 1"),
        ("a field that steers an engine", post(), CHAT, &[], Upload::whole(r#"{"kv_transfer_params":{}}"#), "400 field_not_allowed; asked ; client_error 1"),
        ("a form", post(), audio, &form, part("model", "m"), "200 a; asked a; ok 1"),
        ("a form of an unknown model", post(), audio, &form, part("model", "x"), "404 model_not_found; asked ; client_error 1"),
        ("a form with a field that steers an engine", post(), audio, &form, part("kv_transfer_params", "1"), "400 field_not_allowed; asked ; client_error 1"),
        ("a long path", post(), &long, &[], turn(), "414 uri_too_long; asked ; client_error 1"),
        ("large headers", post(), CHAT, &[("x-a", &huge)], turn(), "431 headers_too_large; asked ; client_error 1"),
        ("an unknown path", post(), "/nothing", &[], turn(), "404 not_found; asked ; client_error 1"),
        ("another method", get(), CHAT, &[], none(), "405 method_not_allowed; asked ; client_error 1"),
        ("the models", get(), "/v1/models", &[], none(), "200 ; asked ; ok 1"),
        ("one model", get(), "/v1/models/m", &[], none(), "200 ; asked ; ok 1"),
        ("no such model", get(), "/v1/models/x", &[], none(), "404 model_not_found; asked ; client_error 1"),
        ("the health", get(), "/health", &[], none(), "200 ; asked ; "),
        ("the server's options", options(), "*", &[], none(), "204 ; asked ; "),
        ("a preflight", options(), CHAT, &[("origin", "http://o"), ("access-control-request-method", "POST")], none(), "204 ; asked ; "),
    ];
    for (case, method, path, fields, body, expected) in cases {
        let seat = Seat::new();
        assert_eq!(
            sum_up(&seat, method, path, fields, body).await,
            expected,
            "{case}"
        );
        for heard in seat.upstream.heard("a") {
            assert!(
                heard.body.starts_with(['{', '-']),
                "{case}: without the byte order mark"
            );
            assert!(!heard.head.contains("completions/"), "{case}: without the slash");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_bounded_in_size_and_time() {
    let long = "x".repeat(150);
    let max = NonZeroUsize::new(200).unwrap();
    #[rustfmt::skip]
    let cases = [
        ("declared too long", CHAT, Upload::whole(&long.repeat(2)), "413 body_too_large; asked ; client_error 1", 0),
        ("too long in pieces", CHAT, Upload::chunks(&[(0, &long), (5, &long)]).end(), "413 body_too_large; asked ; client_error 1", 5),
        ("an upload that is declared too long", "/v1/files", Upload::whole(&long.repeat(2)), "413 body_too_large; asked ; client_error 1", 0),
        ("late", CHAT, Upload::chunks(&[(0, "{"), (60_000, "}")]).end(), "408 request_timeout; asked ; client_error 1", 60_000),
        ("never ended", CHAT, Upload::chunks(&[(50_000, "{")]), "408 request_timeout; asked ; client_error 1", 60_000),
        ("slow", CHAT, Upload::chunks(&[(50_000, "{"), (9_000, "}")]).end(), "200 a; asked a; ok 1", 59_000),
    ];
    for (case, path, body, expected, end_ms) in cases {
        let seat = Seat::with(|config| config.limits.max_body_bytes = max);
        let sum = sum_up(&seat, Method::POST, path, &[], body).await;
        assert_eq!((sum, seat.now_ms()), (expected.to_owned(), end_ms), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn overload_refuses_requests_before_their_bodies_are_read() {
    let seat = Seat::with(|config| config.limits.max_in_flight = NonZeroUsize::MIN);
    seat.script("a", [Script::events().token("Hi").wait(1000).done()]);
    let first = seat.ask(CHAT, &[], &chat("hi")).await;
    let second = seat.send(Method::POST, CHAT, &[], Upload::chunks(&[])).await;
    assert_eq!((second.status().as_u16(), seat.now_ms()), (503, 0));
    assert_eq!(
        seat.metric("tailroute_requests_refused_total", &["reason=overloaded"]),
        1.0
    );
    let health = seat.send(Method::GET, "/health", &[], Upload::whole("")).await;
    assert_eq!(health.status().as_u16(), 200, "a health check takes no permit");
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn memory_for_unread_bodies_is_bounded() {
    let seat = Seat::with(|config| config.limits.max_unread_bytes = NonZeroUsize::new(10).unwrap());
    let sum = sum_up(&seat, Method::POST, CHAT, &[], Upload::whole(&chat("hi"))).await;
    assert_eq!(sum, "503 overloaded; asked ; router_error 1");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_and_the_drain_limit_end_what_has_no_response() {
    for (case, fields, cut_ms, expected, end_ms) in [
        (
            "a deadline while the body is read",
            &[("x-request-timeout-ms", "500")][..],
            9000,
            "504 deadline_exceeded",
            500,
        ),
        ("the drain limit", &[], 300, "503 draining", 300),
    ] {
        let seat = Seat::new();
        let asking = sum_up(&seat, Method::POST, CHAT, fields, Upload::chunks(&[]));
        let cutting = async {
            pass_ms(cut_ms).await;
            seat.proxy.cut_off();
        };
        let asking = async { (asking.await, seat.now_ms()) };
        let ((sum, ended_ms), ()) = tokio::join!(asking, cutting);
        assert_eq!(
            (sum, ended_ms),
            (format!("{expected}; asked ; router_error 1"), end_ms),
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_carries_the_deadline_of_its_whole() {
    for (fields, expected) in [
        (&[][..], None),
        (&[("x-request-timeout-ms", "500")][..], Some(500)),
    ] {
        let seat = Seat::new();
        seat.script("a", [Script::tokens(&["Hi"])]);
        let began = Instant::now();
        let response = seat.ask(CHAT, fields, &chat("hi")).await;
        let due = response
            .extensions()
            .get()
            .map(|Due(at)| (*at - began).as_millis());
        assert_eq!(due, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_health_is_that_of_the_fleet() {
    type Prepare = fn(&Seat);
    let cases: [(&str, Prepare, &str); 4] = [
        ("a worker is ready", |seat| seat.hold_others(), "200 "),
        (
            "all are held",
            |seat| {
                ["a", "b", "c"]
                    .iter()
                    .for_each(|name| seat.hold(name, AdminState::Draining))
            },
            "503 no_worker_ready",
        ),
        (
            "draining",
            |seat| seat.proxy.state.operations.start_draining(),
            "503 draining",
        ),
        ("busy", |seat| seat.hold("a", AdminState::Cordoned), "200 "),
    ];
    for (case, prepare, expected) in cases {
        let seat = Seat::new();
        prepare(&seat);
        let sum = sum_up(&seat, Method::GET, "/health", &[], Upload::whole("")).await;
        assert_eq!(sum, format!("{expected}; asked ; "), "{case}: it is not counted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_to_head_has_a_length_and_no_body() {
    let seat = Seat::new();
    let listed = seat.send(Method::GET, "/v1/models", &[], Upload::whole("")).await;
    let length = Delivered::read(listed, Instant::now()).await.text().len();
    let head = seat
        .send(Method::HEAD, "/v1/models", &[], Upload::whole(""))
        .await;
    assert_eq!(head.headers()[CONTENT_LENGTH], length.to_string());
    assert!(head.body().is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_page_may_read_responses_if_its_origin_is_allowed() {
    for (origins, fields, expected) in [
        (&["*"][..], &[("origin", "http://o")][..], Some("*")),
        (&["*"], &[], None),
        (&["http://o"], &[("origin", "http://o")], Some("http://o")),
        (&["http://o"], &[("origin", "http://p")], None),
    ] {
        let seat = Seat::with(|config| {
            config.http.cors_origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
        });
        let response = seat
            .send(Method::GET, "/v1/models", fields, Upload::whole(""))
            .await;
        let allowed = response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN);
        assert_eq!(allowed.map(|value| value.to_str().unwrap()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_needed_where_there_are_keys() {
    let bearer = |key: &'static str| [("authorization", key)];
    for (case, path, fields, expected) in [
        (
            "known",
            CHAT,
            &bearer("Bearer secret")[..],
            "200 a; asked a; ok 1",
        ),
        (
            "unknown",
            CHAT,
            &bearer("Bearer other"),
            "401 invalid_api_key; asked ; client_error 1",
        ),
        (
            "missing",
            CHAT,
            &[],
            "401 missing_api_key; asked ; client_error 1",
        ),
    ] {
        let seat = Seat::with_key(1000.0, |_| {});
        assert_eq!(
            sum_up(&seat, Method::POST, path, fields, Upload::whole(&chat("hi"))).await,
            expected,
            "{case}"
        );
    }
    let seat = Seat::with_key(1000.0, |_| {});
    let health = seat.send(Method::GET, "/health", &[], Upload::whole("")).await;
    assert_eq!(health.status(), StatusCode::OK, "a load balancer has no key");
    seat.script("a", [Script::tokens(&["Hi"])]);
    let response = seat
        .ask(CHAT, &[("authorization", "Bearer secret")], &chat("hi"))
        .await;
    assert_eq!(response.headers()["x-ratelimit-limit-tokens"], "1000");
    let heard = seat.upstream.heard("a").remove(0);
    assert!(!heard.head.contains("secret"), "the key is the router's");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_passed_this_router_is_refused() {
    let seat = Seat::new();
    seat.script("a", [Script::tokens(&["Hi"])]);
    drop(seat.ask(CHAT, &[], &chat("hi")).await);
    let head = seat.upstream.heard("a").remove(0).head;
    let via = head
        .lines()
        .find_map(|line| line.strip_prefix("via: "))
        .unwrap()
        .to_owned();
    let looped = seat.ask(CHAT, &[("via", &via)], &chat("hi")).await;
    assert_eq!(looped.status(), StatusCode::LOOP_DETECTED);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_model_waits_for_the_lists_only_as_long_as_for_a_probe() {
    let seat = Seat::with(|config| config.health.timeout = Duration::from_millis(700));
    let unknown = chat("hi").replace("\"m\"", "\"x\"");
    let delivered = within(seat.post(CHAT, &[], &unknown)).await;
    assert_eq!(delivered.code(), "model_not_found");
    assert!(delivered.end_ms <= 700, "{}", delivered.end_ms);
}

#[tokio::test(start_paused = true)]
async fn a_relayed_request_names_its_model_where_models_differ() {
    let fields = [("content-type", "application/json")];
    for (body, expected) in [
        (r#"{"model":"m"}"#, "200 a; asked a; ok 1"),
        (r#"{"model":"n"}"#, "200 b; asked b; ok 1"),
        (r#"{"model":"x"}"#, "404 model_not_found; asked ; client_error 1"),
        (r#"{"model":"#, "400 model_not_read; asked ; client_error 1"),
    ] {
        let seat = Seat::with(|config| config.workers[1].models = vec!["n".to_owned()]);
        seat.script("b", [Script::json(200, "{}")]);
        let sum = sum_up(
            &seat,
            Method::POST,
            "/v1/audio/transcriptions",
            &fields,
            Upload::whole(body),
        )
        .await;
        assert_eq!(sum, expected, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_response_says_how_long_the_router_took() {
    for (method, path) in [
        (Method::GET, "/v1/models"),
        (Method::OPTIONS, "*"),
        (Method::GET, "/nothing"),
    ] {
        let seat = Seat::new();
        let response = seat.send(method, path, &[], Upload::whole("")).await;
        assert!(response.headers().contains_key("server-timing"), "{path}");
        assert_eq!(response.headers().contains_key(ALLOW), path == "*", "{path}");
    }
}

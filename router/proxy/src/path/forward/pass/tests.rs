//! Tests of requests that are relayed unparsed.

use std::time::Duration;

use fleet::overrides::AdminState;
use http::Method;
use http_body_util::BodyExt as _;

use super::*;
use crate::testing::{Delivered, Script, Seat, Upload, headers, next_piece, pass_ms, within};

mod choice;

const BUSY: &str = r#"{"error":{"message":"The request queue is full","code":503}}"#;
const NO_MODEL: &str = r#"{"error":{"code":"model_not_found","message":"no"}}"#;
/// A path whose requests compute nothing that is stored, and one whose requests may.
const READ: &str = "/v1/responses/resp_1/input_items";
const WRITE: &str = "/v1/audio/transcriptions";

fn ok() -> Script {
    Script::json(200, "{}")
}

/// Relays a request without a body, which `a` answers as scripted, and sums it up.
async fn read(a: Script, fields: &[(&str, &str)]) -> String {
    read_with(&Seat::new(), a, fields).await
}

async fn read_on(seat: &Seat, a: Script) -> String {
    read_with(seat, a, &[]).await
}

async fn read_with(seat: &Seat, a: Script, fields: &[(&str, &str)]) -> String {
    seat.script("a", [a]);
    seat.script("b", [ok()]);
    let began = Instant::now();
    let response = seat.send(Method::GET, READ, fields, Upload::whole("")).await;
    let delivered = Delivered::read(response, began).await;
    assert_eq!((seat.in_flight(), seat.proxy.in_flight()), ([0; 3], 0));
    seat.sum_up(&delivered)
}

/// Relays an upload, which `a` answers as scripted.
async fn write(seat: &Seat, a: Script, upload: Upload) -> Delivered {
    seat.script("a", [a]);
    seat.script("b", [ok()]);
    let began = Instant::now();
    let response = seat.send(Method::POST, WRITE, &[], upload).await;
    Delivered::read(response, began).await
}

#[tokio::test(start_paused = true)]
async fn a_response_is_relayed_or_the_request_is_sent_elsewhere() {
    #[rustfmt::skip]
    let cases = [
        ("200", ok(), "200 a; asked a; ok 1"),
        ("400", Script::json(400, "{}"), "400 a; asked a; client_error 1"),
        ("404 without a model", Script::json(404, NO_MODEL), "404 a; asked a; client_error 1"),
        ("429", Script::whole(429, &[], ""), "200 b; asked ab; ok 1"),
        ("503 that declines", Script::json(503, BUSY), "200 b; asked ab; ok 1"),
        ("any other 503", Script::whole(503, &[], ""), "200 b; asked ab; ok 1; charged a"),
        ("500", Script::whole(500, &[], ""), "500 a; asked a; worker_error 1; charged a"),
        ("an error in a 200, which is not parsed", Script::json(200, BUSY), "200 a; asked a; ok 1"),
        ("no connection", Script::refused(), "200 b; asked b; ok 1"),
        ("lost", Script::silent().cut(), "200 b; asked ab; ok 1; charged a"),
        ("silence", Script::silent(), "504 worker_timeout; asked a; router_error 1; charged a"),
    ];
    for (case, script, expected) in cases {
        assert_eq!(read(script, &[]).await, expected, "{case}");
    }
    let deadline = [("x-request-timeout-ms", "500")];
    assert_eq!(
        read(Script::silent(), &deadline).await,
        "504 deadline_exceeded; asked a; router_error 1"
    );
    assert_eq!(read(ok(), &deadline).await, "200 a; asked a; ok 1");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_later_than_the_workers_limit_does_not_excuse_the_worker() {
    let seat = Seat::with(|config| config.limits.first_byte_timeout = Duration::from_secs(1));
    let sum = read_with(&seat, Script::silent(), &[("x-request-timeout-ms", "1500")]).await;
    assert_eq!(sum, "504 worker_timeout; asked a; router_error 1; charged a");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_streams_is_sent_elsewhere_only_while_no_worker_has_read_it() {
    let upload = || Upload::chunks(&[(10, "four"), (10, "more")]).end();
    #[rustfmt::skip]
    let cases = [
        ("answered", ok(), "200 a; asked a; ok 1"),
        ("no connection", Script::refused(), "200 b; asked b; ok 1"),
        ("declined", Script::whole(429, &[], ""), "429 a; asked a; declined 1"),
        ("unavailable", Script::whole(503, &[], ""), "503 a; asked a; worker_error 1; charged a"),
        ("lost", Script::silent().cut(), "502 worker_failed; asked a; router_error 1; charged a"),
    ];
    for (case, script, expected) in cases {
        let seat = Seat::new();
        let delivered = write(&seat, script, upload()).await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
        let body = ["a", "b"].map(|name| seat.upstream.heard(name).first().map(|heard| heard.body.clone()));
        assert_eq!(
            body.iter().flatten().next().map(String::as_str),
            Some("fourmore"),
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_body_of_an_idempotent_request_is_kept_for_a_retry() {
    let upload = |length| Upload::whole(&"x".repeat(length));
    // `/v1/responses/…` is not computed from its input alone, so the client says that it may be repeated.
    let idempotent = [("idempotency-key", "1")];
    #[rustfmt::skip]
    let cases = [
        ("idempotent", &idempotent[..], 100, "200 b; asked ab; ok 1; charged a"),
        ("idempotent and long", &idempotent, (1 << 20) + 1, "502 worker_failed; asked a; router_error 1; charged a"),
        ("not idempotent", &[], 100, "502 worker_failed; asked a; router_error 1; charged a"),
    ];
    for (case, fields, length, expected) in cases {
        let seat = Seat::new();
        seat.script("a", [Script::silent().cut()]);
        seat.script("b", [ok()]);
        let began = Instant::now();
        let response = seat.send(Method::POST, WRITE, fields, upload(length)).await;
        let delivered = Delivered::read(response, began).await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clients_fault_in_its_body_is_no_failure_of_the_worker() {
    let late = Upload::chunks(&[(0, "four"), (61_000, "more")]).end();
    let unended = Upload::chunks(&[(0, "four")]);
    let steering = Upload::chunks(&[(0, "{"), (5, r#""kv_transfer_params":{}}"#)]).end();
    let long = "x".repeat(150);
    let too_long = Upload::chunks(&[(0, &long), (1, &long)]).end();
    #[rustfmt::skip]
    let cases = [
        ("late", late, "408 request_timeout; asked a; client_error 1", 60_000),
        ("never ended", unended, "408 request_timeout; asked a; client_error 1", 60_000),
        ("a field that steers the engine", steering, "400 field_not_allowed; asked a; client_error 1", 5),
        ("too long", too_long, "413 body_too_large; asked a; client_error 1", 1),
    ];
    for (case, upload, expected, end_ms) in cases {
        let seat =
            Seat::with(|config| config.limits.max_body_bytes = std::num::NonZeroUsize::new(200).unwrap());
        let delivered = write(&seat, Script::silent(), upload).await;
        assert_eq!(
            (seat.sum_up(&delivered), delivered.end_ms),
            (expected.to_owned(), end_ms),
            "{case}"
        );
        pass_ms(1).await;
        assert!(
            seat.upstream.heard("a")[0].left_ms.is_some(),
            "{case}: the worker gets no complete request"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_not_late_before_it_has_the_request() {
    let seat = Seat::with(|config| config.limits.first_byte_timeout = Duration::from_secs(20));
    let upload = Upload::chunks(&[(0, "four"), (19_000, "more"), (19_000, "more")]).end();
    let delivered = write(&seat, Script::silent(), upload).await;
    assert_eq!(
        seat.sum_up(&delivered),
        "408 request_timeout; asked a; client_error 1"
    );
    assert_eq!(delivered.end_ms, 20_000);
}

#[tokio::test(start_paused = true)]
async fn a_late_worker_is_excused_while_it_answers_others() {
    let seat = Seat::with(|config| config.limits.first_byte_timeout = Duration::from_secs(10));
    let others = (0..20).fold(Script::head(200, &[]), |script, _| script.wait(1000).chunk("x"));
    seat.hold_others();
    seat.script("a", [others.end(), Script::silent()]);
    let began = Instant::now();
    let get = || seat.send(Method::GET, READ, &[], Upload::whole(""));
    let first = get().await;
    let second = async { Delivered::read(get().await, began).await };
    let (_, delivered) = tokio::join!(Delivered::read(first, began), second);
    assert_eq!(
        seat.sum_up(&delivered),
        "504 worker_timeout; asked aa; ok 1, router_error 1"
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_is_relayed_as_it_comes_and_a_cut_one_is_cut() {
    let events = || Script::head(200, &["content-type: text/event-stream"]);
    let plain = || Script::head(200, &[]);
    let cut = "200 a cut; asked a; ok 1; charged a";
    #[rustfmt::skip]
    let cases = [
        ("complete", plain().chunk("four").wait(50).chunk("more").end(), "200 a; asked a; ok 1", 50),
        ("empty", plain().wait(50).end(), "200 a; asked a; ok 1", 50),
        ("cut", plain().chunk("four").wait(50).cut(), cut, 50),
        ("silent after the first byte", plain().chunk("four"), cut, 2000),
        ("slow", plain().chunk("four").wait(1999).chunk("more").wait(1999).end(), "200 a; asked a; ok 1", 3998),
        ("no first byte", plain().wait(20_000), cut, 10_000),
        ("no first event", events().chunk(": ping\n\n").wait(9000).chunk(": ping\n\n").wait(9000), cut, 10_000),
        ("a late first event", events().wait(9999).chunk("data: x\n\n").end(), "200 a; asked a; ok 1", 9999),
    ];
    for (case, script, expected, end_ms) in cases {
        let seat = Seat::with(|config| {
            config.limits.first_byte_timeout = Duration::from_secs(10);
            config.limits.idle_timeout = Duration::from_secs(2);
        });
        seat.script("a", [script]);
        let began = Instant::now();
        let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
        let delivered = Delivered::read(response, began).await;
        assert_eq!(
            (seat.sum_up(&delivered), delivered.end_ms),
            (expected.to_owned(), end_ms),
            "{case}"
        );
        assert_eq!((seat.in_flight(), seat.proxy.in_flight()), ([0; 3], 0), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_begins_late_is_excused_while_the_worker_answers_others() {
    for (is_busy, charged) in [(true, ""), (false, "; charged a")] {
        let seat = Seat::with(|config| config.limits.first_byte_timeout = Duration::from_secs(10));
        seat.script("a", [Script::head(200, &[])]);
        let began = Instant::now();
        let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
        if is_busy {
            seat.worker("a").count_bytes(1);
        }
        let delivered = Delivered::read(response, began).await;
        assert_eq!(
            seat.sum_up(&delivered),
            format!("200 a cut; asked a; ok 1{charged}")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_and_the_drain_limit_cut_a_response_and_spare_the_worker() {
    #[rustfmt::skip]
    let cases = [
        ("a deadline", &[("x-request-timeout-ms", "1000")][..], 5000, 1000),
        ("the drain limit", &[], 300, 300),
    ];
    for (case, fields, cut_ms, end_ms) in cases {
        let seat = Seat::new();
        seat.script("a", [Script::head(200, &[]).chunk("four").wait(9000).end()]);
        let began = Instant::now();
        let response = seat.send(Method::GET, READ, fields, Upload::whole("")).await;
        let cut = async {
            pass_ms(cut_ms).await;
            seat.proxy.cut_off();
        };
        let (delivered, ()) = tokio::join!(Delivered::read(response, began), cut);
        assert_eq!(
            (seat.sum_up(&delivered), delivered.end_ms),
            ("200 a cut; asked a; ok 1".to_owned(), end_ms),
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_last_piece_frees_the_permit_and_an_empty_body_has_none() {
    let seat = Seat::new();
    seat.script(
        "a",
        [Script::whole(200, &[], "four"), Script::whole(204, &[], "")],
    );
    let get = || seat.send(Method::GET, READ, &[], Upload::whole(""));
    let mut body = get().await.into_body();
    within(next_piece(&mut body)).await.unwrap().unwrap();
    assert_eq!(seat.proxy.in_flight(), 0, "nothing follows");
    drop(body);
    assert!(get().await.body().is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_whose_first_piece_was_read_with_the_head_follows_it() {
    let seat = Seat::with(|config| config.limits.retries = 0);
    seat.script("a", [Script::whole(503, &[], "four")]);
    let began = Instant::now();
    let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
    assert!(!response.body().is_end_stream());
    assert_eq!(response.body().size_hint().exact(), Some(4));
    let delivered = Delivered::read(response, began).await;
    assert_eq!((delivered.status, delivered.text()), (503, "four".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_relayed_asks_to_retry() {
    let seat = Seat::with(|config| config.limits.retries = 0);
    seat.script(
        "a",
        [
            Script::whole(429, &[], ""),
            Script::whole(429, &["retry-after: 7"], ""),
        ],
    );
    for expected in ["1", "7"] {
        seat.hold_others();
        let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
        assert_eq!(response.headers()["retry-after"], expected);
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_are_relayed_without_the_routers_own() {
    let seat = Seat::new();
    seat.script(
        "a",
        [Script::head(200, &[])
            .chunk("four")
            .text("0\r\nx-a: b\r\nx-tailroute-a: b\r\n\r\n")],
    );
    let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
    let collected = within(response.into_body().collect()).await.unwrap();
    assert_eq!(collected.trailers(), Some(&headers(&[("x-a", "b")])));
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_a_failed_probe() {
    let seat = Seat::new();
    let (worker, state) = (seat.worker("a"), &seat.proxy.state);
    for _ in 1..state.config.health.unhealthy_after.get() {
        worker.observe_health(state.routing.clock.now(), fleet::health::Probe::Bad);
    }
    assert!(worker.is_ready());
    assert_eq!(read_on(&seat, Script::refused()).await, "200 b; asked b; ok 1");
    assert!(!worker.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_success_on_trial_closes_the_breaker_and_tells_so() {
    for (script, events) in [(ok(), 1), (Script::json(400, "{}"), 0)] {
        let seat = Seat::new();
        seat.break_worker("a");
        pass_ms(1_001).await;
        let mut happened = seat.proxy.state.operations.operator.events.listen();
        read_on(&seat, script).await;
        assert_eq!(std::iter::from_fn(|| happened.try_recv().ok()).count(), events);
        let breaker = seat
            .worker("a")
            .condition(seat.proxy.state.routing.clock.now())
            .breaker;
        assert_eq!(breaker == BreakerState::Closed, events > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_permit_is_free_once_the_response_is_complete() {
    let seat = Seat::new();
    seat.script("a", [Script::head(200, &[]).chunk("four").wait(10).end()]);
    let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
    let mut body = response.into_body();
    within(next_piece(&mut body)).await.unwrap().unwrap();
    assert_eq!(seat.proxy.in_flight(), 1);
    assert!(within(next_piece(&mut body)).await.is_none());
    assert_eq!(seat.proxy.in_flight(), 0);
    assert_eq!(
        seat.in_flight(),
        [1, 0, 0],
        "the worker's request ends with the body"
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_relayed_response_are_the_workers_progress_from_its_first_event() {
    let seat = Seat::new();
    let events = Script::head(200, &["content-type: text/event-stream"]);
    seat.script(
        "a",
        [events
            .chunk(": ping\n\n")
            .wait(1)
            .chunk("data: x\n\n")
            .wait(1)
            .chunk("more")
            .end()],
    );
    let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
    let mut body = response.into_body();
    for seen in [0, 9, 13] {
        within(next_piece(&mut body)).await.unwrap().unwrap();
        assert_eq!(seat.worker("a").bytes_seen(), seen);
    }
}

#[tokio::test(start_paused = true)]
async fn a_404_of_a_model_is_tried_where_the_model_may_be() {
    let form = |model: &str| {
        format!("--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--x--\r\n")
    };
    let fields = [
        ("content-type", "multipart/form-data; boundary=x"),
        ("idempotency-key", "1"),
    ];
    for (case, is_alone, expected) in [
        ("elsewhere", false, "200 b; asked ab; ok 1"),
        ("nowhere else", true, "404 a; asked a; client_error 1"),
    ] {
        let seat = Seat::new();
        if is_alone {
            seat.hold_others();
        }
        seat.script("a", [Script::json(404, NO_MODEL)]);
        seat.script("b", [ok()]);
        let delivered = seat.post(WRITE, &fields, &form("m")).await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_stored_response_goes_to_the_worker_that_has_it_and_to_no_other() {
    #[rustfmt::skip]
    let cases = [
        ("found", ok(), "200 c; asked c; ok 1"),
        ("not found", Script::json(404, "{}"), "404 c; asked c; client_error 1"),
    ];
    for (case, script, expected) in cases {
        let seat = Seat::new();
        seat.store("resp_1", "c");
        seat.script("c", [script]);
        let began = Instant::now();
        let response = seat
            .send(Method::GET, "/v1/responses/resp_1", &[], Upload::whole(""))
            .await;
        let delivered = Delivered::read(response, began).await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_no_worker_is_refused() {
    let seat = Seat::new();
    seat.hold("a", AdminState::Draining);
    seat.hold_others();
    let began = Instant::now();
    let response = seat.send(Method::GET, READ, &[], Upload::whole("")).await;
    let delivered = Delivered::read(response, began).await;
    assert_eq!(
        seat.sum_up(&delivered),
        "503 no_worker_ready; asked ; router_error 1"
    );
}

//! Tests of what a worker's response means for the request.

use fleet::overrides::AdminState;

use crate::testing::{Script, Seat, chat};

const CHAT: &str = "/v1/chat/completions";
/// An error that names no fault of client or load.
const CRASH: &str = r#"{"error":{"message":"CUDA error","code":500}}"#;
const BUSY: &str = r#"{"error":{"message":"The request queue is full","code":503}}"#;
const NO_MODEL: &str = r#"{"error":{"code":"model_not_found","message":"no"}}"#;

fn event(data: &str) -> Script {
    Script::events().chunk(&format!("data: {data}\n\n")).end()
}

/// Answers a turn by `a` as scripted, or else by another worker, and sums it up.
async fn answered(a: Script, fields: &[(&str, &str)]) -> String {
    let seat = Seat::new();
    seat.script("a", [a]);
    for other in ["b", "c"] {
        seat.script(other, [Script::tokens(&["Hi"])]);
    }
    let delivered = seat.post(CHAT, fields, &chat("hi")).await;
    assert_eq!(seat.in_flight(), [0; 3]);
    seat.sum_up(&delivered)
}

#[tokio::test(start_paused = true)]
async fn a_response_is_relayed_or_the_turn_is_sent_elsewhere() {
    let with_after = |status| Script::whole(status, &["retry-after: 3"], "");
    #[rustfmt::skip]
    let cases = [
        ("a stream", Script::tokens(&["Hi"]), "200 a; asked a; ok 1"),
        ("a whole response", Script::json(200, "{}"), "200 a; asked a; ok 1"),
        ("an empty success", Script::whole(204, &[], ""), "204 a; asked a; ok 1"),
        ("a redirection", Script::whole(307, &[], ""), "307 a; asked a; ok 1"),
        ("400", Script::json(400, CRASH), "400 a; asked a; client_error 1"),
        ("401", Script::whole(401, &[], ""), "401 a; asked a; client_error 1"),
        ("422", Script::json(422, "{}"), "422 a; asked a; client_error 1"),
        ("501", Script::json(501, "{}"), "501 a; asked a; client_error 1"),
        ("404 for the model", Script::json(404, NO_MODEL), "200 b; asked ab; ok 1"),
        ("404 without a reason", Script::whole(404, &[], ""), "200 b; asked ab; ok 1"),
        ("429", Script::whole(429, &[], ""), "200 b; asked ab; ok 1"),
        ("429 with a time", with_after(429), "200 b; asked ab; ok 1"),
        ("529", Script::whole(529, &[], ""), "200 b; asked ab; ok 1"),
        ("503 with a time", with_after(503), "200 b; asked ab; ok 1"),
        ("503 of a full queue", Script::json(503, BUSY), "200 b; asked ab; ok 1"),
        ("any other 503", Script::whole(503, &[], ""), "200 b; asked ab; ok 1; charged a"),
        ("500", Script::json(500, CRASH), "500 a; asked a; worker_error 1; charged a"),
        ("502", Script::whole(502, &[], ""), "502 a; asked a; worker_error 1; charged a"),
        ("an event that declines", event(BUSY), "200 b; asked ab; ok 1"),
        ("a body that declines", Script::json(200, BUSY), "200 b; asked ab; ok 1"),
        ("an event of an error", event(CRASH), "200 a; asked a; error_in_body 1; charged a"),
        ("a body of an error", Script::json(200, CRASH), "200 a; asked a; error_in_body 1; charged a"),
        (
            "an event of the client's error",
            event(r#"{"error":{"code":400}}"#),
            "200 a; asked a; client_error 1",
        ),
        ("no connection", Script::refused(), "200 b; asked b; ok 1"),
        ("a connection that times out", Script::unreachable(2000), "200 b; asked b; ok 1"),
        ("lost before the head", Script::silent().cut(), "502 worker_failed; asked a; worker_error 1; charged a"),
        ("no HTTP", Script::silent().text("SSH-2.0\r\n"), "502 worker_failed; asked a; worker_error 1; charged a"),
        (
            "lost before the first event",
            Script::events().cut(),
            "502 worker_failed; asked a; worker_error 1; charged a",
        ),
        (
            "silence for limits.first_byte_timeout_s",
            Script::silent(),
            "504 worker_timeout; asked a; worker_error 1; charged a",
        ),
    ];
    for (case, script, expected) in cases {
        assert_eq!(answered(script, &[]).await, expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_may_have_begun_is_sent_elsewhere_only_if_it_is_idempotent() {
    let idempotent = [("idempotency-key", "7")];
    #[rustfmt::skip]
    let cases = [
        ("lost before the head", Script::silent().cut(), "200 b; asked ab; ok 1; charged a"),
        ("lost before the first event", Script::events().cut(), "200 b; asked ab; ok 1; charged a"),
        ("an event of an error", event(CRASH), "200 b; asked ab; ok 1; charged a"),
        ("500", Script::json(500, CRASH), "500 a; asked a; worker_error 1; charged a"),
        ("silence", Script::silent(), "504 worker_timeout; asked a; worker_error 1; charged a"),
    ];
    for (case, script, expected) in cases {
        assert_eq!(answered(script, &idempotent).await, expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_the_request_is_no_failure_of_the_worker() {
    #[rustfmt::skip]
    let cases = [
        ("passed before the head", Script::silent(), "504 deadline_exceeded; asked a; deadline 1"),
        (
            "later than the head",
            Script::events().wait(400).token("Hi").done(),
            "200 a; asked a; ok 1",
        ),
    ];
    for (case, script, expected) in cases {
        assert_eq!(
            answered(script, &[("x-request-timeout-ms", "500")]).await,
            expected,
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_later_than_the_workers_limit_does_not_excuse_the_worker() {
    let seat = Seat::with(|config| config.limits.first_byte_timeout = std::time::Duration::from_secs(1));
    let delivered = seat
        .post(CHAT, &[("x-request-timeout-ms", "1500")], &chat("hi"))
        .await;
    assert_eq!(
        seat.sum_up(&delivered),
        "504 worker_timeout; asked a; worker_error 1; charged a"
    );
    assert_eq!(delivered.end_ms, 1000);
}

#[tokio::test(start_paused = true)]
async fn the_head_waits_for_what_may_refuse_the_turn_but_not_for_long() {
    #[rustfmt::skip]
    let cases = [
        ("the first token at once", Script::tokens(&["Hi"]), 0),
        ("the first token soon", Script::events().wait(60).token("Hi").done(), 60),
        ("the first token late", Script::events().wait(900).token("Hi").done(), 100),
        ("a 503 without a body", Script::head(503, &[]), 1000),
        ("a 404 without a body", Script::head(404, &[]), 1000),
        ("a 429 without a body", Script::head(429, &[]), 0),
        ("a 500 without a body", Script::head(500, &[]), 0),
        ("a success that cannot hold an error", Script::head(200, &["content-type: audio/mpeg"]), 0),
    ];
    for (case, script, expected) in cases {
        let seat = Seat::with(|config| config.limits.retries = 0);
        seat.script("a", [script]);
        let began = seat.now_ms();
        let response = seat.ask(CHAT, &[], &chat("hi")).await;
        assert_eq!(seat.now_ms() - began, expected, "{case}");
        drop(response);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_are_bounded_per_request_and_for_all_requests() {
    let busy = || Script::whole(429, &[], "");
    let cases = [
        (2, 1.0, "429 c; asked abc; declined 1"),
        (1, 1.0, "429 b; asked ab; declined 1"),
        (0, 1.0, "429 a; asked a; declined 1"),
        (2, 0.0, "429 a; asked a; declined 1"),
    ];
    for (retries, floor, expected) in cases {
        let seat = Seat::with(|config| {
            config.limits.retries = retries;
            config.failure.retry_share = 0.0;
            config.failure.retry_floor_per_s = floor;
        });
        for name in ["a", "b", "c"] {
            seat.script(name, [busy()]);
        }
        let delivered = seat.chat("hi").await;
        assert_eq!(seat.sum_up(&delivered), expected);
        assert_eq!(delivered.field("retry-after"), "1", "the worker named no time");
        let refused = seat.metric("tailroute_retries_refused_total", &[]);
        assert_eq!(refused > 0.0, floor == 0.0, "{expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_retry_is_counted_for_the_worker_that_failed() {
    let seat = Seat::new();
    seat.script("a", [Script::whole(429, &["retry-after: 9"], "")]);
    seat.script("b", [Script::refused()]);
    seat.script("c", [Script::whole(529, &["retry-after: 4"], "")]);
    let delivered = seat.chat("hi").await;
    assert_eq!(seat.sum_up(&delivered), "529 c; asked ac; declined 1");
    assert_eq!(delivered.field("retry-after"), "4");
    let retries = ["worker=a", "worker=b", "worker=c"];
    let retries = retries.map(|worker| seat.metric("tailroute_retries_total", &[worker]));
    assert_eq!(retries, [1.0, 1.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_does_not_begin_with_a_refusal() {
    let seat = Seat::new();
    for name in ["a", "b", "c"] {
        seat.script(name, [event(BUSY)]);
    }
    let delivered = seat.chat("hi").await;
    assert_eq!(seat.sum_up(&delivered), "503 workers_busy; asked abc; declined 1");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_reaches_no_worker_is_the_routers_error() {
    let seat = Seat::new();
    for name in ["a", "b", "c"] {
        seat.script(name, [Script::refused()]);
    }
    let delivered = seat.chat("hi").await;
    assert_eq!(
        seat.sum_up(&delivered),
        "502 worker_failed; asked ; router_error 1"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_stays_within_normal_use_and_a_failure_does_not() {
    #[rustfmt::skip]
    let cases = [
        ("declined", Script::whole(429, &[], ""), "429 a; asked a; declined 1"),
        ("unavailable", Script::whole(503, &[], ""), "503 a; asked a; worker_error 1; charged a"),
        ("lost", Script::silent().cut(), "200 b; asked ab; ok 1; charged a"),
        ("no connection", Script::refused(), "200 b; asked b; ok 1"),
    ];
    for (case, script, expected) in cases {
        let seat = Seat::with(|config| config.failure.max_ejected_share = 1.0);
        seat.break_worker("b");
        seat.break_worker("c");
        seat.script("a", [script]);
        seat.script("b", [Script::tokens(&["Hi"])]);
        let delivered = seat.post(CHAT, &[("idempotency-key", "7")], &chat("hi")).await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_be_connected_to_fails_a_probe_unless_it_is_busy() {
    #[rustfmt::skip]
    let cases = [
        ("refused", Script::refused(), false, false),
        ("refused while busy", Script::refused(), true, false),
        ("timed out", Script::unreachable(2000), false, false),
        ("timed out while busy", Script::unreachable(2000), true, true),
    ];
    for (case, script, is_busy, is_ready) in cases {
        let seat = Seat::new();
        let (worker, state) = (seat.worker("a"), &seat.proxy.state);
        let other = is_busy.then(|| seat.occupy("a"));
        // One more failure of this kind would take the worker out of rotation, a late probe would not.
        for _ in 1..state.config.health.unhealthy_after.get() {
            worker.observe_health(state.routing.clock.now(), fleet::health::Probe::Bad);
        }
        seat.script("a", [script]);
        seat.script("b", [Script::tokens(&["Hi"])]);
        seat.chat("hi").await;
        assert_eq!(worker.is_ready(), is_ready, "{case}");
        drop(other);
    }
}

#[tokio::test(start_paused = true)]
async fn a_404_is_relayed_where_no_other_worker_can_have_the_model() {
    #[rustfmt::skip]
    let cases = [
        ("all others are drained", Script::json(404, NO_MODEL), "", "404 a; asked a; client_error 1"),
        ("the response is pinned", Script::json(404, NO_MODEL), "a", "404 a; asked a; client_error 1"),
    ];
    for (case, script, home, expected) in cases {
        let seat = Seat::new();
        if home.is_empty() {
            seat.hold("b", AdminState::Draining);
            seat.hold("c", AdminState::Draining);
        }
        seat.script("a", [script.clone(), script]);
        let mut body = r#"{"model":"m","input":"hi"}"#.to_owned();
        if !home.is_empty() {
            seat.store("resp_1", home);
            body = r#"{"model":"m","input":"hi","previous_response_id":"resp_1"}"#.to_owned();
        }
        let delivered = seat.post("/v1/responses", &[], &body).await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_model_is_tried_elsewhere_beyond_the_limits_of_other_refusals() {
    #[rustfmt::skip]
    let cases = [
        // Of the two that remain without `a`, breakers withhold one.
        ("denied", Script::json(404, NO_MODEL), "200 c; asked ac; ok 1"),
        ("not said", Script::json(404, "{}"), "200 b; asked ab; ok 1"),
    ];
    for (case, script, expected) in cases {
        let seat = Seat::with(|config| {
            config.failure.max_ejected_share = 1.0;
            config.limits.retries = u32::from(case == "not said");
        });
        seat.break_worker("b");
        seat.break_worker("c");
        seat.script("a", [script]);
        for other in ["b", "c"] {
            seat.script(other, [Script::tokens(&["Hi"])]);
        }
        let delivered = seat.chat("hi").await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_worker_is_excused_while_it_answers_others() {
    let seat = Seat::with(|config| config.limits.first_byte_timeout = std::time::Duration::from_secs(10));
    let others = (0..20).fold(Script::events(), |script, _| script.wait(1000).token("Hi"));
    seat.script("a", [others.done(), Script::silent()]);
    let began = tokio::time::Instant::now();
    let first = seat.ask(CHAT, &[], &chat("one")).await;
    seat.hold_others();
    let (_, delivered) = tokio::join!(crate::testing::Delivered::read(first, began), seat.chat("two"));
    assert_eq!(
        seat.sum_up(&delivered),
        "504 worker_timeout; asked aa; ok 1, worker_error 1"
    );
}

#[tokio::test(start_paused = true)]
async fn the_terms_of_a_decision_are_told_on_request() {
    let seat = Seat::with(|config| config.explain.in_answers = true);
    seat.script("a", [Script::tokens(&["Hi"])]);
    let delivered = seat
        .post(CHAT, &[("x-tailroute-explain", "1")], &chat("hi"))
        .await;
    assert!(delivered.field("x-tailroute-explain").contains('a'));
}

#[tokio::test(start_paused = true)]
async fn a_404_without_a_reason_is_relayed_where_models_are_unknown() {
    for (case, body, expected) in [
        ("not said", "{}", "404 a; asked a; client_error 1"),
        ("denied", NO_MODEL, "200 b; asked ab; ok 1"),
    ] {
        let seat = Seat::with(|config| {
            for worker in &mut config.workers {
                worker.models.clear();
            }
        });
        seat.script("a", [Script::json(404, body)]);
        seat.script("b", [Script::tokens(&["Hi"])]);
        let delivered = seat.chat("hi").await;
        assert_eq!(seat.sum_up(&delivered), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_declines_is_avoided_as_long_as_it_asks() {
    let seat = Seat::new();
    seat.script("a", [Script::whole(429, &["retry-after: 9"], "")]);
    seat.script("b", [Script::tokens(&["Hi"])]);
    seat.chat("hi").await;
    let is_avoided = || {
        seat.worker("a")
            .condition(seat.proxy.state.routing.clock.now())
            .is_avoided
    };
    assert!(is_avoided());
    crate::testing::pass_ms(750).await;
    assert!(!is_avoided(), "not beyond the bound");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_counts_as_cached_from_the_first_byte_of_its_request() {
    let seat = Seat::new();
    let turn = seat.turn(&"long prompt ".repeat(100));
    seat.script(
        "a",
        [Script::silent()
            .wait(50)
            .text("HTTP/1.1 500 S\r\ncontent-length: 0\r\n\r\n")],
    );
    let look = async {
        crate::testing::pass_ms(10).await;
        seat.resident(&turn)[0]
    };
    let prompt = "long prompt ".repeat(100);
    let (in_flight, _) = tokio::join!(look, seat.chat(&prompt));
    assert_eq!(
        (in_flight, seat.resident(&turn)[0]),
        (288, 0),
        "in flight, and after an error"
    );
}

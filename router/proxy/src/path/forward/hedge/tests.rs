//! Tests of when a turn is hedged, which response is used, and what becomes of the other.

use std::time::Duration;

use fleet::breaker::BreakerState;
use fleet::overrides::AdminState;

use crate::testing::{Script, Seat, chat, pass_ms, usage};

/// Time after which a turn is hedged.
const AFTER_MS: u64 = 100;

fn seat() -> Seat {
    Seat::with(|config| config.failure.hedge_after = Some(Duration::from_millis(AFTER_MS)))
}

/// The first token after so many milliseconds.
fn late(ms: u64) -> Script {
    Script::silent()
        .wait(ms)
        .text("HTTP/1.1 200 S\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        .token("Hi")
        .done()
}

fn failing(ms: u64) -> Script {
    Script::silent().wait(ms).cut()
}

#[tokio::test(start_paused = true)]
async fn the_first_response_is_used_and_the_other_attempt_is_cancelled() {
    let busy = |ms| {
        Script::silent()
            .wait(ms)
            .text("HTTP/1.1 429 S\r\ncontent-length: 0\r\n\r\n")
    };
    let head_first = Script::events().wait(300).token("Hi").done();
    // Responses of `a` and `b`; then the sum, when the head came, hedges sent and won, when `a` and `b` were left.
    #[rustfmt::skip]
    let cases = [
        ("in time", late(99), late(0), "200 a; asked a; ok 1", 99, [0, 0], [None, None]),
        ("the hedge is faster", late(500), late(50), "200 b; asked ab; ok 1", 150, [1, 1], [Some(150), None]),
        ("the hedge is slower", late(120), late(50), "200 a; asked ab; ok 1", 120, [1, 0], [None, Some(120)]),
        ("both at once", late(150), late(50), "200 a; asked ab; ok 1", 150, [1, 0], [None, None]),
        ("a head is no response", head_first, late(50), "200 b; asked ab; ok 1", 150, [1, 1], [Some(150), None]),
        ("the first one fails", failing(120), late(80), "200 b; asked ab; ok 1; charged a", 180, [1, 0], [None, None]),
        ("the hedge fails", late(180), failing(20), "200 a; asked ab; ok 1; charged b", 180, [1, 0], [None, None]),
        ("the first one declines", busy(120), late(80), "200 b; asked ab; ok 1", 180, [1, 0], [None, None]),
        ("the hedge declines", late(180), busy(20), "200 a; asked ab; ok 1", 180, [1, 0], [None, None]),
        (
            "both fail: one failure, of the first to fail",
            failing(120),
            failing(80),
            "502 worker_failed; asked ab; worker_error 1; charged a",
            180,
            [1, 0],
            [None, None],
        ),
    ];
    for (case, a, b, sum, head_ms, hedges, left) in cases {
        let seat = seat();
        seat.script("a", [a]);
        seat.script("b", [b]);
        let delivered = seat.chat("hi").await;
        assert_eq!(seat.sum_up(&delivered), sum, "{case}");
        assert_eq!(delivered.head_ms, head_ms, "{case}");
        let counted =
            ["what=sent", "what=won"].map(|what| seat.metric("tailroute_hedges_total", &[what]) as u64);
        assert_eq!(counted, hedges, "{case}");
        pass_ms(1).await;
        let heard = ["a", "b"].map(|name| seat.upstream.heard(name).first().and_then(|heard| heard.left_ms));
        assert_eq!(heard, left, "{case}");
        assert_eq!(seat.in_flight(), [0; 3], "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_not_hedged_without_another_worker_in_normal_use_or_a_budget() {
    type Prepare = fn(&Seat);
    #[rustfmt::skip]
    let cases: [(&str, f64, Prepare, u64); 4] = [
        ("the others are drained", 10.0, |seat| ["b", "c"].iter().for_each(|name| seat.hold(name, AdminState::Draining)), 0),
        ("one other breaker is open, the other worker drained", 10.0, |seat| {
            seat.hold("b", AdminState::Draining);
            seat.break_worker("c");
        }, 0),
        ("no budget", 0.0, |_| {}, 1),
        ("a worker and a budget", 10.0, |_| {}, 0),
    ];
    for (case, floor, prepare, refused) in cases {
        let seat = Seat::with(|config| {
            config.failure.hedge_after = Some(Duration::from_millis(AFTER_MS));
            config.failure.retry_share = 0.0;
            config.failure.retry_floor_per_s = floor;
        });
        prepare(&seat);
        seat.script("a", [late(200)]);
        let delivered = seat.chat("hi").await;
        assert_eq!((delivered.worker(), delivered.head_ms), ("a", 200), "{case}");
        let hedged = seat.asked() == "ab";
        assert_eq!(hedged, case == "a worker and a budget", "{case}");
        assert_eq!(
            seat.metric("tailroute_hedges_total", &["what=refused"]) as u64,
            refused,
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_the_budget_refuses_is_left_to_another_request() {
    let seat = Seat::with(|config| {
        config.failure.hedge_after = Some(Duration::from_millis(AFTER_MS));
        config.failure.retry_share = 0.0;
        config.failure.retry_floor_per_s = 0.0;
    });
    seat.break_worker("b");
    // `b` may be tried again after a second: 50 ms before the turn is hedged.
    pass_ms(950).await;
    seat.script("a", [late(200)]);
    let drain = async {
        pass_ms(60).await;
        seat.hold("c", AdminState::Draining);
    };
    let (delivered, ()) = tokio::join!(seat.chat("hi"), drain);
    assert_eq!(delivered.worker(), "a");
    assert_eq!(seat.metric("tailroute_hedges_total", &["what=refused"]) as u64, 1);
    let now = seat.proxy.state.routing.clock.now();
    assert_eq!(seat.worker("b").condition(now).breaker, BreakerState::HalfOpen);
}

#[tokio::test(start_paused = true)]
async fn a_hedged_turn_is_charged_and_learned_once() {
    let seat = Seat::with_key(10_000.0, |config| {
        config.failure.hedge_after = Some(Duration::from_millis(AFTER_MS));
    });
    let its = |ms| {
        Script::silent()
            .wait(ms)
            .text("HTTP/1.1 200 S\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .token("Hi")
            .chunk(&usage(100, 5, None))
            .done()
    };
    seat.script("a", [its(500)]);
    seat.script("b", [its(50)]);
    let turn = seat.turn("hi");
    let delivered = seat
        .post(
            "/v1/chat/completions",
            &[("authorization", "Bearer secret")],
            &chat("hi"),
        )
        .await;
    assert_eq!(seat.sum_up(&delivered), "200 b; asked ab; ok 1");
    assert_eq!(seat.tokens_left(), 10_000 - 105);
    assert_eq!(
        seat.resident(&turn)[0],
        0,
        "the mirror of the slower one drops the prompt"
    );
    assert_eq!(seat.observations().len(), 1);
    let outcomes: Vec<_> = seat.decisions().iter().map(|slot| slot.came.outcome).collect();
    assert_eq!(outcomes, [Some("outrun"), Some("ok")]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_both_attempts_is_retried_on_a_third_worker_only_if_idempotent() {
    #[rustfmt::skip]
    let cases = [
        (&[][..], "502 worker_failed; asked ab; worker_error 1; charged a"),
        (&[("idempotency-key", "1")][..], "200 c; asked abc; ok 1; charged a"),
    ];
    for (fields, sum) in cases {
        let seat = seat();
        seat.script("a", [failing(120)]);
        seat.script("b", [failing(80)]);
        seat.script("c", [late(0)]);
        let delivered = seat.post("/v1/chat/completions", fields, &chat("hi")).await;
        assert_eq!(seat.sum_up(&delivered), sum);
    }
}

//! Tests of what an attempt records at its first token.

use super::*;
use protocol::api::Endpoint;

use crate::testing::{Seat, chat, pass_ms};

/// Metrics of one first token: their number, the seconds to it, its delay, turns within the objective and beyond it,
/// and the seconds beyond it.
fn sum_up(seat: &Seat) -> [f64; 6] {
    let rounded = |seconds: f64| (seconds * 1e3).round() / 1e3;
    let times = |name: &str| {
        let name = format!("tailroute_time_to_first_token_{name}");
        rounded(seat.metric(&name, &["worker=a"]))
    };
    let turns = |met: &str| seat.metric("tailroute_slo_turns_total", &[met]);
    let (within, beyond) = (turns("met=true"), turns("met=false"));
    let excess = seat.metric(
        "tailroute_tail_excess_seconds_total",
        &["class=default", "worker=a"],
    );
    [
        times("seconds_count"),
        times("seconds_sum"),
        times("error_seconds_sum"),
        within,
        beyond,
        rounded(excess),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_first_token_is_timed_from_arrival_and_compared_with_prediction_and_objective() {
    // A prompt of 3 tokens takes 13 ms on `a`; the objective is 500 ms.
    let delayed = [1.0, 0.2, 0.187, 1.0, 0.0, 0.0];
    #[rustfmt::skip]
    let cases = [
        ("in time", 200, true, false, delayed),
        ("at the objective", 500, true, false, [1.0, 0.5, 0.487, 1.0, 0.0, 0.0]),
        ("late", 600, true, false, [1.0, 0.6, 0.587, 0.0, 1.0, 0.1]),
        ("of a whole response, to which the objective does not apply", 600, false, false, [1.0, 0.6, 0.587, 0.0, 0.0, 0.0]),
        ("untimed", 200, true, true, [1.0, 0.2, 0.0, 1.0, 0.0, 0.0]),
    ];
    for (case, after_ms, streamed, is_untimed, expected) in cases {
        let seat = Seat::new();
        let mut flight = seat.start(&Arc::new(seat.turn("hi")));
        if is_untimed {
            flight.mark_untimed();
        }
        pass_ms(after_ms).await;
        flight.first_token(streamed);
        let found = sum_up(&seat);
        assert_eq!(found, expected, "{case}");
        pass_ms(after_ms).await;
        flight.first_token(streamed);
        assert_eq!(sum_up(&seat), expected, "{case}: there is one first token");
        let errors = seat.worker("a").errors.lock().percentiles();
        assert_eq!(errors.is_some(), !is_untimed, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_token_ends_the_predicted_wait_and_counts_as_a_success() {
    let seat = Seat::new();
    let mut flight = seat.start(&Arc::new(seat.turn(&"long prompt ".repeat(100))));
    let wait = || {
        let now = seat.proxy.state.routing.clock.now();
        seat.worker("a").with_load(|load| load.pending.wait(now))
    };
    assert!(wait() > Millis::ZERO);
    flight.first_token(true);
    assert_eq!(wait(), Millis::ZERO);
    assert_eq!(seat.in_flight(), [1, 0, 0], "its response is not over");
    assert!(
        seat.worker("a")
            .outcomes(seat.proxy.state.routing.clock.now())
            .good
            > 0.9
    );
}

#[tokio::test(start_paused = true)]
async fn a_conversation_stays_with_the_worker_of_its_last_first_token() {
    let seat = Seat::new();
    let turn = Arc::new(seat.turn_of(&[("x-session-id", "s")], &chat("hi")));
    let key = turn.session.as_ref().unwrap().key;
    let last = || seat.proxy.state.routing.knowledge.last_worker(key);
    let mut flight = seat.start(&turn);
    assert_eq!(last(), None);
    flight.first_token(true);
    assert_eq!(last(), Some(WorkerId(0)));
}

#[tokio::test(start_paused = true)]
async fn only_chats_and_completions_end_with_done() {
    let seat = Seat::new();
    for (endpoint, expected) in [
        (Endpoint::Chat, true),
        (Endpoint::Completions, true),
        (Endpoint::Responses, false),
        (Endpoint::Messages, false),
        (Endpoint::Generate, false),
    ] {
        let turn = Arc::new(Turn {
            endpoint,
            ..seat.turn("hi")
        });
        assert_eq!(seat.start(&turn).is_ended_by_done(), expected, "{endpoint:?}");
    }
}

//! Tests of what each outcome of an attempt does to breaker, key, mirror, learner and metrics.

use std::sync::Arc;
use std::time::Duration;

use fleet::breaker::BreakerState;
use fleet::rotation::Condition;
use protocol::watch::Usage;

use super::AttemptOutcome::*;
use super::*;
use crate::path::retry::Charged;
use crate::testing::{Seat, pass_ms, relay, token};

/// Tokens that the request was charged with on arrival.
const CHARGED: u64 = 40;
const BURST: u64 = 10_000;

fn declined() -> AttemptOutcome {
    Declined(PushBack { after: None })
}

fn prompt() -> String {
    "long prompt ".repeat(100)
}

/// Ends an attempt on a fresh seat, after a first token or before one, and sums up what that changed: the outcome
/// counted, failures of the worker, tokens that the key paid, whether the mirror holds the prompt, turns learned.
fn sum_up(outcome: AttemptOutcome, begun: bool, usage: Option<Usage>) -> String {
    let seat = Seat::with_key(BURST as f64, |_| {});
    let turn = Arc::new(seat.turn(&prompt()));
    let mut flight = seat.start(&turn);
    flight.keep(Some(seat.permit(CHARGED)));
    if begun {
        relay(&mut flight, &token("eight by"));
        flight.first_token(true);
    }
    let seen = ResponseReport {
        usage,
        ..ResponseReport::default()
    };
    flight.end(AttemptEnd {
        seen: Some(seen),
        keeps_reply: false,
        ..outcome.into()
    });
    assert_eq!(seat.in_flight(), [0; 3]);
    assert_eq!(seat.proxy.in_flight(), 0);
    assert_eq!(seat.proxy.admission.keys().unsettled(), 0);
    let failures = seat.metric("tailroute_worker_failures_total", &["worker=a"]);
    let paid = BURST - seat.tokens_left();
    let held = if seat.resident(&turn)[0] > 0 {
        "held"
    } else {
        "gone"
    };
    format!(
        "{}; {failures} failed; {paid} paid; {held}; {} learned",
        seat.outcomes(),
        seat.observations().len()
    )
}

#[tokio::test(start_paused = true)]
async fn after_a_first_token_only_an_error_undoes_the_computation() {
    #[rustfmt::skip]
    let cases = [
        (Ok, "ok 1; 0 failed; 42 paid; held; 1 learned"),
        (ClientError, "client_error 1; 0 failed; 0 paid; gone; 0 learned"),
        (declined(), "declined 1; 0 failed; 0 paid; gone; 0 learned"),
        (WorkerError, "worker_error 1; 1 failed; 0 paid; gone; 0 learned"),
        (ErrorInBody, "error_in_body 1; 1 failed; 42 paid; gone; 0 learned"),
        (Broken, "broken 1; 1 failed; 42 paid; held; 1 learned"),
        (Aborted, "aborted 1; 0 failed; 42 paid; held; 1 learned"),
        (Deadline, "deadline 1; 0 failed; 42 paid; held; 1 learned"),
        (Cut, "cut 1; 0 failed; 42 paid; held; 1 learned"),
    ];
    for (outcome, expected) in cases {
        assert_eq!(sum_up(outcome, true, None), expected, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn before_a_first_token_nothing_was_computed_and_only_a_leaving_client_pays() {
    #[rustfmt::skip]
    let cases = [
        (Ok, "ok 1; 0 failed; 40 paid; gone; 0 learned"),
        (ClientError, "client_error 1; 0 failed; 0 paid; gone; 0 learned"),
        (declined(), "declined 1; 0 failed; 0 paid; gone; 0 learned"),
        (WorkerError, "worker_error 1; 1 failed; 0 paid; gone; 0 learned"),
        (ErrorInBody, "error_in_body 1; 1 failed; 0 paid; gone; 0 learned"),
        (Broken, "broken 1; 1 failed; 0 paid; gone; 0 learned"),
        (Aborted, "aborted 1; 0 failed; 40 paid; gone; 0 learned"),
        (Deadline, "deadline 1; 0 failed; 40 paid; gone; 0 learned"),
        (Cut, "cut 1; 0 failed; 40 paid; gone; 0 learned"),
        (NotReached, "; 0 failed; 40 paid; gone; 0 learned"),
        (Outrun, "; 0 failed; 40 paid; gone; 0 learned"),
    ];
    for (outcome, expected) in cases {
        assert_eq!(sum_up(outcome, false, None), expected, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_count_of_the_worker_is_what_the_key_pays() {
    let usage = Some(Usage {
        prompt: 100,
        completion: 5,
        cached: None,
    });
    for outcome in [
        Ok,
        ClientError,
        declined(),
        WorkerError,
        ErrorInBody,
        Broken,
        Aborted,
        Deadline,
        Cut,
    ] {
        for begun in [true, false] {
            let sum = sum_up(outcome, begun, usage);
            assert!(sum.contains("; 105 paid;"), "{outcome:?} {begun}: {sum}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_without_generated_tokens_costs_its_prompt() {
    #[rustfmt::skip]
    let cases = [
        ("/v1/embeddings", r#"{"model":"m","input":"34 bytes"}"#, 8),
        ("/v1/chat/completions", r#"{"model":"m","messages":[{"role":"user","content":"twelve bytes"}]}"#, 5 + 5),
    ];
    for (path, body, expected) in cases {
        let seat = Seat::with_key(BURST as f64, |_| {});
        seat.script(
            "a",
            [crate::testing::Script::json(
                200,
                r#"{"choices":[{"message":{"content":"eighteen bytes !!!"}}]}"#,
            )],
        );
        let delivered = seat.post(path, &[("authorization", "Bearer secret")], body).await;
        assert_eq!(delivered.status, 200, "{path}");
        assert_eq!(BURST - seat.tokens_left(), expected, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_counts_as_one_failure_however_many_attempts_fail() {
    let seat = Seat::new();
    let (turn, charged) = (Arc::new(seat.turn("hi")), Charged::default());
    for _ in 0..2 {
        seat.attempt(&turn, &charged).end(WorkerError);
    }
    assert_eq!(seat.metric("tailroute_worker_failures_total", &[]), 1.0);
    seat.start(&turn).end(WorkerError);
    assert_eq!(
        seat.metric("tailroute_worker_failures_total", &[]),
        2.0,
        "another request"
    );
}

#[tokio::test(start_paused = true)]
async fn the_trial_of_a_half_open_breaker_decides_or_is_given_back() {
    for (outcome, begun, expected) in [
        (Ok, false, BreakerState::Closed),
        (Aborted, true, BreakerState::Closed),
        (Aborted, false, BreakerState::HalfOpen),
        (Deadline, false, BreakerState::HalfOpen),
        (Cut, false, BreakerState::HalfOpen),
        (ClientError, false, BreakerState::HalfOpen),
        (declined(), false, BreakerState::HalfOpen),
        (NotReached, false, BreakerState::HalfOpen),
        (Outrun, false, BreakerState::HalfOpen),
        (WorkerError, false, BreakerState::Open),
        (ErrorInBody, false, BreakerState::Open),
        (Broken, true, BreakerState::Open),
    ] {
        let seat = Seat::new();
        seat.break_worker("a");
        pass_ms(1_001).await;
        let mut announced = seat.proxy.state.operations.operator.events.listen();
        let state = |seat: &Seat| {
            seat.worker("a")
                .condition(seat.proxy.state.routing.clock.now())
                .breaker
        };
        let mut flight = seat.start(&Arc::new(seat.turn("hi")));
        assert_eq!(state(&seat), BreakerState::Open, "the trial is in flight");
        if begun {
            flight.first_token(true);
            assert_eq!(state(&seat), BreakerState::Closed);
        }
        // After the first token, one failure more does not open a breaker that has just closed.
        let expected = if (outcome, begun) == (Broken, true) {
            BreakerState::Closed
        } else {
            expected
        };
        flight.end(outcome);
        assert_eq!(state(&seat), expected, "{outcome:?} {begun}");
        let is_announced = announced.try_recv().is_ok();
        assert_eq!(
            is_announced,
            expected != BreakerState::HalfOpen,
            "{outcome:?} {begun}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_declines_is_avoided_as_long_as_it_asks() {
    for (after, until_ms) in [(None, 50), (Some(Duration::from_millis(200)), 200)] {
        let seat = Seat::new();
        seat.start(&Arc::new(seat.turn("hi")))
            .end(Declined(PushBack { after }));
        let is_avoided = |seat: &Seat| {
            seat.worker("a")
                .condition(seat.proxy.state.routing.clock.now())
                .is_avoided
        };
        pass_ms(until_ms - 1).await;
        assert!(is_avoided(&seat), "{after:?}");
        pass_ms(1).await;
        assert!(!is_avoided(&seat), "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_fails_is_sent_elsewhere_next_time() {
    let seat = Seat::new();
    let turn = Arc::new(seat.turn("hi"));
    seat.start(&turn).end(WorkerError);
    assert_eq!(seat.choose(&turn).worker.name(), "b");
    assert_eq!(seat.choose(&seat.turn("something else")).worker.name(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_late_first_token_is_excused_while_the_worker_answers_others() {
    let limit = Duration::from_secs(600);
    for (overrun, is_busy, failures) in [
        (Overrun::NotBegun(limit), true, 0.0),
        (Overrun::NotBegun(limit), false, 1.0),
        (Overrun::Silent(limit), true, 1.0),
        (Overrun::Late, false, 0.0),
        (Overrun::Cut, false, 0.0),
    ] {
        let seat = Seat::new();
        let mut flight = seat.start(&Arc::new(seat.turn("hi")));
        if is_busy {
            seat.worker("a").count_bytes(1);
        }
        flight.spare_if_busy(overrun);
        flight.end(WorkerError);
        assert_eq!(
            seat.metric("tailroute_worker_failures_total", &[]),
            failures,
            "{overrun:?} {is_busy}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_attempt_is_aborted_once() {
    let seat = Seat::with_key(BURST as f64, |_| {});
    let turn = Arc::new(seat.turn(&prompt()));
    let mut flight = seat.start(&turn);
    flight.keep(Some(seat.permit(CHARGED)));
    flight.first_token(true);
    assert_eq!(seat.in_flight(), [1, 0, 0]);
    drop(flight);
    assert_eq!(seat.outcomes(), "aborted 1");
    assert_eq!((seat.in_flight(), seat.proxy.in_flight()), ([0; 3], 0));
    assert!(seat.resident(&turn)[0] > 0);
    let condition = seat.worker("a").condition(seat.proxy.state.routing.clock.now());
    assert_eq!(condition, Condition::WELL);
}

#[tokio::test(start_paused = true)]
async fn an_omitted_count_of_cached_tokens_is_zero_where_the_worker_reports_them() {
    let usage = |cached| Usage {
        prompt: 100,
        completion: 5,
        cached,
    };
    // Whether the worker has reported cached tokens before, the count, whether the response is whole; the tokens learned.
    for (has_reported, cached, is_whole, expected) in [
        (false, None, true, None),
        (true, None, true, Some(0)),
        (true, None, false, None),
        (false, Some(7), true, Some(7)),
        (true, Some(7), false, Some(7)),
    ] {
        let seat = Seat::new();
        if has_reported {
            assert_eq!(seat.worker("a").cached(Some(1)), Some(1));
        }
        let mut flight = seat.start(&Arc::new(seat.turn("hi")));
        flight.first_token(true);
        let seen = ResponseReport {
            usage: Some(usage(cached)),
            ..ResponseReport::default()
        };
        flight.end(AttemptEnd {
            seen: Some(seen),
            keeps_reply: is_whole,
            ..Ok.into()
        });
        let observation = seat.observations().remove(0);
        let told = observation.cached_is_told.then_some(observation.cached.0);
        assert_eq!(told, expected, "{has_reported} {cached:?} {is_whole}");
        assert_eq!(seat.decisions()[0].came.cached, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_ends_the_request_unless_another_attempt_follows() {
    for (outcome, name, is_final, is_the_workers, may_be_computed) in [
        (Ok, "ok", true, false, true),
        (ClientError, "client_error", true, false, false),
        (declined(), "declined", true, false, false),
        (WorkerError, "worker_error", true, true, false),
        (ErrorInBody, "error_in_body", true, true, false),
        (Broken, "broken", true, true, true),
        (Aborted, "aborted", true, false, true),
        (Deadline, "deadline", true, false, true),
        (Cut, "cut", true, false, true),
        (NotReached, "not_reached", false, false, true),
        (Outrun, "outrun", false, false, true),
    ] {
        assert_eq!(outcome.as_str(), name);
        let is = (
            outcome.is_final(),
            outcome.is_the_workers(),
            outcome.may_be_computed(),
        );
        assert_eq!(is, (is_final, is_the_workers, may_be_computed), "{outcome:?}");
    }
}

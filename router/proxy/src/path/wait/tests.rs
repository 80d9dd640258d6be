//! Tests of the queue in front of the workers.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use metrics::AdmissionGauges;
use tokio::time::Instant;

use super::*;
use crate::testing::{Seat, chat, pass_ms, within};

const TIMEOUT_MS: u64 = 1000;

/// One request at a time, on `a` only.
fn one_at_a_time(config: &mut Config) {
    config.admission.max_concurrent_per_worker = NonZeroU32::new(1);
    config.admission.queue_timeout = Duration::from_millis(TIMEOUT_MS);
    config.admission.max_queue = NonZeroUsize::MIN;
    config.workers.truncate(1);
}

fn seat() -> Arc<Seat> {
    Arc::new(Seat::with(one_at_a_time))
}

/// Returns the code of a refusal; empty if the turn was admitted.
fn refusal(admitted: &Result<RequestPermit, &'static str>) -> &'static str {
    admitted.as_ref().err().copied().unwrap_or_default()
}

/// Admits a turn. Returns its permit, or the code of its error.
async fn admit(seat: &Seat, arrived: &Turn) -> Result<RequestPermit, &'static str> {
    let mut permit = seat.proxy.acquire().unwrap();
    let admitted = seat
        .in_context(async |context| turn(context, arrived, &mut permit).await)
        .await;
    admitted.map(|()| permit).map_err(|error| error.code())
}

/// Spawns the admission of a turn. Returns the code of its error, and the milliseconds until then.
fn queue(seat: &Arc<Seat>) -> tokio::task::JoinHandle<(Result<RequestPermit, &'static str>, u64)> {
    let (seat, began) = (Arc::clone(seat), Instant::now());
    tokio::spawn(async move {
        let arrived = seat.turn("hi");
        let admitted = admit(&seat, &arrived).await;
        (admitted, began.elapsed().as_millis() as u64)
    })
}

fn counts(seat: &Seat) -> (usize, usize) {
    let AdmissionGauges { waiting, admitted } = seat.proxy.admission.gate.counts();
    (waiting, admitted)
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_where_nothing_limits() {
    let seat = Seat::new();
    let permit = admit(&seat, &seat.turn("hi")).await.unwrap();
    assert!(permit.gate.is_none());
    assert_eq!(seat.metric("tailroute_admission_wait_seconds_count", &[]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_turn_waits_until_there_is_room() {
    let seat = seat();
    let first = admit(&seat, &seat.turn("hi")).await.unwrap();
    let second = queue(&seat);
    pass_ms(70).await;
    assert_eq!(counts(&seat), (1, 1));
    drop(first);
    let (admitted, waited_ms) = second.await.unwrap();
    assert_eq!(waited_ms, 70);
    assert_eq!(counts(&seat), (0, 1));
    drop(admitted.unwrap());
    assert_eq!(counts(&seat), (0, 0));
    let waited = seat.metric("tailroute_admission_wait_seconds_sum", &[]);
    assert!((waited - 0.07).abs() < 1e-6, "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_turn_waits_no_longer_than_the_limit() {
    let seat = seat();
    let _first = admit(&seat, &seat.turn("hi")).await.unwrap();
    let (admitted, waited_ms) = queue(&seat).await.unwrap();
    assert_eq!((refusal(&admitted), waited_ms), ("queue_timeout", TIMEOUT_MS));
    assert_eq!(counts(&seat), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let seat = seat();
    let _first = admit(&seat, &seat.turn("hi")).await.unwrap();
    let second = queue(&seat);
    pass_ms(1).await;
    let (admitted, waited_ms) = queue(&seat).await.unwrap();
    assert_eq!((refusal(&admitted), waited_ms), ("queue_full", 0));
    assert!(!second.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_makes_room_in_the_queue_and_pays_nothing() {
    let seat = Arc::new(Seat::with_key(1000.0, one_at_a_time));
    let first = admit(&seat, &seat.turn("hi")).await.unwrap();
    let left = seat.tokens_left();
    let second = queue(&seat);
    pass_ms(1).await;
    assert!(seat.tokens_left() < left, "it is charged while it waits");
    second.abort();
    pass_ms(1).await;
    assert_eq!((counts(&seat), seat.tokens_left()), ((0, 1), left));
    let third = queue(&seat);
    pass_ms(1).await;
    drop(first);
    assert_eq!(refusal(&third.await.unwrap().0), "");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_its_key_cannot_pay_does_not_wait() {
    let seat = Seat::with_key(10.0, one_at_a_time);
    let turn = seat.turn(&"long prompt ".repeat(100));
    // A key may be overdrawn by one turn.
    let first = admit(&seat, &turn).await;
    let second = within(admit(&seat, &turn)).await;
    assert_eq!((refusal(&first), refusal(&second)), ("", "rate_limit_exceeded"));
    assert_eq!(counts(&seat), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn turns_that_would_be_late_are_shed() {
    // A prompt of 302 tokens takes 312 ms on the best worker. Of an objective, 95 % count.
    for (objective_ms, cached, expected) in [
        ("320", false, "objective_out_of_reach"),
        ("330", false, ""),
        ("60", true, ""),
    ] {
        let seat = Seat::with(|config| config.admission.shed = true);
        let prompt = chat(&"long prompt ".repeat(100));
        let arrived = seat.turn_of(&[("x-slo-ttft-ms", objective_ms)], &prompt);
        // While a worker is idle, one turn is admitted to verify the prediction.
        drop(admit(&seat, &arrived).await.unwrap());
        if cached {
            seat.proxy
                .state
                .routing
                .knowledge
                .update(policy::ids::WorkerId(2), |residency| {
                    let chain = &arrived.fingerprint.chain;
                    residency.sent(policy::ids::WorkerId(2), chain, |end| end / 4)
                });
        }
        let admitted = admit(&seat, &arrived).await;
        assert_eq!(refusal(&admitted), expected, "{objective_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_waits_only_as_long_as_it_can_be_in_time() {
    let seat = Arc::new(Seat::with(|config| {
        one_at_a_time(config);
        config.admission.shed = true;
    }));
    let _first = admit(&seat, &seat.turn("hi")).await.unwrap();
    let arrived = seat.turn_of(&[("x-slo-ttft-ms", "200")], &chat("hi"));
    let began = Instant::now();
    let admitted = within(admit(&seat, &arrived)).await;
    assert_eq!(refusal(&admitted), "objective_out_of_reach");
    assert_eq!(began.elapsed().as_millis(), 190, "95 % of the objective");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_makes_room_for_the_next_by_its_workers_load() {
    let seat = Arc::new(Seat::with(|config| {
        config.admission.max_wait = Some(Millis(50.0));
        config.admission.queue_timeout = Duration::from_millis(TIMEOUT_MS);
        config.workers.truncate(1);
    }));
    let mut first = admit(&seat, &seat.turn("hi")).await.unwrap();
    let second = queue(&seat);
    pass_ms(20).await;
    assert_eq!(counts(&seat), (1, 1), "one turn may be on its way");
    first.sent();
    let (admitted, waited_ms) = second.await.unwrap();
    assert_eq!(waited_ms, 20);
    assert_eq!(refusal(&admitted), "");
    assert_eq!(counts(&seat), (0, 2));
}

//! Tests of which worker a relayed request goes to.

use fleet::overrides::AdminState;

use super::super::*;
use crate::testing::{Seat, chat, headers, pass_ms};

#[tokio::test(start_paused = true)]
async fn a_request_goes_to_the_least_busy_worker_that_may_get_it() {
    type Prepare = fn(&Seat, &mut Wanted);
    #[rustfmt::skip]
    let cases: [(&str, Prepare, &[u32], &str); 15] = [
        ("an idle fleet", |_, _| {}, &[], "a"),
        ("tried", |_, _| {}, &[0], "b"),
        ("all tried", |_, _| {}, &[0, 1, 2], ""),
        ("drained", |seat, _| seat.hold("a", AdminState::Draining), &[], "b"),
        ("an open breaker", |seat, _| seat.break_worker("a"), &[], "b"),
        ("an open breaker, and no other worker", |seat, _| {
            seat.hold_others();
            seat.break_worker("a");
        }, &[], "a"),
        ("a pause", |seat, _| seat.occupy("a").declined(None), &[], "b"),
        ("one address", |_, wanted| wanted.among = Some(Among::One(WorkerId(2))), &[], "c"),
        ("no address", |_, wanted| wanted.among = Some(Among::Listed(Vec::new())), &[], ""),
        ("a model", |_, wanted| wanted.model = Some("m".to_owned()), &[], "a"),
        ("a model of no worker", |_, wanted| wanted.model = Some("other".to_owned()), &[], ""),
        ("pinned", |_, wanted| wanted.pinned_to = Some(WorkerId(1)), &[], "b"),
        ("pinned to a cordoned worker", |seat, wanted| {
            wanted.pinned_to = Some(WorkerId(1));
            seat.hold("b", AdminState::Cordoned);
        }, &[], "b"),
        ("pinned to a draining worker", |seat, wanted| {
            wanted.pinned_to = Some(WorkerId(1));
            seat.hold("b", AdminState::Draining);
        }, &[], "a"),
        ("pinned to a worker at another address", |_, wanted| {
            wanted.pinned_to = Some(WorkerId(1));
            wanted.among = Some(Among::One(WorkerId(2)));
        }, &[], "c"),
    ];
    for (case, prepare, tried, expected) in cases {
        let seat = Seat::new();
        let mut wanted = Wanted::default();
        prepare(&seat, &mut wanted);
        let tried: Vec<WorkerId> = tried.iter().copied().map(WorkerId).collect();
        let taken = some_worker(&seat.proxy.state.routing, &HeaderMap::new(), &tried, &wanted);
        let name = taken.as_ref().map_or("", |taken| taken.worker().name());
        assert_eq!(name, expected, "{case}");
        let others = Wanted {
            pinned_to: None,
            ..wanted
        };
        let is_free = is_other_free(&seat.proxy.state.routing, &tried, &others);
        let is_held = matches!(case, "an open breaker, and no other worker");
        assert_eq!(is_free, !expected.is_empty() || is_held, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_prefers_its_worker_and_any_other_request_the_least_busy_one() {
    let seat = Seat::new();
    let session = [("x-session-id", "s")];
    let turn = seat.turn_of(&session, &chat("hi"));
    let key = turn.session.unwrap().key;
    seat.proxy
        .state
        .routing
        .knowledge
        .moved(seat.proxy.state.routing.clock.now(), key, WorkerId(2));
    let (_one, _other) = (seat.occupy("c"), seat.occupy("a"));
    #[rustfmt::skip]
    let cases = [
        ("of the conversation", &session[..], &[][..], "c"),
        ("of the conversation, whose worker was tried", &session, &[WorkerId(2)], "b"),
        ("of another conversation", &[("x-session-id", "t")], &[], "b"),
        ("of none", &[], &[], "b"),
    ];
    for (case, fields, tried, expected) in cases {
        let taken = some_worker(
            &seat.proxy.state.routing,
            &headers(fields),
            tried,
            &Wanted::default(),
        )
        .unwrap();
        assert_eq!(taken.worker().name(), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_trial_of_a_half_open_breaker_is_given_to_one_request_and_a_failed_one_is_passed_on() {
    let seat = Seat::new();
    seat.break_worker("a");
    pass_ms(1_001).await;
    let wanted = Wanted::default();
    let take = |seat: &Seat| some_worker(&seat.proxy.state.routing, &HeaderMap::new(), &[], &wanted).unwrap();
    let trial = take(&seat);
    assert_eq!(trial.worker().name(), "a");
    assert_eq!(take(&seat).worker().name(), "b", "`a` is on trial");
    seat.hold_others();
    assert_eq!(
        take(&seat).worker().name(),
        "a",
        "one on trial is better than none"
    );
}

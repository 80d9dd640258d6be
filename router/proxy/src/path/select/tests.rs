//! Tests of which worker a turn goes to.

use fleet::overrides::AdminState;
use policy::units::Millis;

use super::super::among::Among;
use super::*;
use crate::testing::Seat;

const A: WorkerId = WorkerId(0);
const B: WorkerId = WorkerId(1);
const C: WorkerId = WorkerId(2);

type Prepare = fn(&Seat, &mut Turn);

/// Returns the name of the chosen worker, or the code of the error.
fn chosen(seat: &Seat, turn: &Turn, tried: &[WorkerId]) -> String {
    match select(&seat.proxy.state.routing, turn, tried) {
        Ok(choice) => choice.worker.name().to_owned(),
        Err(error) => error.code().to_owned(),
    }
}

/// Has a worker compute a turn's prompt.
fn compute(seat: &Seat, turn: &Turn, worker: WorkerId) {
    seat.proxy.state.routing.knowledge.update(worker, |residency| {
        let hold = residency
            .sent(worker, &turn.fingerprint.chain, |end| end)
            .unwrap();
        residency.settle(hold, None, |end| end, Tokens::ZERO, Tokens(1000));
    });
}

fn hold_all(seat: &Seat, state: AdminState) {
    for name in ["a", "b", "c"] {
        seat.hold(name, state);
    }
}

fn listed(seat: &Seat, names: &[&str]) -> Option<Among> {
    let addresses = names.iter().map(|name| seat.worker(name).endpoint.unwrap());
    Some(Among::Listed(addresses.collect()))
}

#[tokio::test(start_paused = true)]
async fn a_turn_goes_to_the_cheapest_worker_that_may_get_it() {
    #[rustfmt::skip]
    let cases: &[(&str, Prepare, &[WorkerId], &str)] = &[
        ("an idle fleet", |_, _| {}, &[], "a"),
        ("the cheapest was tried", |_, _| {}, &[A], "b"),
        ("two were tried", |_, _| {}, &[A, B], "c"),
        ("all were tried", |_, _| {}, &[A, B, C], "worker_failed"),
        ("cordoned", |seat, _| seat.hold("a", AdminState::Cordoned), &[], "b"),
        ("draining", |seat, _| seat.hold("a", AdminState::Draining), &[], "b"),
        ("leaving", |seat, _| seat.hold("a", AdminState::Leaving), &[], "b"),
        (
            "not offered by its source",
            |seat, _| {
                seat.worker("a").set_offered(false);
            },
            &[],
            "b",
        ),
        ("all drained", |seat, _| hold_all(seat, AdminState::Draining), &[], "no_worker_ready"),
        ("an open breaker", |seat, _| seat.break_worker("a"), &[], "b"),
        (
            "the prompt is cached elsewhere",
            |seat, turn| compute(seat, turn, C),
            &[],
            "c",
        ),
        (
            "the holder of the prompt is drained",
            |seat, turn| {
                compute(seat, turn, C);
                seat.hold("c", AdminState::Draining);
            },
            &[],
            "a",
        ),
        (
            "the same prompt has failed there",
            |seat, turn| seat.fail_on("a", turn.source()),
            &[],
            "b",
        ),
        (
            "another prompt has failed there",
            |seat, _| seat.fail_on("a", Some(7)),
            &[],
            "a",
        ),
    ];
    for (case, prepare, tried, expected) in cases {
        let seat = Seat::new();
        let mut turn = seat.turn(&"long prompt ".repeat(100));
        prepare(&seat, &mut turn);
        assert_eq!(chosen(&seat, &turn, tried), *expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_goes_only_where_its_restrictions_allow() {
    #[rustfmt::skip]
    let cases: &[(&str, Prepare, &str)] = &[
        ("any address", |_, turn| turn.among = Some(Among::Addressed), "a"),
        ("one worker", |_, turn| turn.among = Some(Among::One(C)), "c"),
        ("a list", |seat, turn| turn.among = listed(seat, &["c", "b"]), "b"),
        ("an empty list", |seat, turn| turn.among = listed(seat, &[]), "no_worker_ready"),
        (
            "the only listed one is drained",
            |seat, turn| {
                turn.among = listed(seat, &["b"]);
                seat.hold("b", AdminState::Draining);
            },
            "no_worker_ready",
        ),
        ("pinned", |_, turn| turn.pinned_to = Some(C), "c"),
        (
            "pinned to a cordoned worker",
            |seat, turn| {
                turn.pinned_to = Some(C);
                seat.hold("c", AdminState::Cordoned);
            },
            "c",
        ),
        (
            "pinned to a draining worker, which gets nothing more",
            |seat, turn| {
                turn.pinned_to = Some(C);
                seat.hold("c", AdminState::Draining);
            },
            "a",
        ),
        (
            "pinned to a worker with an open breaker",
            |seat, turn| {
                turn.pinned_to = Some(C);
                seat.break_worker("c");
            },
            "c",
        ),
        (
            "pinned to a worker outside the list",
            |seat, turn| {
                turn.pinned_to = Some(C);
                turn.among = listed(seat, &["b"]);
            },
            "b",
        ),
        ("pinned to a slot without a worker", |_, turn| turn.pinned_to = Some(WorkerId(9)), "a"),
        (
            "pinned, without a model",
            |_, turn| {
                turn.pinned_to = Some(B);
                turn.model = "".into();
            },
            "b",
        ),
        (
            "pinned to a worker without the model",
            |_, turn| {
                turn.pinned_to = Some(B);
                turn.model = "other".into();
            },
            "no_worker_ready",
        ),
    ];
    for (case, prepare, expected) in cases {
        let seat = Seat::new();
        let mut turn = seat.turn("hi");
        prepare(&seat, &mut turn);
        assert_eq!(chosen(&seat, &turn, &[]), *expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_is_served_where_it_is_listed() {
    #[rustfmt::skip]
    let cases = [
        ("m", config::UnlistedModels::Refuse, "a"),
        ("other", config::UnlistedModels::Refuse, "c"),
        ("nobody's", config::UnlistedModels::Refuse, "no_worker_ready"),
        ("nobody's", config::UnlistedModels::Pass, "a"),
        ("", config::UnlistedModels::Refuse, "a"),
    ];
    for (model, unlisted, expected) in cases {
        let seat = Seat::with(|config| {
            config.routing.unlisted_models = unlisted;
            config.workers[2].models = vec!["other".to_owned()];
        });
        let mut turn = seat.turn("hi");
        turn.model = model.into();
        assert_eq!(chosen(&seat, &turn, &[]), expected, "{model} {unlisted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pinned_turn_has_no_alternative_and_is_not_sent_to_its_worker_twice() {
    let seat = Seat::new();
    let turn = Turn {
        pinned_to: Some(C),
        ..seat.turn("hi")
    };
    let choice = seat.choose(&turn);
    assert!(!choice.has_alternative && !choice.may_go_elsewhere);
    assert_eq!(chosen(&seat, &turn, &[C]), "worker_failed");
}

#[tokio::test(start_paused = true)]
async fn a_choice_says_where_else_the_turn_may_go() {
    let cases: &[(&str, Prepare, &[WorkerId], [bool; 3])] = &[
        // The columns: regardless, has_alternative, may_go_elsewhere.
        ("an idle fleet", |_, _| {}, &[], [false, true, true]),
        ("one other is left", |_, _| {}, &[A], [false, true, true]),
        ("the last one", |_, _| {}, &[A, B], [false, false, false]),
        (
            "the others are drained",
            |seat, _| {
                seat.hold("b", AdminState::Draining);
                seat.hold("c", AdminState::Draining);
            },
            &[],
            [false, false, false],
        ),
        (
            "the breakers of the others are open",
            |seat, _| {
                seat.break_worker("b");
                seat.break_worker("c");
            },
            &[],
            [false, false, true],
        ),
        (
            "the usual one has failed, and the breakers of the others are open",
            |seat, _| {
                seat.break_worker("b");
                seat.break_worker("c");
            },
            &[A],
            [true, false, true],
        ),
        (
            "all breakers are open",
            |seat, _| ["a", "b", "c"].iter().for_each(|name| seat.break_worker(name)),
            &[],
            [true, false, true],
        ),
    ];
    for (case, prepare, tried, expected) in cases {
        let seat = Seat::with(|config| config.failure.max_ejected_share = 1.0);
        let mut turn = seat.turn("hi");
        prepare(&seat, &mut turn);
        let choice = select(&seat.proxy.state.routing, &turn, tried).unwrap();
        let flags = [choice.regardless, choice.has_alternative, choice.may_go_elsewhere];
        assert_eq!(flags, *expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn breakers_withhold_only_the_configured_share_of_the_workers() {
    let seat = Seat::new();
    seat.break_worker("a");
    seat.break_worker("b");
    let choice = seat.choose(&seat.turn("hi"));
    assert!(
        choice.regardless,
        "one of three may be withheld, and another one is cheaper than `c`"
    );
    assert_eq!(choice.worker.name(), "b");
    assert_eq!(seat.metric("tailroute_breaker_passed_over_total", &[]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_choice_keeps_the_match_and_the_view_of_its_worker() {
    let seat = Seat::new();
    let turn = seat.turn(&"long prompt ".repeat(100));
    compute(&seat, &turn, B);
    let choice = seat.choose(&turn);
    assert_eq!(choice.worker.id, B);
    assert_eq!(choice.matched.mirrored, turn.fingerprint.chain.hashes().len());
    assert_eq!(choice.matched.source.as_str(), "mirror");
    assert!(choice.matched.prompt > Tokens(200));
    assert_eq!(choice.view.id, B);
    assert_eq!(choice.timed().count(), 0, "nothing is traced");
    assert_eq!(seat.metric("tailroute_worker_turns_total", &["worker=b"]), 1.0);
    assert_eq!(seat.metric("tailroute_decisions_total", &["policy=tail"]), 1.0);
    assert_eq!(seat.choose(&turn).decision.sequence, choice.decision.sequence + 1);
}

#[tokio::test(start_paused = true)]
async fn the_least_prefill_is_that_of_the_ready_worker_with_the_most_cached() {
    let prompt = "long prompt ".repeat(100);
    #[rustfmt::skip]
    let cases: &[(&str, Prepare, Option<&str>)] = &[
        ("nothing cached", |_, _| {}, Some("a")),
        ("cached on c", |seat, turn| compute(seat, turn, C), Some("c")),
        (
            "cached on a drained worker",
            |seat, turn| {
                compute(seat, turn, C);
                seat.hold("c", AdminState::Draining);
            },
            Some("a"),
        ),
        (
            "cached on a worker that the turn may not go to",
            |seat, turn| {
                compute(seat, turn, C);
                turn.among = Some(Among::One(B));
            },
            Some("b"),
        ),
        ("another model", |_, turn| turn.model = "other".into(), None),
        ("no worker is ready", |seat, _| hold_all(seat, AdminState::Draining), None),
    ];
    for (case, prepare, worker) in cases {
        let seat = Seat::new();
        let mut turn = seat.turn(&prompt);
        let tokens = seat.choose(&turn).matched.prompt;
        prepare(&seat, &mut turn);
        let expected = worker.map(|name| {
            let cost = seat.worker(name).cost();
            let cached = Tokens(seat.resident(&turn)[seat.worker(name).id.index()]).min(tokens);
            cost.prefill(tokens.saturating_sub(cached), cached)
        });
        assert_eq!(
            least_prefill(&seat.proxy.state.routing, &turn),
            expected,
            "{case}"
        );
        assert!(expected.is_none_or(|prefill| prefill > Millis::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shadow_policy_sees_every_decision() {
    let seat = Seat::new();
    let settings = seat.proxy.state.routing.policy.load().settings.clone();
    let shadow = std::sync::Arc::new(operator::shadow::Shadow::new(settings));
    seat.proxy.state.routing.shadow.store(Some(Arc::clone(&shadow)));
    let turn = seat.turn("hi");
    for _ in 0..3 {
        seat.choose(&turn);
    }
    assert_eq!(shadow.tally().turns, 3);
}

#[tokio::test(start_paused = true)]
async fn a_worker_on_trial_is_chosen_as_usual() {
    let seat = Seat::new();
    seat.break_worker("a");
    crate::testing::pass_ms(1_001).await;
    let choice = seat.choose(&seat.turn("hi"));
    assert_eq!((choice.worker.id, choice.regardless), (A, false));
}

#[tokio::test(start_paused = true)]
async fn a_conversation_stays_where_it_was_if_that_is_weighed() {
    for (affinity_ms, expected) in [(0.0, "a"), (1000.0, "c")] {
        let seat = Seat::with(|config| config.routing.weights.affinity_ms = affinity_ms);
        let turn = seat.turn_of(&[("x-session-id", "s")], &crate::testing::chat("hi"));
        let key = turn.session.as_ref().unwrap().key;
        seat.proxy.state.routing.knowledge.moved(Millis::ZERO, key, C);
        assert_eq!(chosen(&seat, &turn, &[]), expected);
    }
}

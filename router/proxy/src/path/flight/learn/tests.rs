//! Tests of the observations that the learner gets.

use policy::estimate::Finish;
use protocol::watch::Usage;

use super::*;
use crate::path::flight::{AttemptEnd, AttemptOutcome};
use crate::testing::{Seat, pass_ms, relay, token};

/// A prompt of 302 tokens, which `a` computes in 312 ms.
fn prompt() -> String {
    "long prompt ".repeat(100)
}

const PREFILL_MS: u64 = 312;

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Option<Usage> {
    Some(Usage {
        prompt,
        completion,
        cached,
    })
}

fn complete(seen: ResponseReport) -> AttemptEnd {
    AttemptEnd {
        seen: Some(seen),
        keeps_reply: true,
        ..AttemptOutcome::Ok.into()
    }
}

fn kinds(seat: &Seat) -> String {
    let kind = |event: LearnerEvent| match event {
        LearnerEvent::Turn(_) => "turn",
        LearnerEvent::Late(_) => "late",
        LearnerEvent::Sent(_) => "sent",
        LearnerEvent::Begun(_) => "begun",
    };
    seat.learned()
        .into_iter()
        .map(kind)
        .collect::<Vec<_>>()
        .join(", ")
}

#[tokio::test(start_paused = true)]
async fn a_first_token_twice_as_late_as_the_whole_prefill_is_reported_at_once() {
    #[rustfmt::skip]
    let cases = [
        ("as predicted", PREFILL_MS, true, true, "turn"),
        ("late", 2 * PREFILL_MS, true, true, "turn"),
        ("twice as late", 2 * PREFILL_MS + 1, true, true, "late, turn"),
        ("not streamed", 2 * PREFILL_MS + 1, false, true, "turn"),
        ("beside other work", 2 * PREFILL_MS + 1, true, false, "turn"),
    ];
    for (case, after_ms, streamed, alone, expected) in cases {
        let seat = Seat::new();
        let turn = Arc::new(seat.turn(&prompt()));
        let other = (!alone).then(|| {
            seat.hold_others();
            seat.start(&turn)
        });
        let mut flight = seat.start(&turn);
        pass_ms(after_ms).await;
        flight.first_token(streamed);
        flight.end(complete(ResponseReport::default()));
        assert_eq!(kinds(&seat), expected, "{case}");
        drop(other);
    }
}

#[tokio::test(start_paused = true)]
async fn the_overhead_beside_a_prefill_does_not_make_it_late() {
    const OVERHEAD_MS: u64 = 100;
    // Twice the prefill and its overhead, and the overhead of this response.
    let limit_ms = 2 * (PREFILL_MS + OVERHEAD_MS) + OVERHEAD_MS;
    for (after_ms, expected) in [(limit_ms, "turn"), (limit_ms + 1, "late, turn")] {
        let seat = Seat::new();
        seat.worker("a").set_overhead(Millis(OVERHEAD_MS as f64));
        seat.hold_others();
        let mut flight = seat.start(&Arc::new(seat.turn(&prompt())));
        pass_ms(after_ms).await;
        flight.first_token(true);
        flight.end(complete(ResponseReport::default()));
        assert_eq!(kinds(&seat), expected, "{after_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefill_is_learned_once_from_the_best_source() {
    let engine = ResponseReport {
        prefill: Some(Millis(250.0)),
        queue: Some(Millis(20.0)),
        ..ResponseReport::default()
    };
    let measured = PrefillSample::Clean(Millis(300.0));
    #[rustfmt::skip]
    let cases = [
        ("measured", 300, true, false, ResponseReport::default(), Some(measured)),
        ("reported by the engine", 300, true, false, engine, Some(PrefillSample::Engine(Millis(250.0)))),
        ("not streamed", 300, false, false, ResponseReport::default(), None),
        ("untimed", 300, true, true, ResponseReport::default(), None),
        ("untimed, reported by the engine", 300, true, true, engine, Some(PrefillSample::Engine(Millis(250.0)))),
        ("learned when it was late", 2000, true, false, ResponseReport::default(), None),
    ];
    for (case, after_ms, streamed, is_untimed, seen, expected) in cases {
        let seat = Seat::new();
        let mut flight = seat.start(&Arc::new(seat.turn(&prompt())));
        if is_untimed {
            flight.mark_untimed();
        }
        pass_ms(after_ms).await;
        flight.first_token(streamed);
        flight.end(complete(seen));
        let observation = seat.observations().remove(0);
        let times = |sample| match sample {
            PrefillSample::Engine(Millis(ms)) => ("engine", ms.round()),
            PrefillSample::Clean(Millis(ms)) => ("clean", ms.round()),
            PrefillSample::Counters(Millis(ms)) => ("counters", ms.round()),
        };
        assert_eq!(observation.prefill.map(times), expected.map(times), "{case}");
        let beside = observation.beside.map(|Millis(ms)| ms.round());
        assert_eq!(beside, seen.queue.filter(|_| !is_untimed).map(|_| 30.0), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn counts_of_a_worker_are_learned_and_the_rest_is_estimated() {
    let none = None;
    #[rustfmt::skip]
    let cases = [
        ("nothing counted", none, 302, 5, 0, false),
        ("tokens counted", usage(400, 7, None), 400, 7, 0, false),
        ("cached tokens counted", usage(400, 7, Some(160)), 400, 7, 160, true),
        ("an empty count", usage(0, 0, None), 302, 5, 0, false),
    ];
    for (case, usage, prompt_tokens, response, cached, is_told) in cases {
        let seat = Seat::new();
        let turn = Arc::new(seat.turn(&prompt()));
        let mut flight = seat.start(&turn);
        relay(&mut flight, &token("eight by"));
        pass_ms(100).await;
        flight.first_token(true);
        pass_ms(50).await;
        flight.end(complete(ResponseReport {
            usage,
            finish: Finish::Stop,
            ..ResponseReport::default()
        }));
        let seen = seat.observations().remove(0);
        assert_eq!(
            (seen.prompt, seen.cached),
            (Tokens(prompt_tokens), Tokens(cached)),
            "{case}"
        );
        assert_eq!(
            (seen.response, seen.cached_is_told),
            (Tokens(response), is_told),
            "{case}"
        );
        assert_eq!(
            (seen.worker, seen.left, seen.last),
            (policy::ids::WorkerId(0), None, false),
            "{case}"
        );
        assert_eq!(seen.finish, Finish::Stop, "{case}");
        assert_eq!((seen.ended - seen.arrived).0.round(), 150.0, "{case}");
        assert_eq!(seen.ttft.0.round(), 100.0, "{case}");
        assert!(seen.end.is_some(), "{case}");
        let session = turn.session.as_ref().unwrap();
        assert_eq!(seen.conversation.unwrap().0, session.key, "{case}");
        let units = 1202.0;
        assert!(
            (seen.tokens_per_unit - prompt_tokens as f64 / units).abs() < 0.01,
            "{case}: {}",
            seen.tokens_per_unit
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_response_teaches_the_predicted_time_of_its_counted_prompt() {
    for (usage, expected) in [
        (None, PREFILL_MS as f64),
        (usage(400, 7, None), 410.0),
        (usage(400, 7, Some(160)), 410.0),
    ] {
        let seat = Seat::new();
        let mut flight = seat.start(&Arc::new(seat.turn(&prompt())));
        pass_ms(5000).await;
        flight.first_token(false);
        flight.end(complete(ResponseReport {
            usage,
            ..ResponseReport::default()
        }));
        assert_eq!(seat.observations()[0].ttft, Millis(expected), "{usage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_moves_names_the_worker_that_it_left() {
    let seat = Seat::new();
    let fields = [("x-session-id", "s"), ("x-session-end", "1")];
    let turn = Arc::new(seat.turn_of(&fields, &crate::testing::chat(&prompt())));
    for (held, left) in [("", None), ("a", Some(policy::ids::WorkerId(0)))] {
        if !held.is_empty() {
            seat.hold(held, fleet::overrides::AdminState::Cordoned);
        }
        let mut flight = seat.start(&turn);
        flight.first_token(true);
        flight.end(complete(ResponseReport::default()));
        let observation = seat.observations().remove(0);
        assert_eq!((observation.left, observation.last), (left, true));
    }
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_generate_nothing_teach_nothing() {
    let seat = Seat::new();
    seat.script("a", [crate::testing::Script::json(200, "{}")]);
    let delivered = seat
        .post("/v1/embeddings", &[], r#"{"model":"m","input":"hi"}"#)
        .await;
    assert_eq!(seat.sum_up(&delivered), "200 a; asked a; ok 1");
    assert_eq!(kinds(&seat), "");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_takes_hints_is_given_room_as_turns_are_sent_and_begin() {
    // Whether the worker takes hints between requests, the tokens stored by the next turns, whether the response
    // streams; then the events.
    for (takes_hints, next_turns, streamed, expected) in [
        (true, 1_000_000, true, "sent, begun, turn"),
        (true, 0, true, "begun, turn"),
        (true, 0, false, "turn"),
        (false, 1_000_000, true, "turn"),
    ] {
        let seat = Seat::with(|config| {
            // The prompt fills all but a block.
            config.workers[0].capacity = Tokens(320);
            if takes_hints {
                config.workers[0].dialect = config::Dialect::Tailroute;
            }
        });
        seat.proxy
            .state
            .routing
            .feedback
            .publish_next_turns(Tokens(next_turns));
        let mut flight = seat.start(&Arc::new(seat.turn(&prompt())));
        flight.first_token(streamed);
        flight.end(complete(ResponseReport::default()));
        assert_eq!(kinds(&seat), expected, "{takes_hints} {next_turns} {streamed}");
    }
}

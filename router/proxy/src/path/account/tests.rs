//! Tests of what the account of a decision says.

use fleet::Slowdown;
use policy::estimate::{Against, Slow};
use policy::ids::WorkerId;
use policy::slo::Cause;

use super::*;
use crate::testing::{Seat, pass_ms};

/// A prompt of 302 tokens, which `a` computes in 312 ms.
fn turn(seat: &Seat) -> Turn {
    seat.turn(&"long prompt ".repeat(100))
}

fn open(seat: &Seat, turn: &Turn) -> Account {
    Account::open(&seat.proxy, turn, &seat.choose(turn))
}

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Option<Usage> {
    Some(Usage {
        prompt,
        completion,
        cached,
    })
}

fn end(usage: Option<Usage>) -> End<'static> {
    End {
        outcome: "ok",
        usage,
        engine: None,
        took: Millis(900.0),
        class: "default",
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_recorded_when_it_is_made_and_completed_as_it_turns_out() {
    let seat = Seat::new();
    let turn = turn(&seat);
    pass_ms(5).await;
    let mut account = open(&seat, &turn);
    let came = seat.decisions()[0].came;
    assert_eq!((came.outcome, came.ttft), (None, None));
    let error = account.first_token(&seat.proxy.decisions, Millis(400.0), true);
    assert_eq!(
        error.0.round(),
        400.0 - 5.0 - 312.0,
        "from sending, beyond the prediction"
    );
    let came = seat.decisions()[0].came;
    assert_eq!(
        (came.outcome, came.ttft, came.is_judged),
        (None, Some(Millis(400.0)), true)
    );
    account.close(&seat.proxy, end(usage(310, 7, Some(16))));
    let came = seat.decisions()[0].came;
    assert_eq!((came.outcome, came.took), (Some("ok"), Millis(900.0)));
    assert_eq!((came.counted, came.cached), (Some([310, 7]), Some(16)));
    assert_eq!(came.cause, None, "within the objective");
    assert!(came.parts.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_objective_is_met_or_missed_by_the_first_token_it_applies_to() {
    let named = [("x-slo-ttft-ms", "100")];
    for (fields, ttft, streamed, expected) in [
        (&named[..], Some(100.0), true, Some(true)),
        (&named, Some(100.1), true, Some(false)),
        (&named, Some(100.1), false, Some(false)),
        (&named, None, true, None),
        (&[], Some(1e9), true, Some(false)),
        (&[], Some(1e9), false, None),
    ] {
        let seat = Seat::new();
        let turn = seat.turn_of(fields, &crate::testing::chat("hi"));
        let mut account = open(&seat, &turn);
        if let Some(ttft) = ttft {
            account.first_token(&seat.proxy.decisions, Millis(ttft), streamed);
            assert_eq!(
                seat.decisions()[0].came.is_judged,
                expected.is_some(),
                "{fields:?} {streamed}"
            );
        }
        assert_eq!(account.is_within(), expected, "{fields:?} {ttft:?} {streamed}");
        account.close(&seat.proxy, end(None));
        let violations = seat.metric("tailroute_slo_violations_total", &["class=default"]);
        assert_eq!(
            violations > 0.0,
            expected == Some(false),
            "{fields:?} {ttft:?} {streamed}"
        );
        assert_eq!(seat.decisions()[0].came.cause.is_some(), expected == Some(false));
        assert_eq!(seat.decisions()[0].came.parts.is_some(), ttft.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn the_excess_is_the_time_beyond_an_objective_that_applies() {
    let named = [("x-slo-ttft-ms", "100")];
    for (fields, ttft, streamed, expected) in [
        (&named[..], 40.0, true, Some(0.0)),
        (&named, 100.0, true, Some(0.0)),
        (&named, 350.0, true, Some(250.0)),
        (&named, 350.0, false, Some(250.0)),
        (&[], 1e9, false, None),
    ] {
        let seat = Seat::new();
        let turn = seat.turn_of(fields, &crate::testing::chat("hi"));
        let mut account = open(&seat, &turn);
        assert_eq!(account.excess(), None, "there is no first token yet");
        account.first_token(&seat.proxy.decisions, Millis(ttft), streamed);
        assert_eq!(
            account.excess(),
            expected.map(Millis),
            "{fields:?} {ttft} {streamed}"
        );
    }
}

/// A worker that takes ten times as long as at its baseline.
fn slow(worker: &Worker) -> Slowdown {
    Slowdown {
        own: Some(Slow {
            factor: 10.0,
            typical: Millis(100.0),
            baseline_typical: Millis(10.0),
            cost: worker.cost(),
            against: Against::Fleet,
            since: Millis::ZERO,
            baseline: PrefillCost::linear(0.1, 1.0),
        }),
        queue_share: 0.0,
    }
}

#[tokio::test(start_paused = true)]
async fn a_miss_has_the_cause_that_took_longest() {
    // What precedes the turn, its time to first token, what the worker reports, and the cause.
    type Case = (
        &'static str,
        fn(&Seat, &mut Turn),
        f64,
        Option<Usage>,
        Option<EngineTimes>,
        Cause,
    );
    #[rustfmt::skip]
    let cases: [Case; 7] = [
        ("the prompt alone", |_, turn| turn.goal.ttft = Millis(300.0), 320.0, None, None, Cause::Prompt),
        ("beyond the cost", |_, _| {}, 2000.0, None, None, Cause::Engine),
        ("held in the router", |_, turn| turn.arrived -= Millis(1500.0), 1900.0, None, None, Cause::Queue),
        (
            "the engine's own queue",
            |_, _| {},
            2000.0,
            None,
            Some(EngineTimes {
                queue: Millis(1600.0),
                prefill: Millis(400.0),
            }),
            Cause::Queue,
        ),
        (
            "beyond the engine's own times",
            |_, _| {},
            2000.0,
            None,
            Some(EngineTimes {
                queue: Millis(0.0),
                prefill: Millis(400.0),
            }),
            Cause::Network,
        ),
        (
            "tokens of the last turn, computed again",
            |_, turn| {
                turn.expected.history = Tokens(290);
                turn.goal.ttft = Millis(200.0);
            },
            330.0,
            usage(302, 1, Some(0)),
            None,
            Cause::Miss,
        ),
        (
            "a slow worker",
            |seat, _| seat.worker("a").set_slowdown(slow(&seat.worker("a"))),
            1500.0,
            None,
            None,
            Cause::SlowWorker,
        ),
    ];
    for (case, prepare, ttft, usage, engine, expected) in cases {
        let seat = Seat::new();
        let mut turn = turn(&seat);
        turn.goal.ttft = Millis(500.0);
        prepare(&seat, &mut turn);
        let mut account = open(&seat, &turn);
        account.first_token(&seat.proxy.decisions, Millis(ttft), true);
        account.close(&seat.proxy, End { engine, ..end(usage) });
        let came = seat.decisions()[0].came;
        assert_eq!(came.cause, Some(expected), "{case}: {:?}", came.parts);
        let cause = format!("cause={}", expected.as_str());
        assert_eq!(
            seat.metric("tailroute_slo_violations_total", &[&cause]),
            1.0,
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_tokens_are_counted_as_available_captured_and_delivered() {
    // Tokens that the mirrors of `a` and `b` hold, and the count of the worker that is chosen, which is `a`; then the
    // tokens computed although `b` held them, those wrongly predicted on `a`, and the four counts.
    #[rustfmt::skip]
    let cases = [
        ("nothing cached", 0, 0, usage(302, 1, Some(0)), [0, 0], [302, 0, 0, 0]),
        ("as predicted", 0, 160, usage(302, 1, Some(160)), [0, 0], [302, 160, 160, 160]),
        ("less than predicted", 0, 160, usage(302, 1, Some(64)), [0, 96], [302, 160, 160, 64]),
        ("more than predicted", 0, 160, usage(302, 1, Some(288)), [0, 0], [302, 160, 160, 288]),
        ("held elsewhere", 160, 0, usage(302, 1, Some(0)), [160, 0], [302, 160, 0, 0]),
        ("held elsewhere, and delivered here", 160, 0, usage(302, 1, Some(96)), [64, 0], [302, 160, 0, 96]),
        ("a short prompt", 160, 0, usage(100, 1, Some(0)), [160, 0], [100, 100, 0, 0]),
        ("cached tokens not reported", 160, 0, usage(302, 1, None), [0, 0], [0, 0, 0, 0]),
        ("nothing reported", 160, 0, None, [0, 0], [0, 0, 0, 0]),
        ("an empty prompt", 160, 0, usage(0, 0, Some(0)), [160, 0], [0, 0, 0, 0]),
    ];
    for (case, on_b, on_a, usage, avoidable, hits) in cases {
        let seat = Seat::new();
        let turn = turn(&seat);
        let mut choice = seat.choose(&turn);
        assert_eq!(choice.worker.id, WorkerId(0));
        choice.decision.terms[0].cached = Tokens(on_a);
        choice.decision.terms[1].cached = Tokens(on_b);
        let account = Account::open(&seat.proxy, &turn, &choice);
        account.close(&seat.proxy, end(usage));
        assert_eq!(seat.decisions()[0].came.avoidable, avoidable, "{case}");
        let counted = ["why=elsewhere", "why=mistaken"];
        let counted =
            counted.map(|why| seat.metric("tailroute_avoidable_prefill_tokens_total", &[why]) as u64);
        assert_eq!(counted, avoidable, "{case}");
        let stages = [
            "stage=prompt",
            "stage=available",
            "stage=captured",
            "stage=delivered",
        ];
        let counted = stages.map(|stage| seat.metric("tailroute_prompt_cache_tokens_total", &[stage]) as u64);
        assert_eq!(counted, hits, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_that_only_an_unready_worker_holds_were_cacheable_and_not_available() {
    let seat = Seat::new();
    let turn = turn(&seat);
    let mut choice = seat.choose(&turn);
    choice.decision.terms[2].cached = Tokens(160);
    choice.decision.terms[2].ready = false;
    let account = Account::open(&seat.proxy, &turn, &choice);
    assert_eq!((account.available, account.cacheable), (Tokens(0), Tokens(160)));
    choice.decision.terms[0].cached = Tokens(96);
    choice.decision.terms[0].ready = false;
    let account = Account::open(&seat.proxy, &turn, &choice);
    assert_eq!(
        account.available,
        Tokens(96),
        "the chosen worker's are available, pinned or not"
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_turn_could_be_cached_in_full_blocks_but_for_the_last_token() {
    for (history, expected) in [(0, 0), (15, 0), (33, 32), (301, 288), (302, 288), (10_000, 288)] {
        let seat = Seat::new();
        let mut turn = turn(&seat);
        turn.expected.history = Tokens(history);
        assert_eq!(open(&seat, &turn).cacheable, Tokens(expected), "{history}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_beside_the_engines_own_is_known_only_of_streams() {
    let engine = EngineTimes {
        queue: Millis(30.0),
        prefill: Millis(300.0),
    };
    let seat = Seat::new();
    let turn = turn(&seat);
    pass_ms(10).await;
    let mut account = open(&seat, &turn);
    assert_eq!(account.beside(engine), None);
    account.first_token(&seat.proxy.decisions, Millis(400.0), false);
    assert_eq!(account.beside(engine), None);
    account.first_token(&seat.proxy.decisions, Millis(400.0), true);
    assert_eq!(account.beside(engine).unwrap().0.round(), 60.0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_judged_by_its_known_cost_or_else_by_the_learned_one() {
    let learned = PrefillCost::linear(9.0, 9.0);
    for (is_known, expected) in [(true, 1.0), (false, 9.0)] {
        let seat = Seat::with(|config| config.workers[0].cost_is_known = is_known);
        let fitted = fitted(&seat.worker("a"), &learned);
        assert_eq!(
            fitted.prefill(Tokens(100), Tokens(0)).0.round(),
            100.0 * expected + if is_known { 10.0 } else { 9.0 }
        );
    }
}

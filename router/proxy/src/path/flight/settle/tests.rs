//! Tests of what the mirror of a worker's cache holds after an attempt.

use std::sync::Arc;

use fleet::Worker;
use fleet::clock::Clock;
use parking_lot::Mutex;
use policy::ids::PrefixHash;
use state::turn_reports::{ReportedTurn, SentTurn, TokensAt, TurnReports};
use telemetry::traces::Trace;

use super::*;
use crate::path::flight::{AttemptEnd, AttemptOutcome};
use crate::testing::{Script, Seat, pass_ms, relay, token};

/// A prompt of 302 tokens.
const PROMPT_BYTES: usize = 1200;
const REPLY_BYTES: usize = 800;
/// The full blocks of the prompt.
const PREDICTED: u64 = 288;

fn prompt() -> String {
    "long prompt ".repeat(PROMPT_BYTES / 12)
}

fn reply() -> String {
    "a reply ".repeat(REPLY_BYTES / 8)
}

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> ResponseReport {
    ResponseReport {
        usage: Some(Usage {
            prompt,
            completion,
            cached,
        }),
        ..ResponseReport::default()
    }
}

/// Returns the next turn of the conversation.
fn next_turn(seat: &Seat) -> super::super::Turn {
    let (prompt, reply) = (prompt(), reply());
    seat.turn_of(
        &[],
        &format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{prompt}"}},{{"role":"assistant","content":"{reply}"}},{{"role":"user","content":"and?"}}]}}"#
        ),
    )
}

fn end(outcome: AttemptOutcome, seen: ResponseReport, keeps_reply: bool) -> AttemptEnd {
    AttemptEnd {
        seen: Some(seen),
        keeps_reply,
        ..outcome.into()
    }
}

#[tokio::test(start_paused = true)]
async fn the_mirror_holds_the_prompt_and_the_part_of_the_reply_that_the_next_turn_can_repeat() {
    let nothing = ResponseReport::default();
    let several = ResponseReport {
        several: true,
        ..usage(700, 900, None)
    };
    // Prompt and reply are 302 and 203 tokens where nothing is counted. Full blocks are cached, and never the last token.
    #[rustfmt::skip]
    let cases = [
        ("complete", true, end(AttemptOutcome::Ok, nothing, true), 496),
        ("cut", true, end(AttemptOutcome::Broken, nothing, false), PREDICTED),
        ("an error", true, end(AttemptOutcome::ErrorInBody, nothing, true), 0),
        ("no first token", false, end(AttemptOutcome::Aborted, nothing, true), 0),
        ("counted", true, end(AttemptOutcome::Ok, usage(600, 400, None), true), 992),
        ("several choices, whose counts are not of one reply", true, end(AttemptOutcome::Ok, several, true), 928),
    ];
    for (case, begun, end, expected) in cases {
        let seat = Seat::new();
        let mut flight = seat.start(&Arc::new(seat.turn(&prompt())));
        let in_flight = seat.resident(&next_turn(&seat));
        assert_eq!(
            in_flight,
            [PREDICTED, 0, 0],
            "the prompt counts as resident in flight"
        );
        if begun {
            relay(&mut flight, &token(&reply()));
            flight.first_token(true);
        }
        flight.end(end);
        let held = seat.resident(&next_turn(&seat));
        assert_eq!(held, [expected, 0, 0], "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_held_only_if_the_next_turn_can_repeat_it() {
    let held = |keeps_reply| {
        let seat = Seat::new();
        let mut flight = seat.start(&Arc::new(seat.turn(&prompt())));
        relay(&mut flight, &token(&reply()));
        flight.first_token(true);
        flight.end(end(AttemptOutcome::Ok, ResponseReport::default(), keeps_reply));
        seat.resident(&next_turn(&seat))[0]
    };
    assert!(held(true) > held(false) + 150, "{} {}", held(true), held(false));
}

#[tokio::test(start_paused = true)]
async fn a_plain_prompt_that_continues_a_reply_is_of_the_same_conversation() {
    let seat = Seat::new();
    seat.hold_others();
    let (prompt, reply) = (prompt(), reply());
    let other = "another reply ".repeat(60);
    for (prompt, reply) in [
        (prompt.clone(), &reply),
        (prompt.clone() + &reply + "more", &other),
    ] {
        let answer = format!(r#"{{"choices":[{{"text":"{reply}","finish_reason":"stop"}}]}}"#);
        seat.script("a", [Script::json(200, &answer)]);
        seat.post(
            "/v1/completions",
            &[],
            &format!(r#"{{"model":"m","prompt":"{prompt}"}}"#),
        )
        .await;
    }
    let heard = seat.upstream.heard("a");
    let session = |head: &str| {
        head.lines()
            .find(|line| line.starts_with("x-session-id: "))
            .map(str::to_owned)
    };
    assert!(session(&heard[0].head).is_some());
    assert_eq!(session(&heard[0].head), session(&heard[1].head));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_not_sent_holds_nothing() {
    let seat = Seat::new();
    let turn = Arc::new(seat.turn(&prompt()));
    let (choice, pass) =
        crate::path::forward::select_admitted(&seat.proxy.state.routing, &turn, &mut Vec::new()).unwrap();
    let mut flight = super::Flight::start(
        &seat.proxy,
        &Trace::default(),
        &turn,
        &choice,
        pass,
        Arc::default(),
    );
    assert_eq!(seat.resident(&turn), [0; 3]);
    flight.mark_sent();
    flight.mark_sent();
    assert!(seat.resident(&turn)[0] > 0);
    flight.end(AttemptOutcome::NotReached);
    assert_eq!(seat.resident(&turn), [0; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_reports_fewer_cached_tokens_corrects_its_mirror() {
    // The cached tokens reported of a prompt that the mirror holds; whether that corrects the mirror, and how the
    // report agrees with the prediction.
    for (case, cached, is_corrected, agreement) in [
        ("as predicted", Some(PREDICTED), false, "exact"),
        ("a block fewer", Some(PREDICTED - 16), true, "block"),
        ("half", Some(PREDICTED / 2), true, "off"),
        ("unknown", None, false, "none"),
    ] {
        let seat = Seat::new();
        seat.hold_others();
        let older = Arc::new(seat.turn(&"another prompt ".repeat(80)));
        let turn = Arc::new(seat.turn(&prompt()));
        for turn in [&older, &turn] {
            let mut flight = seat.start(turn);
            flight.first_token(true);
            flight.end(end(AttemptOutcome::Ok, usage(302, 1, None), false));
            pass_ms(1000).await;
        }
        assert_eq!(seat.resident(&turn)[0], PREDICTED);
        let mut flight = seat.start(&turn);
        flight.first_token(true);
        flight.end(end(AttemptOutcome::Ok, usage(302, 1, cached), false));
        let metric = |name, label| seat.metric(name, &["worker=a", label]);
        let corrections = seat.metric("tailroute_mirror_corrections_total", &["worker=a"]);
        assert_eq!(corrections, f64::from(u8::from(is_corrected)), "{case}");
        assert_eq!(
            seat.resident(&older)[0] == 0,
            is_corrected,
            "{case}: what is older is gone too"
        );
        let agreement = format!("agreement={agreement}");
        let agreed = metric("tailroute_cached_tokens_agreement_total", &agreement);
        assert_eq!(agreed, f64::from(u8::from(cached.is_some())), "{case}");
        let tokens = |kind| metric("tailroute_prompt_tokens_total", kind);
        assert_eq!(tokens("kind=all"), 3.0 * 302.0, "{case}");
        assert_eq!(tokens("kind=predicted_cached"), PREDICTED as f64, "{case}");
        assert_eq!(
            tokens("kind=reported_cached"),
            cached.unwrap_or(0) as f64,
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_no_report_of_tokens() {
    for (outcome, expected) in [
        (AttemptOutcome::Ok, 300.0),
        (AttemptOutcome::Broken, 300.0),
        (AttemptOutcome::ErrorInBody, 0.0),
        (AttemptOutcome::ClientError, 0.0),
    ] {
        let seat = Seat::new();
        let flight = seat.start(&Arc::new(seat.turn(&prompt())));
        flight.end(end(outcome, usage(300, 1, None), false));
        assert_eq!(
            seat.metric("tailroute_prompt_tokens_total", &["kind=all"]),
            expected,
            "{outcome:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn counted_tokens_are_the_length_of_the_next_prompt() {
    let seat = Seat::new();
    let turn = Arc::new(seat.turn(&prompt()));
    assert_eq!(seat.choose(&turn).matched.prompt.0, 302);
    let mut flight = seat.start(&turn);
    flight.first_token(true);
    flight.end(end(AttemptOutcome::Ok, usage(600, 1, None), false));
    assert_eq!(seat.choose(&turn).matched.prompt.0, 600);
}

#[test]
fn only_full_blocks_are_cached() {
    let seat_config = |block_size| {
        let overrides = config::Overrides {
            workers: vec!["http://w:1".to_owned()],
            ..config::Overrides::default()
        };
        let config = config::load_file(None, std::collections::BTreeMap::new(), overrides).unwrap();
        let spec = config::Worker {
            block_size,
            ..config.workers[0].clone()
        };
        Worker::new(
            policy::ids::WorkerId(0),
            spec,
            &config,
            policy::units::Millis::ZERO,
        )
    };
    for (block, tokens, expected) in [
        (16, 33, 32),
        (16, 15, 0),
        (10, 33, 30),
        (10, 9, 0),
        (1, 33, 33),
        (0, 33, 33),
    ] {
        assert_eq!(
            full_blocks(&seat_config(block), tokens),
            expected,
            "{tokens} in blocks of {block}"
        );
    }
}

/// The reports to other replicas, in order.
#[derive(Debug, Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

#[derive(Debug)]
struct OneReport(Arc<Mutex<Vec<String>>>);

impl TurnReports for Reports {
    fn sent(self: Arc<Self>, _: Clock, turn: &SentTurn<'_>, _: TokensAt<'_>) -> Box<dyn ReportedTurn> {
        self.0.lock().push(format!("sent to {}", turn.worker.name()));
        Box::new(OneReport(Arc::clone(&self.0)))
    }

    fn hinted(&self, _: &Worker, _: u64) {}

    fn trimmed(&self, _: &Worker, _: Tokens, _: &[PrefixHash]) {}
}

impl ReportedTurn for OneReport {
    fn begun(&self) {
        self.0.lock().push("begun".to_owned());
    }

    fn answered(self: Box<Self>, _: Option<&Reply<'_>>, _: Tokens, total: Tokens, _: TokensAt<'_>) {
        self.0.lock().push(format!("answered {total}", total = total.0));
    }
}

#[tokio::test(start_paused = true)]
async fn other_replicas_are_told_what_a_worker_holds() {
    #[rustfmt::skip]
    let cases = [
        (AttemptOutcome::Ok, true, &["sent to a", "begun", "answered 305"][..]),
        (AttemptOutcome::ErrorInBody, true, &["sent to a", "begun"]),
        (AttemptOutcome::NotReached, false, &["sent to a"]),
    ];
    for (outcome, begun, expected) in cases {
        let mut seat = Seat::new();
        let reports = Arc::new(Mutex::default());
        Arc::get_mut(&mut seat.proxy).unwrap().replicas = Some(Arc::new(Reports(Arc::clone(&reports))));
        let mut flight = seat.start(&Arc::new(seat.turn(&prompt())));
        if begun {
            relay(&mut flight, &token("Hi"));
            flight.first_token(true);
        }
        flight.end(end(outcome, usage(300, 5, None), true));
        assert_eq!(*reports.lock(), expected, "{outcome:?}");
    }
}

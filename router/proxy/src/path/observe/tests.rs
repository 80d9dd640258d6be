//! Tests of what an observer makes of the bytes of a response.

use std::sync::Arc;

use http::StatusCode;
use protocol::api::Endpoint;
use protocol::verdict::PushBack;

use super::*;
use crate::testing::{DONE, Seat, pass_ms, token, usage};

const ROLE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const FINISHED: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const CRASH: &str = "data: {\"error\":{\"message\":\"CUDA error\",\"code\":500}}\n\n";
const BUSY: &str = "data: {\"error\":{\"message\":\"The request queue is full\",\"code\":503}}\n\n";
const BAD: &str = "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n";

/// Observes the response of an attempt on `a`, with this status and verdict on its head.
fn observer(seat: &Seat, content_type: &str, status: u16, verdict: Verdict) -> Observer {
    let attempt = seat.attempt(&Arc::new(seat.turn("hi")), &Arc::default());
    let watch = Watch::new(Endpoint::Chat, Some(content_type), false);
    Observer::new(watch, attempt, StatusCode::from_u16(status).unwrap(), verdict)
}

fn events(seat: &Seat) -> Observer {
    observer(seat, "text/event-stream", 200, Verdict::Ok)
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_stream_and_its_errors_decide_the_outcome() {
    #[derive(Clone, Copy, Debug)]
    enum End {
        /// The response has passed completely.
        Finish,
        /// The response broke off.
        Fail,
        /// The client left.
        Drop,
    }
    use End::*;
    let hi = token("Hi");
    for (pieces, end, expected) in [
        (&[&*hi, DONE][..], Finish, "ok 1"),
        (&[&hi, FINISHED], Finish, "ok 1"),
        (&[&hi], Finish, "broken 1"),
        (&[], Finish, "broken 1"),
        (&[&hi, CRASH], Finish, "error_in_body 1"),
        (&[CRASH], Finish, "error_in_body 1"),
        (&[&hi, BUSY], Finish, "declined 1"),
        (&[&hi, BAD, DONE], Finish, "client_error 1"),
        (&[&hi], Fail, "broken 1"),
        (&[&hi, DONE], Fail, "broken 1"),
        (&[&hi, CRASH], Fail, "error_in_body 1"),
        (&[&hi], Drop, "aborted 1"),
        (&[&hi, DONE], Drop, "aborted 1"),
        (&[&hi, CRASH], Drop, "error_in_body 1"),
    ] {
        let seat = Seat::new();
        let mut observer = events(&seat);
        for piece in pieces {
            observer.passed(piece.as_bytes());
        }
        match end {
            Finish => observer.finish(),
            Fail => observer.fail(AttemptOutcome::Broken, |_| {}),
            Drop => drop(observer),
        }
        assert_eq!(seat.outcomes(), expected, "{pieces:?} {end:?}");
        assert_eq!(seat.in_flight(), [0; 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_body_of_a_whole_response_may_be_an_error() {
    let declined = Verdict::Declined(PushBack::default());
    let (busy, crash) = (&BUSY[6..], &CRASH[6..]);
    for (status, verdict, body, expected) in [
        (200, Verdict::Ok, "{}", "ok 1"),
        (200, Verdict::Ok, "", "ok 1"),
        (200, Verdict::Ok, crash, "error_in_body 1"),
        (200, Verdict::Ok, busy, "declined 1"),
        (500, Verdict::Failed, "{}", "worker_error 1"),
        (500, Verdict::Failed, busy, "worker_error 1"),
        (503, Verdict::Failed, crash, "worker_error 1"),
        (503, Verdict::Failed, busy, "declined 1"),
        (503, declined, crash, "declined 1"),
        (429, declined, crash, "declined 1"),
        (400, Verdict::ClientError, crash, "client_error 1"),
    ] {
        let seat = Seat::new();
        let mut observer = observer(&seat, "application/json", status, verdict);
        observer.passed(body.as_bytes());
        observer.finish();
        assert_eq!(seat.outcomes(), expected, "{status} {verdict:?} {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_token_is_that_of_a_good_response() {
    let hi = token("Hi");
    let (busy, crash) = (&BUSY[6..], &CRASH[6..]);
    #[rustfmt::skip]
    let cases = [
        ("text/event-stream", 200, Verdict::Ok, &[ROLE][..], 0),
        ("text/event-stream", 200, Verdict::Ok, &[ROLE, &hi], 1),
        ("text/event-stream", 200, Verdict::Ok, &[CRASH], 0),
        ("text/event-stream", 500, Verdict::Failed, &[&hi], 0),
        ("application/json", 200, Verdict::Ok, &[" \n"], 0),
        ("application/json", 200, Verdict::Ok, &["{\"choices\":[]}"], 1),
        ("application/json", 200, Verdict::Ok, &[crash], 0),
        ("application/json", 503, Verdict::Failed, &[busy], 0),
        ("audio/mpeg", 200, Verdict::Ok, &["x"], 1),
    ];
    for (kind, status, verdict, pieces, expected) in cases {
        let seat = Seat::new();
        let mut observer = observer(&seat, kind, status, verdict);
        for piece in pieces {
            observer.passed(piece.as_bytes());
        }
        let count = seat.metric("tailroute_time_to_first_token_seconds_count", &["worker=a"]);
        assert_eq!(count as usize, expected, "{kind} {status} {pieces:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_count_as_the_workers_progress_from_the_first_token() {
    let seat = Seat::new();
    let mut observer = events(&seat);
    let (hi, later) = (token("Hi"), token("there"));
    for (piece, step, seen) in [
        (": ping\n\n", Step::Nothing, 0),
        (ROLE, Step::Event, 0),
        (&*hi, Step::Token, hi.len()),
        (&*later, Step::Token, hi.len() + later.len()),
    ] {
        assert_eq!(observer.passed(piece.as_bytes()), step, "{piece}");
        assert_eq!(seat.worker("a").bytes_seen() as usize, seen, "{piece}");
    }
    observer.passed(DONE.as_bytes());
    observer.finish();
    assert_eq!(observer.passed(b"more"), Step::Token, "the attempt has ended");
    assert_eq!(
        seat.worker("a").bytes_seen() as usize,
        hi.len() + later.len() + DONE.len()
    );
}

#[tokio::test(start_paused = true)]
async fn events_after_the_first_token_are_parsed_a_few_at_a_time_and_none_is_lost() {
    let long = token(&"x".repeat(ASIDE_BYTES));
    #[rustfmt::skip]
    let cases = [
        ("short", vec![token("a"), token("b"), token("c")], 3),
        ("more than is set aside", (0..200).map(|_| token("abc")).collect(), 200),
        ("one too long to set aside", vec![token("a"), long.clone(), token("c")], 3),
        ("one in two pieces, of which only the first is set aside", vec![long[..40].to_owned(), long[40..].to_owned()], 1),
    ];
    for (case, pieces, tokens) in cases {
        let seat = Seat::new();
        let mut observer = events(&seat);
        observer.passed(token("first").as_bytes());
        for piece in &pieces {
            observer.passed(piece.as_bytes());
            assert!(observer.aside.len() <= ASIDE_BYTES, "{case}");
        }
        observer.passed(usage(10, 9, None).as_bytes());
        assert!(!observer.aside.is_empty(), "{case}");
        assert!(observer.stops_short(), "{case}");
        observer.passed(DONE.as_bytes());
        observer.catch_up();
        assert!(!observer.stops_short(), "{case}");
        observer.finish();
        assert_eq!(observer.watch.passed.events, 1 + tokens, "{case}");
        let observation = seat.observations().remove(0);
        assert_eq!(observation.response.0, 9, "{case}");
        assert!(observation.end.is_some(), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_streams_that_end_with_done_can_stop_short() {
    let seat = Seat::new();
    let hi = token("Hi");
    for (kind, status, verdict, pieces, stops_short) in [
        ("text/event-stream", 200, Verdict::Ok, &[&*hi][..], true),
        ("text/event-stream", 200, Verdict::Ok, &[&hi, DONE], false),
        ("text/event-stream", 200, Verdict::Ok, &[FINISHED], false),
        ("text/event-stream", 200, Verdict::Ok, &[&hi, CRASH], false),
        ("text/event-stream", 500, Verdict::Failed, &[&hi], false),
        ("application/json", 200, Verdict::Ok, &["{"], false),
    ] {
        let mut observer = observer(&seat, kind, status, verdict);
        for piece in pieces {
            observer.passed(piece.as_bytes());
        }
        observer.catch_up();
        assert_eq!(observer.stops_short(), stops_short, "{kind} {status} {pieces:?}");
        observer.fail(AttemptOutcome::Broken, |_| {});
        assert!(!observer.stops_short(), "the attempt has ended");
    }
    let messages = Seat::new();
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    messages.script(
        "a",
        [crate::testing::Script::events()
            .chunk("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
            .end()],
    );
    let delivered = messages.post("/v1/messages", &[], body).await;
    assert_eq!(messages.sum_up(&delivered), "200 a; asked a; ok 1");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_logged_before_the_attempt_ends_and_only_once() {
    let seat = Seat::new();
    let mut observer = events(&seat);
    let mut said = 0;
    assert!(observer.flight().is_some());
    for _ in 0..2 {
        observer.fail(AttemptOutcome::Broken, |flight| {
            said += 1;
            assert_eq!(flight.worker().with_load(|load| load.in_flight), 1);
        });
        assert!(observer.flight().is_none());
    }
    assert_eq!((said, &*seat.outcomes()), (1, "broken 1"));
}

#[tokio::test(start_paused = true)]
async fn an_overrun_ends_the_attempt_by_its_cause() {
    let limit = std::time::Duration::from_secs(1);
    for (overrun, is_busy, outcomes, failures) in [
        (Overrun::NotBegun(limit), false, "broken 1", 1.0),
        (Overrun::NotBegun(limit), true, "broken 1", 0.0),
        (Overrun::Silent(limit), true, "broken 1", 1.0),
        (Overrun::Late, false, "deadline 1", 0.0),
        (Overrun::Cut, false, "cut 1", 0.0),
    ] {
        let seat = Seat::new();
        let mut observer = events(&seat);
        if is_busy {
            seat.worker("a").count_bytes(1);
        }
        observer.overran(overrun, |_| {});
        assert_eq!(seat.outcomes(), outcomes, "{overrun:?}");
        assert_eq!(
            seat.metric("tailroute_worker_failures_total", &[]),
            failures,
            "{overrun:?} {is_busy}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_seen_only_by_its_head_began_when_it_ended() {
    for (status, verdict, outcomes, first_tokens) in [
        (200, Verdict::Ok, "ok 1", 1.0),
        (500, Verdict::Failed, "worker_error 1", 0.0),
    ] {
        let seat = Seat::new();
        let mut observer = observer(&seat, "application/json", status, verdict);
        observer.ended_unseen();
        observer.finish();
        assert_eq!(seat.outcomes(), outcomes);
        let count = seat.metric("tailroute_time_to_first_token_seconds_count", &[]);
        assert_eq!(count, first_tokens, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_complete_response_releases_its_permit_and_can_be_continued_at_once() {
    let seat = Seat::new();
    let body = r#"{"id":"resp_7","object":"response","status":"completed","output":[]}"#;
    seat.script("a", [crate::testing::Script::json(200, body)]);
    let response = seat
        .ask("/v1/responses", &[], r#"{"model":"m","input":"hi"}"#)
        .await;
    let (_, mut body) = response.into_parts();
    while crate::testing::next_piece(&mut body).await.is_some() {}
    assert_eq!(seat.proxy.in_flight(), 0);
    assert_eq!(
        seat.proxy.stored.find(0, "resp_7").unwrap().worker,
        seat.worker("a").id
    );
    assert_eq!(seat.outcomes(), "", "the attempt has not ended");
    drop(body);
    assert_eq!(seat.outcomes(), "ok 1");
}

#[tokio::test(start_paused = true)]
async fn a_stored_response_is_known_as_soon_as_it_names_itself() {
    let created = r#"data: {"type":"response.created","response":{"id":"resp_7"}}"#.to_owned() + "\n\n";
    let whole = r#"{"id":"resp_7","object":"response","status":"completed","output":[]}"#;
    for (case, kind, body, ends) in [
        (
            "the first event of a stream",
            "text/event-stream",
            &*created,
            false,
        ),
        ("a whole response", "application/json", whole, true),
    ] {
        let seat = Seat::new();
        let attempt = seat.attempt(&Arc::new(seat.turn("hi")), &Arc::default());
        let watch = Watch::new(Endpoint::Responses, Some(kind), false);
        let mut observer = Observer::new(watch, attempt, StatusCode::OK, Verdict::Ok);
        observer.passed(body.as_bytes());
        let is_known = || seat.proxy.stored.find(0, "resp_7").is_some();
        assert_eq!(is_known(), !ends, "{case}");
        observer.finish();
        assert!(is_known(), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn implausible_counts_are_clamped_and_counted() {
    let seat = Seat::new();
    let mut observer = events(&seat);
    pass_ms(10).await;
    observer.passed(token("Hi").as_bytes());
    observer.passed(usage(1 << 30, 3, None).as_bytes());
    observer.passed(DONE.as_bytes());
    observer.finish();
    assert_eq!(
        seat.metric("tailroute_claims_clamped_total", &["worker=a", "what=prompt"]),
        1.0
    );
    assert!(seat.observations()[0].prompt.0 < 2000);
}

//! Tests of what a client gets of a stream, and when.

use std::time::Duration;

use http_body::Body as _;
use http_body_util::BodyExt as _;
use tailroute_http::body::Body;
use tokio::time::Instant;

use crate::testing::{DONE, Delivered, Script, Seat, chat, next_frame, next_piece, pass_ms, token, within};

const CHAT: &str = "/v1/chat/completions";
const FINISHED: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const CRASH: &str = "data: {\"error\":{\"message\":\"CUDA error\",\"code\":500}}\n\n";

fn seat() -> Seat {
    Seat::with(|config| {
        config.limits.first_byte_timeout = Duration::from_secs(10);
        config.limits.idle_timeout = Duration::from_secs(2);
    })
}

/// Asks for two responses of `a`.
async fn twice(script: Script) -> (Seat, [Body; 2]) {
    let seat = Seat::new();
    seat.hold_others();
    seat.script("a", [script.clone(), script]);
    let one = seat.ask(CHAT, &[], &chat("hi")).await.into_body();
    let other = seat.ask(CHAT, &[], &chat("hi")).await.into_body();
    (seat, [one, other])
}

/// A stream of the first token at once.
fn begun() -> Script {
    Script::events().token("Hi")
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_relayed_as_it_comes_and_ends_as_it_ended() {
    let cut = "200 a cut; asked a; broken 1; charged a";
    // The response of `a`; then the sum, the code of the error in the last event, and the time of the end.
    #[rustfmt::skip]
    let cases = [
        ("complete", begun().wait(500).token("!").done(), "200 a; asked a; ok 1", "", 500),
        ("without its last event", begun().wait(500).end(), cut, "worker_failed", 500),
        ("ended by a finish reason", begun().chunk(FINISHED).wait(500).end(), "200 a; asked a; ok 1", "", 500),
        ("cut", begun().wait(500).cut(), cut, "worker_failed", 500),
        ("cut within an event", begun().chunk("data: {\"choi").wait(500).cut(), cut, "worker_failed", 500),
        ("cut after [DONE]", begun().chunk(DONE).wait(500).cut(), cut, "worker_failed", 500),
        ("malformed chunks", begun().wait(500).text("zz\r\n"), cut, "worker_failed", 500),
        ("silent after a token", begun().wait(1000).token("!"), cut, "worker_timeout", 3000),
        ("slow", begun().wait(1999).token("!").wait(1999).token("!").done(), "200 a; asked a; ok 1", "", 3998),
        ("comments for tokens", begun().wait(1999).chunk(": ping\n\n").wait(1999).done(), "200 a; asked a; ok 1", "", 3998),
        ("no first token", Script::events().chunk(": ping\n\n").wait(9000).chunk(": ping\n\n"), cut, "worker_timeout", 10_000),
        ("a late first token", Script::events().wait(9999).token("Hi").done(), "200 a; asked a; ok 1", "", 9999),
        (
            "an error after a token",
            begun().wait(500).chunk(CRASH).done(),
            "200 a; asked a; error_in_body 1; charged a",
            "",
            500,
        ),
        (
            "an error after a token, and a cut: the worker's error is the last",
            begun().wait(500).chunk(CRASH).cut(),
            "200 a cut; asked a; error_in_body 1; charged a",
            "",
            500,
        ),
    ];
    for (case, script, sum, code, end_ms) in cases {
        let seat = seat();
        seat.script("a", [script]);
        let delivered = seat.chat("hi").await;
        assert_eq!(seat.sum_up(&delivered), sum, "{case}");
        assert_eq!(delivered.end_ms, end_ms, "{case}");
        let last = delivered.pieces.last().map_or("", |(_, last)| last);
        assert_eq!(
            last.contains("\"error\"") && !last.contains("CUDA"),
            !code.is_empty(),
            "{case}: {last}"
        );
        assert!(last.contains(code), "{case}: {last}");
        assert_eq!(seat.in_flight(), [0; 3], "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_piece_leaves_before_the_next_one_comes() {
    let seat = Seat::new();
    let script = begun()
        .wait(20)
        .chunk("data: {\"choices\":")
        .wait(30)
        .chunk("[]}\n\n")
        .wait(40)
        .done();
    seat.script("a", [script]);
    let delivered = seat.chat("hi").await;
    let expected = [
        (0, token("Hi")),
        (20, "data: {\"choices\":".to_owned()),
        (50, "[]}\n\n".to_owned()),
        (90, DONE.to_owned()),
    ];
    assert_eq!(delivered.pieces, expected);
}

#[tokio::test(start_paused = true)]
async fn the_bytes_are_the_workers_however_they_are_read() {
    let long = "x".repeat(200_000);
    #[rustfmt::skip]
    let cases = [
        ("one piece", Script::events().chunk(&format!("{}{DONE}", token("Hi"))).end()),
        ("many pieces", Script::tokens(&["Hi", " ", "there", "!"])),
        ("long pieces", Script::tokens(&["Hi", &long, "!"])),
        ("a whole response", Script::json(200, "{\"choices\":[]}")),
        ("a long whole response", Script::json(200, &format!("{{\"choices\":[],\"x\":\"{long}\"}}"))),
        ("no content", Script::whole(200, &["content-type: application/json"], "")),
        ("trailers", begun().chunk(DONE).text("0\r\nx-a: b\r\n\r\n")),
    ];
    for (case, script) in cases {
        let (seat, [mut by_piece, mut by_frame]) = twice(script).await;
        let hint = by_frame.size_hint().exact();
        let (mut pieces, mut frames) = (Vec::new(), Vec::new());
        while let Some(piece) = within(next_piece(&mut by_piece)).await {
            pieces.extend_from_slice(&piece.unwrap());
        }
        while let Some(frame) = within(next_frame(&mut by_frame)).await {
            frames.extend_from_slice(&frame.unwrap());
        }
        assert!(pieces == frames, "{case}");
        assert_eq!(hint.unwrap_or(frames.len() as u64), frames.len() as u64, "{case}");
        drop((by_piece, by_frame));
        assert_eq!(seat.outcomes(), "ok 2", "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_is_the_same_however_it_is_read() {
    let (seat, [mut by_piece, mut by_frame]) = twice(begun().wait(5).cut()).await;
    for _ in 0..3 {
        let piece = within(next_piece(&mut by_piece)).await;
        let frame = within(next_frame(&mut by_frame)).await;
        assert_eq!(piece, frame);
        assert!(!by_frame.is_end_stream());
    }
    assert_eq!(seat.outcomes(), "broken 2");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_between_tokens_ends_the_stream_and_spares_the_worker() {
    let seat = Seat::new();
    seat.script("a", [begun().wait(900).token("!").wait(900).token("!").done()]);
    let delivered = seat
        .post(CHAT, &[("x-request-timeout-ms", "1000")], &chat("hi"))
        .await;
    assert_eq!(seat.sum_up(&delivered), "200 a cut; asked a; deadline 1");
    assert_eq!(delivered.end_ms, 1000);
    assert!(delivered.pieces[2].1.contains("deadline_exceeded"));
    pass_ms(1).await;
    assert_eq!(
        seat.upstream.heard("a")[0].left_ms,
        Some(1000),
        "the router cancels the request at the worker"
    );
}

#[tokio::test(start_paused = true)]
async fn the_drain_limit_ends_the_stream_and_spares_the_worker() {
    let seat = Seat::new();
    seat.script("a", [begun().wait(900).token("!").done()]);
    let began = Instant::now();
    let response = seat.ask(CHAT, &[], &chat("hi")).await;
    let cut = async {
        pass_ms(300).await;
        seat.proxy.cut_off();
    };
    let ((), delivered) = tokio::join!(cut, Delivered::read(response, began));
    assert_eq!(seat.sum_up(&delivered), "200 a cut; asked a; cut 1");
    assert!(delivered.text().contains("draining"));
    assert_eq!(delivered.end_ms, 300);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_stops_the_worker() {
    let seat = Seat::new();
    seat.script("a", [begun().wait(50).token("!").wait(900).done()]);
    let (_, mut body) = seat.ask(CHAT, &[], &chat("hi")).await.into_parts();
    within(next_piece(&mut body)).await.unwrap().unwrap();
    within(next_piece(&mut body)).await.unwrap().unwrap();
    assert_eq!(seat.in_flight(), [1, 0, 0]);
    drop(body);
    assert_eq!(seat.in_flight(), [0; 3]);
    assert_eq!(seat.outcomes(), "aborted 1");
    pass_ms(1).await;
    assert_eq!(seat.upstream.heard("a")[0].left_ms, Some(50));
}

#[tokio::test(start_paused = true)]
async fn the_permit_is_free_once_the_response_is_complete_and_not_before() {
    #[rustfmt::skip]
    let cases = [
        ("a stream", begun().wait(10).done()),
        ("a whole response", Script::head(200, &["content-type: application/json"]).chunk("{").wait(10).chunk("}").end()),
    ];
    for (case, script) in cases {
        let seat = Seat::new();
        seat.script("a", [script]);
        let mut body = seat.ask(CHAT, &[], &chat("hi")).await.into_body();
        within(next_piece(&mut body)).await.unwrap().unwrap();
        assert_eq!(seat.proxy.in_flight(), 1, "{case}");
        while within(next_piece(&mut body)).await.is_some() {}
        assert_eq!(seat.proxy.in_flight(), 0, "{case}");
        assert_eq!(
            seat.outcomes(),
            "",
            "{case}: the outcome is counted when the body is written"
        );
        drop(body);
        assert_eq!(seat.outcomes(), "ok 1", "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_piece_of_a_known_length_frees_the_permit() {
    let (hi, more) = (token("Hi"), token("!"));
    let length = hi.len() + more.len() + DONE.len();
    let head =
        format!("HTTP/1.1 200 S\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n");
    let seat = Seat::new();
    seat.script(
        "a",
        [Script::silent()
            .text(&(head + &hi))
            .wait(10)
            .text(&more)
            .wait(10)
            .text(DONE)],
    );
    let mut body = seat.ask(CHAT, &[], &chat("hi")).await.into_body();
    for expected in [1, 1, 0] {
        within(next_piece(&mut body)).await.unwrap().unwrap();
        assert_eq!(seat.proxy.in_flight(), expected);
    }
    assert!(body.is_end_stream());
    drop(body);
    assert_eq!(seat.outcomes(), "ok 1");
}

#[tokio::test(start_paused = true)]
async fn a_response_without_a_body_is_over_at_once() {
    let seat = Seat::new();
    seat.script("a", [Script::whole(204, &[], "")]);
    let response = seat.ask(CHAT, &[], &chat("hi")).await;
    assert!(response.body().is_end_stream());
    assert_eq!((seat.outcomes().as_str(), seat.proxy.in_flight()), ("ok 1", 0));
}

#[tokio::test(start_paused = true)]
async fn trailers_are_relayed_without_the_routers_own() {
    let seat = Seat::new();
    seat.script(
        "a",
        [begun()
            .chunk(DONE)
            .text("0\r\nx-a: b\r\nx-tailroute-a: b\r\n\r\n")],
    );
    let response = seat.ask(CHAT, &[], &chat("hi")).await;
    let collected = within(response.into_body().collect()).await.unwrap();
    assert_eq!(
        collected.trailers(),
        Some(&crate::testing::headers(&[("x-a", "b")]))
    );
}

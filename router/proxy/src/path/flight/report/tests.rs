//! Tests of what is published of a finished attempt.

use std::sync::Arc;

use super::*;
use crate::testing::{Seat, pass_ms, relay, token};

fn usage(prompt: u64, completion: u64) -> ResponseReport {
    ResponseReport {
        usage: Some(Usage {
            prompt,
            completion,
            cached: Some(0),
        }),
        ..ResponseReport::default()
    }
}

fn ended(outcome: AttemptOutcome, seen: ResponseReport) -> AttemptEnd {
    AttemptEnd {
        seen: Some(seen),
        keeps_reply: true,
        ..outcome.into()
    }
}

#[tokio::test(start_paused = true)]
async fn only_answered_generations_count_for_the_model() {
    for (case, outcome, begun, expected) in [
        ("answered", AttemptOutcome::Ok, true, 1.0),
        ("without a token", AttemptOutcome::Ok, false, 0.0),
        ("broken", AttemptOutcome::Broken, true, 0.0),
        ("aborted", AttemptOutcome::Aborted, true, 0.0),
    ] {
        let seat = Seat::new();
        let mut flight = seat.start(&Arc::new(seat.turn("hi")));
        pass_ms(30).await;
        if begun {
            flight.first_token(true);
        }
        pass_ms(40).await;
        flight.end(ended(outcome, usage(10, 5)));
        let sum = |name: &str, label: &str| seat.metric(name, &[label]);
        assert_eq!(
            sum(
                "gen_ai_server_request_duration_seconds_count",
                "gen_ai_request_model=m"
            ),
            expected,
            "{case}"
        );
        let duration = sum(
            "gen_ai_server_request_duration_seconds_sum",
            "gen_ai_operation_name=chat",
        );
        assert!((duration - 0.07 * expected).abs() < 1e-6, "{case}: {duration}");
        let ttft = sum(
            "gen_ai_server_time_to_first_token_seconds_sum",
            "gen_ai_request_model=m",
        );
        assert!((ttft - 0.03 * expected).abs() < 1e-6, "{case}: {ttft}");
        let input = sum("gen_ai_client_token_usage_sum", "gen_ai_token_type=input");
        assert_eq!(input, 10.0 * expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_operation_of_a_completion_is_not_a_chat() {
    for (path, operation) in [
        ("/v1/completions", "text_completion"),
        ("/v1/chat/completions", "chat"),
        ("/v1/responses", "chat"),
    ] {
        let seat = Seat::new();
        seat.script("a", [crate::testing::Script::json(200, "{}")]);
        let body = r#"{"model":"m","prompt":"hi","input":"hi","messages":[]}"#;
        let delivered = seat.post(path, &[], body).await;
        assert_eq!(delivered.status, 200, "{path}");
        let label = format!("gen_ai_operation_name={operation}");
        let count = seat.metric("gen_ai_server_request_duration_seconds_count", &[&label]);
        assert_eq!(count, 1.0, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn turns_that_loaded_a_worker_are_captured() {
    for (case, outcome, begun, is_captured) in [
        ("answered", AttemptOutcome::Ok, true, true),
        ("broken", AttemptOutcome::Broken, true, true),
        ("aborted", AttemptOutcome::Aborted, true, true),
        ("without a token", AttemptOutcome::Aborted, false, false),
        ("an error", AttemptOutcome::ErrorInBody, true, false),
    ] {
        let seat = Seat::new();
        let state = &seat.proxy.state;
        state
            .operations
            .operator
            .recent
            .start(1 << 20, &state.routing.metrics.captured());
        let mut flight = seat.start(&Arc::new(seat.turn("hi")));
        if begun {
            flight.first_token(true);
        }
        flight.end(ended(outcome, ResponseReport::default()));
        let written = seat.metric("tailroute_capture_turns_total", &["outcome=written"]);
        assert_eq!(written, f64::from(u8::from(is_captured)), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_captured_turn_has_the_counts_of_its_worker_or_estimates() {
    let nothing = ResponseReport::default();
    for (case, seen, tokens, counted) in [
        ("counted", usage(400, 7), [400, 7], true),
        ("estimated", nothing, [302, 5], false),
    ] {
        let seat = Seat::new();
        let turn = Arc::new(seat.turn_of(
            &[("x-slo-ttft-ms", "80")],
            &crate::testing::chat(&"long prompt ".repeat(100)),
        ));
        let mut flight = seat.start(&turn);
        relay(&mut flight, &token("eight by"));
        pass_ms(30).await;
        flight.first_token(true);
        pass_ms(40).await;
        let end = ended(AttemptOutcome::Ok, seen);
        flight.progress.reply = flight
            .progress
            .passing
            .take()
            .and_then(protocol::reply::ReplyBuilder::finish);
        let record = flight.record(&end, flight.proxy.state.routing.clock.now());
        assert_eq!((record.tokens, record.counted), (tokens, counted), "{case}");
        assert_eq!(
            (record.ttft.0.round(), record.took.0.round()),
            (30.0, 70.0),
            "{case}"
        );
        assert_eq!(
            (&*record.worker, &*record.model, &*record.outcome),
            ("a", "m", "ok"),
            "{case}"
        );
        assert_eq!((&*record.class, record.objective.0), ("header", 80.0), "{case}");
        assert_eq!(
            (record.whole, record.predicted_ttft.0.round()),
            (false, 312.0),
            "{case}"
        );
        assert_eq!(record.reported_cached, counted.then_some(0), "{case}");
        assert!(record.reply.is_some(), "{case}");
    }
}

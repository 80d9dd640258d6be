//! Client deadlines: the router enforces them, and passes them to the worker.

use fleet::breaker::BreakerState;
use serde_json::json;
use sim_engine::Fault;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, quick, stuck_in_decode};
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::within;

use crate::failing::standing;

#[tokio::test]
async fn a_request_past_its_deadline_is_an_error_and_aborted_at_its_worker() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    fleet.engines[0].set_fault(Fault {
        slow: 1e9,
        ..Fault::default()
    });
    for header in [
        ("x-request-timeout-ms", "1500"),
        ("grpc-timeout", "1500m"),
        ("x-stainless-timeout", "1.5"),
    ] {
        let answer = fleet.chat(&[header], &ask("hello", json!({}))).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (504, "deadline_exceeded"),
            "{header:?}"
        );
    }
    within(fleet.engines[0].stats_when(|stats| stats.aborted.total() == 3)).await;
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    let count = |outcome| page.sum("tailroute_requests_total", &[("outcome", outcome)]);
    assert_eq!(
        [count("deadline"), count("aborted"), count("router_error")],
        [3.0, 0.0, 0.0]
    );
    assert_eq!(
        standing(&fleet, 0),
        BreakerState::Closed,
        "the worker has not failed"
    );
}

#[tokio::test]
async fn a_stream_past_its_deadline_ends_with_an_error_event() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |_| {}).await;
    let answer = fleet
        .chat(
            &[("x-request-timeout-ms", "1500")],
            &ask("hello", json!({ "stream": true })),
        )
        .await;
    assert!(!answer.clean);
    assert_eq!(
        client::code_of(answer.events().last().unwrap()),
        "deadline_exceeded"
    );
    fleet.at_rest().await;
    let passed = client::call(
        fleet.address(),
        "POST",
        CHAT,
        &[
            ("x-stainless-timeout", "600"),
            ("x-request-timeout-ms", "nonsense"),
        ],
        ask("hello", json!({ "max_tokens": 1 })).to_string(),
    )
    .await;
    assert_eq!(passed.status, 200);
}

#[tokio::test]
async fn a_missing_body_does_not_outlast_the_deadline() {
    use tailroute_e2e::raw::{Wire, request};
    let fleet = Fleet::of(1).await;
    let head = request(
        &format!("POST {CHAT}"),
        &["content-length: 1000", "x-request-timeout-ms: 30"],
        "{\"model\":",
    );
    let mut wire = Wire::connect(fleet.address()).await;
    wire.write(&head).await;
    let answer = wire.answer().await.unwrap();
    assert_eq!(
        (answer.status, answer.error_code().as_str()),
        (504, "deadline_exceeded")
    );
    fleet.at_rest().await;
}

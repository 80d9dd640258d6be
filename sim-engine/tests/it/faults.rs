use http::StatusCode;
use policy::cost::PrefillCost;
use serde_json::{Value, json};
use sim_engine::{EngineConfig, Fault};

use crate::client::{NEVER_MS, cached, call, chat, events, open, quick, say, start, streamed_text, within};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_dead_engine_refuses_connections_and_comes_back_cold() {
    let engine = start(EngineConfig {
        tpot_ms: NEVER_MS,
        ..quick()
    })
    .await;
    let text = "word ".repeat(64);
    chat(&engine, &[], &say(&text, json!({ "max_tokens": 1 }))).await;
    let body = say(&text, json!({ "stream": true })).to_string();
    let mut running = open(&engine, "POST", CHAT, &[], body).await.unwrap();
    assert!(running.chunk().await.unwrap().is_ok());

    engine.set_fault(Fault {
        die: true,
        ..Fault::default()
    });
    assert!(running.rest().await.1.is_some(), "the stream breaks off");
    // The port closes once the acceptor has seen its death.
    within(async {
        while open(&engine, "GET", "/health", &[], "").await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    engine.set_fault(Fault::default());
    within(async {
        while open(&engine, "GET", "/health", &[], "").await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let cold = chat(&engine, &[], &say(&text, json!({ "max_tokens": 1 }))).await;
    assert_eq!(cached(&cold), 0);
    assert_eq!(engine.stats().aborted.total(), 0, "no client left");
}

#[tokio::test]
async fn a_death_can_be_timed() {
    let engine = start(quick()).await;
    engine.set_fault(Fault {
        die: true,
        die_for_ms: Some(1),
        ..Fault::default()
    });
    within(async {
        while open(&engine, "GET", "/health", &[], "").await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_hung_engine_takes_requests_and_answers_none_until_healed() {
    let engine = start(quick()).await;
    call(&engine, "PUT", "/sim/fault", &[], &json!({ "hang": true })).await;
    let mut hung = Box::pin(open(&engine, "GET", "/health", &[], ""));
    let (status, _) = tokio::select! {
        biased;
        _ = &mut hung => panic!("answered"),
        healed = call(&engine, "DELETE", "/sim/fault", &[], &Value::Null) => healed,
    };
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        call(&engine, "GET", "/health", &[], &Value::Null).await.0,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_slow_engine_takes_longer_by_its_factor() {
    let engine = start(EngineConfig {
        prefill: PrefillCost::linear(0.0, 100.0),
        ..quick()
    })
    .await;
    let ttft = |answer: Value| answer["metrics"]["time_to_first_token_ms"].as_f64().unwrap();
    let before = ttft(chat(&engine, &[], &say("hi", json!({}))).await);
    engine.set_fault(Fault {
        slow: 3.0,
        ..Fault::default()
    });
    let after = ttft(chat(&engine, &[], &say("hi", json!({}))).await);
    assert!((after / before - 3.0).abs() < 1e-6, "{before} {after}");
}

#[tokio::test]
async fn a_share_of_completions_fails_with_the_status_asked_for() {
    let engine = start(quick()).await;
    call(
        &engine,
        "PUT",
        "/sim/fault",
        &[],
        &json!({ "status": 500, "share": 0.25 }),
    )
    .await;
    let mut failed = 0;
    for _ in 0..8 {
        let (status, answer) = call(&engine, "POST", CHAT, &[], &say("hi", json!({}))).await;
        failed += u32::from(status == StatusCode::INTERNAL_SERVER_ERROR && answer["error"]["code"] == 500);
    }
    assert_eq!((failed, engine.stats().faults_injected), (2, 2));
}

#[tokio::test]
async fn a_stream_breaks_off_after_exactly_the_tokens_asked_for() {
    let engine = start(quick()).await;
    engine.set_fault(Fault {
        reset_after_tokens: Some(3),
        ..Fault::default()
    });
    let body = say("hi", json!({ "stream": true, "max_tokens": 20 })).to_string();
    let (bytes, error) = open(&engine, "POST", CHAT, &[], body).await.unwrap().rest().await;
    assert!(error.is_some());
    assert_eq!(streamed_text(&events(&bytes)).split(' ').count(), 3);
    let stats = within(engine.stats_when(|stats| stats.running == 0)).await;
    assert_eq!((stats.aborted.total(), stats.faults_injected), (0, 1));

    engine.set_fault(Fault {
        reset_before_first_byte: true,
        ..Fault::default()
    });
    assert!(
        open(&engine, "POST", CHAT, &[], say("hi", json!({})).to_string())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn health_can_be_refused_and_the_cache_cleared() {
    let engine = start(quick()).await;
    let text = "word ".repeat(64);
    chat(&engine, &[], &say(&text, json!({ "max_tokens": 1 }))).await;
    call(
        &engine,
        "PUT",
        "/sim/fault",
        &[],
        &json!({ "refuse_health": true, "clear_cache": true }),
    )
    .await;
    let (status, _) = call(&engine, "GET", "/health", &[], &Value::Null).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        cached(&chat(&engine, &[], &say(&text, json!({ "max_tokens": 1 }))).await),
        0
    );
    assert_eq!(
        cached(&chat(&engine, &[], &say(&text, json!({ "max_tokens": 1 }))).await),
        64,
        "cleared once"
    );
}

#[tokio::test]
async fn a_fault_that_makes_no_sense_is_refused() {
    let engine = start(quick()).await;
    for fault in [
        json!({ "slow": 0 }),
        json!({ "share": 2 }),
        json!({ "status": 200 }),
        json!({ "dye": true }),
    ] {
        let (status, _) = call(&engine, "PUT", "/sim/fault", &[], &fault).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{fault}");
    }
}

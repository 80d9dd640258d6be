use http::StatusCode;
use serde_json::{Value, json};
use sim_engine::{Dialect, EngineConfig};

use crate::client::{call, chat, quick, say, start};

const HINTS: &str = "/v1/tailroute/hints";

#[tokio::test]
async fn the_capability_document_says_what_is_understood() {
    let engine = start(quick()).await;
    let (_, says) = call(&engine, "GET", "/v1/tailroute", &[], &Value::Null).await;
    assert_eq!(
        (&says["dialect"], &says["block_size"]),
        (&json!("tailroute"), &json!(16))
    );
    assert_eq!(says["hints"], json!(["trim", "ended", "protect"]));
}

#[tokio::test]
async fn hints_name_a_session_however_it_was_named() {
    let engine = start(quick()).await;
    let text = |session: &str| format!("{session} {}", "word ".repeat(63));
    let turn = json!({ "max_tokens": 1 });
    chat(
        &engine,
        &[("x-session-id", "head")],
        &say(&text("a"), turn.clone()),
    )
    .await;
    chat(
        &engine,
        &[],
        &say(&text("b"), json!({ "max_tokens": 1, "session_id": "body" })),
    )
    .await;
    let xargs = json!({ "max_tokens": 1, "vllm_xargs": { "session_id": "xargs" } });
    chat(&engine, &[], &say(&text("c"), xargs)).await;
    let hints = json!({ "hints": [
        { "kind": "trim", "session_id": "head", "keep_tokens": 48, "epoch": 7, "ttl_ms": 60_000 },
        { "kind": "ended", "session_id": "body" },
        { "kind": "ended", "session_id": "xargs", "keep_tokens": 32 },
        { "kind": "trim", "session_id": "head", "keep_tokens": 0, "epoch": 6 },
        { "kind": "trim", "session_id": "nobody", "keep_tokens": 0 },
        { "kind": "ended", "session_id": "body", "ttl_ms": 0 },
        { "kind": "shred", "session_id": "body" },
    ]});
    let (status, answer) = call(&engine, "POST", HINTS, &[], &hints).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        answer,
        json!({ "applied": 3, "pending": 0, "expired": 1, "stale": 1, "unknown": 1, "rejected": 1 })
    );
    let stats = engine.stats();
    assert_eq!(stats.cache_evict_first_tokens, 16 + 64 + 32);
    assert_eq!((stats.memory.hints_applied, stats.memory.hints_rejected), (3, 1));
}

#[tokio::test]
async fn the_header_and_the_objective_mark_at_release() {
    let engine = start(quick()).await;
    let turn = say(&"word ".repeat(77), json!({ "max_tokens": 1 }));
    // 81 tokens with the template: five full blocks.
    let answer = chat(&engine, &[("x-tailroute-evict-first-tokens", "34")], &turn).await;
    assert_eq!(answer["usage"]["total_tokens"], 82);
    assert_eq!(
        engine.stats().cache_evict_first_tokens,
        32,
        "82 − 34 = 48: three blocks stay"
    );
    let objective = json!({ "xi_tokens": 60.0, "next_prompt_tokens": 10.0, "epoch": 3 });
    let (_, answer) = call(&engine, "PUT", "/v1/tailroute/objective", &[], &objective).await;
    assert_eq!(answer["applied"], true);
    chat(&engine, &[], &turn).await;
    assert_eq!(
        engine.stats().cache_evict_first_tokens,
        48,
        "82 + 10 − 60 = 32: two blocks stay"
    );
    let stale = json!({ "xi_tokens": 0.0, "next_prompt_tokens": 0.0, "epoch": 2 });
    let (_, answer) = call(&engine, "PUT", "/v1/tailroute/objective", &[], &stale).await;
    assert_eq!(
        (&answer["applied"], &answer["objective"]["epoch"]),
        (&json!(false), &json!(3))
    );
    let (_, page) = call(&engine, "GET", "/metrics", &[], &Value::Null).await;
    let page = page.as_str().unwrap();
    for (name, value) in [("xi_tokens", 60), ("epoch", 3), ("t_lru", 1)] {
        let line = format!("\ntailroute:objective_{name}{{engine=\"0\",model_name=\"sim\"}} {value}\n");
        assert!(page.contains(&line), "{line} {page}");
    }
}

#[tokio::test]
async fn an_engine_without_the_dialect_knows_nothing_of_it() {
    let engine = start(EngineConfig {
        dialect: Dialect::None,
        ..quick()
    })
    .await;
    for (method, path) in [
        ("GET", "/v1/tailroute"),
        ("POST", HINTS),
        ("PUT", "/v1/tailroute/objective"),
    ] {
        assert_eq!(
            call(&engine, method, path, &[], &json!({})).await.0,
            StatusCode::NOT_FOUND
        );
    }
    let turn = say(&"word ".repeat(64), json!({ "max_tokens": 1 }));
    chat(&engine, &[("x-tailroute-evict-first-tokens", "64")], &turn).await;
    assert_eq!(engine.stats().cache_evict_first_tokens, 0);
}

use policy::cost::PrefillCost;
use serde_json::json;
use sim_engine::EngineConfig;
use tokio::time::Instant;

use crate::client::{NEVER_MS, chat, events, open, quick, say, start, within};

const CHAT: &str = "/v1/chat/completions";

fn stream(text: &str, tokens: u32) -> String {
    say(text, json!({ "stream": true, "max_tokens": tokens })).to_string()
}

#[tokio::test]
async fn a_client_that_leaves_during_prefill_or_in_the_queue_is_aborted_at_once() {
    let engine = start(EngineConfig {
        prefill: PrefillCost::linear(0.0, NEVER_MS),
        ..quick()
    })
    .await;
    // One streams and one does not; neither has anything to read yet but, in the one case, a response head.
    let whole = say("one", json!({})).to_string();
    let prefilling = open(&engine, "POST", CHAT, &[], whole);
    let mut prefilling = Box::pin(prefilling);
    tokio::select! {
        _ = &mut prefilling => panic!("answered"),
        _ = engine.stats_when(|stats| stats.running == 1) => {}
    }
    let queued = open(&engine, "POST", CHAT, &[], stream("two", 5)).await.unwrap();
    assert_eq!(engine.stats().waiting, 1);
    drop(queued);
    let stats = within(engine.stats_when(|stats| stats.aborted.total() == 1)).await;
    assert_eq!((stats.aborted.queued, stats.running), (1, 1));
    drop(prefilling);
    let stats = within(engine.stats_when(|stats| stats.aborted.total() == 2)).await;
    assert_eq!((stats.aborted.prefill, stats.running), (1, 0));
}

#[tokio::test]
async fn a_client_that_leaves_during_decode_frees_its_blocks() {
    let engine = start(EngineConfig {
        tpot_ms: NEVER_MS,
        ..quick()
    })
    .await;
    let text = "word ".repeat(64);
    let mut open = open(&engine, "POST", CHAT, &[], stream(&text, 100))
        .await
        .unwrap();
    let first = open.chunk().await.unwrap().unwrap();
    assert_eq!(
        events(&first).len(),
        2,
        "the role and the first token, and nothing yet of the second"
    );
    assert_eq!(engine.stats().cache_pinned_tokens, 64);
    drop(open);
    let stats = within(engine.stats_when(|stats| stats.aborted.total() == 1)).await;
    assert_eq!((stats.aborted.decode, stats.cache_pinned_tokens), (1, 0));
}

#[tokio::test]
async fn tokens_leave_one_by_one_when_steps_are_slow_and_together_when_they_are_fast() {
    // The slow steps together take longer than a machine stalls.
    for (scale, tpot_ms, together) in [(1.0, 500.0, false), (10_000.0, 5.0, true)] {
        let engine = start(EngineConfig {
            time_scale: scale,
            tpot_ms,
            ..quick()
        })
        .await;
        let tokens = if together { 2000 } else { 5 };
        let (bytes, _) = open(&engine, "POST", CHAT, &[], stream("hi", tokens))
            .await
            .unwrap()
            .rest()
            .await;
        // Role, finish and [DONE] are not content.
        let contents = events(&bytes).len() - 3;
        assert!(contents <= tokens as usize);
        assert_eq!(
            contents < tokens as usize / 2,
            together,
            "{contents} chunks at {scale}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn ten_seconds_pass_at_once_and_exactly_under_a_paused_clock() {
    let config = EngineConfig {
        time_scale: 1.0,
        prefill: PrefillCost::linear(0.0, 10_000.0),
        ..quick()
    };
    let engine = start(config).await;
    let before = Instant::now();
    let answer = chat(&engine, &[], &say("hi", json!({ "max_tokens": 1 }))).await;
    assert_eq!(answer["metrics"]["time_to_first_token_ms"], 10_000.0);
    assert_eq!(before.elapsed().as_secs(), 10);
}

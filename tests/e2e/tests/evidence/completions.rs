//! A conversation over `/v1/completions` is one growing text: each turn continues within the last chunk of the
//! previous one.

use std::collections::BTreeSet;

use config::KvEvents;
use policy::units::Tokens;
use serde_json::json;
use sim_engine::{EngineConfig, EventStyle, KvEventsConfig};
use tailroute_e2e::client::call;
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{MODEL, words};

use crate::{Dice, agreement, all_live};

async fn fleet(capacity_blocks: u64, events: Option<EventStyle>) -> Fleet {
    let engine = EngineConfig {
        capacity_blocks,
        kv_events: events.map(|style| KvEventsConfig {
            style,
            ..KvEventsConfig::default()
        }),
        ..quick()
    };
    let fleet = Fleet::start(vec![engine; 2], |config| {
        for worker in &mut config.workers {
            worker.capacity = Tokens(capacity_blocks * u64::from(worker.block_size));
            if events.is_none() {
                worker.kv_events = KvEvents::Off;
            }
        }
    })
    .await;
    if events.is_some() {
        all_live(&fleet).await;
        agreement::subscribed_and_cleared(&fleet).await;
    }
    fleet
}

/// Requests a continuation of the text. Returns the engine that answered.
async fn complete(fleet: &Fleet, text: &mut String, tokens: u64) -> String {
    let body = json!({ "model": MODEL, "prompt": text, "max_tokens": tokens }).to_string();
    let answer = call(fleet.address(), "POST", "/v1/completions", &[], body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let worker = answer.worker();
    *text += answer.json()["choices"][0]["text"].as_str().unwrap();
    fleet.at_rest().await;
    worker
}

#[tokio::test]
async fn a_growing_prompt_without_a_session_id_is_predicted_to_the_token() {
    for events in [None, Some(EventStyle::Vllm), Some(EventStyle::Sglang)] {
        let fleet = fleet(8192, events).await;
        let mut text = words(1, 150);
        let mut workers = BTreeSet::new();
        for turn in 0..8 {
            workers.insert(complete(&fleet, &mut text, 90).await);
            text += &words(100 + turn, 40 + turn as usize);
        }
        assert_eq!(workers.len(), 1, "{events:?} {workers:?}");
        assert_eq!(agreement(&fleet.metrics().await), (1.0, 1.0), "{events:?}");
        let names: BTreeSet<String> = fleet
            .engines
            .iter()
            .flat_map(|engine| engine.captured())
            .filter_map(|request| Some(request.headers.get("x-session-id")?.to_str().unwrap().to_owned()))
            .collect();
        assert_eq!(names.len(), 1, "{events:?} {names:?}");
    }
}

#[tokio::test]
async fn a_mirror_of_plain_prompts_holds_what_the_engine_holds_while_both_evict() {
    for seed in 1..=3 {
        let (fleet, mut dice) = (fleet(400, None).await, Dice(seed));
        let mut texts: Vec<String> = Vec::new();
        for turn in 0..150 {
            let at = if texts.len() < 4 || dice.roll(5) == 0 {
                texts.push(words(dice.roll(3), 150) + &words(50 + turn, 20));
                texts.len() - 1
            } else {
                texts.len() - 1 - dice.roll(texts.len().min(12) as u64) as usize
            };
            complete(&fleet, &mut texts[at], 60 + dice.roll(60)).await;
            texts[at] += &words(1000 + turn, 10 + dice.roll(80) as usize);
        }
        let (exact, block) = agreement(&fleet.metrics().await);
        eprintln!("seed {seed}: {exact} exact, {block} within a block");
        assert!(
            exact >= 0.9 && block >= 0.95,
            "seed {seed}: {exact} exact, {block} within a block"
        );
    }
}

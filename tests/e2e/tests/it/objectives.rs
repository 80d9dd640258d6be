//! What turns are held to, and what workers are told of it.

use std::sync::Arc;

use policy::cost::PrefillCost;
use policy::estimate::Class;
use policy::units::{Millis, Tokens};
use serde_json::{Value, json};
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::until;

/// The hint that the engine's last request carried.
fn evict_first(fleet: &Fleet) -> Option<u64> {
    let all = fleet.engines[0].captured();
    let header = all
        .iter()
        .rev()
        .find(|request| request.uri.path() == CHAT)?
        .headers
        .get("x-tailroute-evict-first-tokens")?;
    header.to_str().unwrap().parse().ok()
}

/// Requests that want something else of the router than others do: <https://github.com/ai-dynamo/dynamo/issues/2697>. They say
/// by when they want their first token, not with what weights that is brought about.
#[tokio::test]
async fn a_turn_is_held_to_its_own_objective_or_to_its_classs() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.learning.costs = false;
        config.learning.habits = false;
        // 4,800 tokens fit, 200 of them are the next prompt's.
        config.objective.ttft = Millis(500.0);
        config.objective.classes = vec![config::Class {
            name: "strict".to_owned(),
            ttft: Millis(60.0),
            models: Vec::new(),
        }];
    })
    .await;
    let body = ask(&words(1, 50), json!({ "stream": true }));
    for (headers, expected) in [
        (&[][..], Some(4600)),
        (&[("x-slo-ttft-ms", "120")], Some(800)),
        (&[("x-llm-d-slo-ttft-ms", "70")], Some(300)),
        (&[("x-slo-class", "strict")], Some(200)),
        (&[("x-slo-ttft-ms", "30")], None),
        (&[("x-slo-ttft-ms", "rubbish")], Some(4600)),
    ] {
        fleet.chat(headers, &body).await;
        assert_eq!(evict_first(&fleet), expected, "{headers:?}");
    }
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    let turns = |class| page.sum("tailroute_slo_turns_total", &[("class", class)]);
    assert_eq!(
        [turns("default"), turns("header"), turns("strict")],
        [2.0, 3.0, 1.0]
    );
}

async fn explained(fleet: &Fleet) -> Value {
    let answer = client::admin(fleet.router.admin_address, "GET", "/admin/v1/slo", &[], None).await;
    assert_eq!(answer.status, 200);
    answer.json()
}

#[tokio::test]
async fn the_controller_says_what_it_does_and_why() {
    let fleet = Fleet::start(vec![quick(); 2], |_| {}).await;
    let mut talk = Conversation::new(&words(1, 300));
    for turn in 0..4 {
        fleet.turn(&mut talk, &[], &words(turn, 50)).await;
    }
    let conversations = &fleet.router.app().feedback.conversations;
    until("its habits are learned", || {
        conversations.lock().habits.all().turns() >= 3.0
    })
    .await;
    let told = explained(&fleet).await;
    assert_eq!(told["tail"]["scale"], 1.0);
    assert_eq!(
        (&told["tail"]["gated"], &told["tail"]["adaptive"]),
        (&json!(true), &json!(true))
    );
    assert!(
        told["tail"]["why"].as_str().unwrap().contains("load gate"),
        "{told}"
    );
    assert!(told["controller"]["arms"].as_array().unwrap().len() > 5);
    assert_eq!(told["objective"]["classes"][0]["ttft_ms"], 500.0);
    assert_eq!(told["objective"]["classes"][0]["met"], 4);
    assert!(told["workers"][1]["xi_tokens"].as_f64().unwrap() > 0.0);
    assert!(told["workers"][0]["told"]["xi_tokens"].is_number());
    assert_eq!(
        told["classes"].as_array().unwrap().len(),
        3,
        "first, second, middle"
    );
    assert_eq!(told["conversations"], 1);
}

#[tokio::test]
async fn an_objective_that_changed_is_told_again() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    let worker = Arc::clone(&fleet.router.app().fleet.workers()[0]);
    let engine = &fleet.engines[0];
    let first = engine.stats().objective.unwrap();
    // Its cost turns out to be double.
    worker.set_cost(PrefillCost::linear(0.2, 20.0));
    until("it is told", || {
        engine.stats().objective.unwrap().epoch > first.epoch
    })
    .await;
    let told = engine.stats().objective.unwrap();
    assert!((told.xi_tokens - 2400.0).abs() < 1.0, "{told:?}");
    let known = || {
        worker
            .hints
            .told()
            .is_some_and(|known| known.xi_tokens == told.xi_tokens)
    };
    until("the router knows that it was told", known).await;
}

#[tokio::test]
async fn the_next_prompt_is_expected_as_its_class_shows_it() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.learning.costs = false;
        config.objective.ttft = Millis(220.0);
    })
    .await;
    let feedback = &fleet.router.app().feedback;
    let class = Class {
        tools: true,
        ..Class::default()
    };
    for _ in 0..400 {
        let mut conversations = feedback.conversations.lock();
        conversations.habits.returned(class, Millis(1000.0), Tokens(1500));
        let plain = Class::default();
        conversations.habits.returned(plain, Millis(1000.0), Tokens(100));
    }
    let tools = json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] });
    let tail = async |extra: Value| {
        fleet.chat(&[], &ask(&words(1, 50), extra)).await;
        evict_first(&fleet).unwrap() as f64
    };
    // Of the 2,000 tokens that fit, Q̂ are the next prompt's.
    let (plain, tools) = (tail(json!({})).await, tail(tools).await);
    assert!(
        (plain - 1900.0).abs() < 20.0 && (tools - 500.0).abs() < 60.0,
        "{plain} {tools}"
    );
}

//! The objectives of turns, and their communication to workers.

use std::sync::Arc;

use policy::estimate::Class;
use policy::units::{Millis, Tokens};
use serde_json::{Value, json};
use tailroute_e2e::client;
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::until;

/// Requests with their own objective: <https://github.com/ai-dynamo/dynamo/issues/2697>. They state the time of their
/// first token, not the weights to achieve it.
#[tokio::test]
async fn a_turn_has_its_own_objective_or_its_classs() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.objective.ttft = Millis(500.0);
        config.objective.classes = vec![config::Class {
            name: "strict".to_owned(),
            ttft: Millis(60.0),
            models: Vec::new(),
        }];
    })
    .await;
    let body = ask(&words(1, 50), json!({ "stream": true }));
    for headers in [
        &[][..],
        &[("x-slo-ttft-ms", "120")],
        &[("x-llm-d-slo-ttft-ms", "70")],
        &[("x-slo-class", "strict")],
        &[("x-slo-ttft-ms", "30")],
        &[("x-slo-ttft-ms", "rubbish")],
    ] {
        fleet.chat(headers, &body).await;
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
async fn the_state_of_the_control_loop_shows_its_inputs() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.objective.ttft = Millis(10_000.0);
    })
    .await;
    let mut talk = Conversation::new(&words(1, 300));
    for turn in 0..4 {
        fleet.turn(&mut talk, &[], &words(turn, 50)).await;
    }
    let conversations = &fleet.router.parts().state.routing.feedback.conversations;
    until("its habits are learned", || {
        conversations.lock().habits.all().turns() >= 3.0
    })
    .await;
    let told = explained(&fleet).await;
    assert_eq!(told["tail"]["turns_behind"], 0.0);
    assert!(told["tail"]["horizon_s"].as_f64().unwrap() > 0.0);
    assert_eq!(told["tail"]["pause_turns"], 0);
    assert!(
        told["tail"]["why"]
            .as_str()
            .unwrap()
            .starts_with("Early eviction is on."),
        "{told}"
    );
    let silent = |worker: usize| told["workers"][worker]["silent"].as_u64().unwrap();
    assert_eq!(silent(0) + silent(1), 1);
    assert_eq!(told["objective"]["classes"][0]["ttft_ms"], 10_000.0);
    assert_eq!(
        told["objective"]["classes"][0]["met"], 2,
        "every other turn streams"
    );
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
async fn a_response_without_a_stream_counts_only_against_an_objective_of_its_request() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.objective.ttft = Millis(0.001);
    })
    .await;
    let strict: &[(&str, &str)] = &[("x-slo-ttft-ms", "0.001")];
    let mut judged = Vec::new();
    for (number, (stream, headers)) in [(false, &[][..]), (true, &[]), (false, strict)]
        .into_iter()
        .enumerate()
    {
        let body = ask(&words(number as u64, 50), json!({ "stream": stream }));
        assert_eq!(fleet.chat(headers, &body).await.status, 200);
        fleet.at_rest().await;
        let page = fleet.metrics().await;
        let counted = |class, met| page.sum("tailroute_slo_turns_total", &[("class", class), ("met", met)]);
        let late = page.sum("tailroute_slo_violations_total", &[]);
        let path = "/admin/v1/decisions?limit=1";
        let listed = client::admin(fleet.router.admin_address, "GET", path, &[], None)
            .await
            .json();
        let met = listed["decisions"][0]["outcome"]["met"].clone();
        judged.push((counted("default", "false"), counted("header", "false"), late, met));
    }
    assert_eq!(
        judged,
        [
            (0.0, 0.0, 0.0, Value::Null),
            (1.0, 0.0, 1.0, json!(false)),
            (1.0, 1.0, 2.0, json!(false)),
        ]
    );
}

/// A rate misses the first increase of a series that does not begin at zero.
#[tokio::test]
async fn the_tail_excess_of_every_worker_begins_at_zero() {
    let fleet = Fleet::start(vec![quick(); 2], |_| {}).await;
    let page = fleet.metrics().await;
    let samples = page.samples().iter();
    let excess = samples.filter(|sample| sample.name == "tailroute_tail_excess_seconds_total");
    let found: Vec<_> = excess
        .map(|sample| (&*sample.labels["class"], sample.value))
        .collect();
    assert_eq!(found, [("default", 0.0), ("default", 0.0)]);
}

#[tokio::test]
async fn a_changed_objective_is_sent_again() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    let worker = Arc::clone(&fleet.router.parts().state.routing.fleet.workers()[0]);
    let engine = &fleet.engines[0];
    let first = engine.stats().objective.unwrap();
    // Next prompts turn out to be longer.
    for _ in 0..400 {
        let mut conversations = fleet.router.parts().state.routing.feedback.conversations.lock();
        conversations
            .habits
            .returned(Class::default(), Millis(1000.0), Tokens(1500));
    }
    until("it is told", || {
        engine.stats().objective.unwrap().epoch > first.epoch
    })
    .await;
    let told = engine.stats().objective.unwrap();
    assert!(told.next_prompt_tokens > 1000.0, "{told:?}");
    let known = || {
        worker
            .hints
            .sent_objective(fleet.router.parts().state.routing.clock.now())
            .is_some_and(|known| known.objective.xi_tokens == told.xi_tokens)
    };
    until("the router knows that it was told", known).await;
}

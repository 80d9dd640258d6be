//! Agents: replies with tool calls, sent back with the tools' results. Their prefixes must be predicted as well as
//! those of text.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sim_engine::EventStyle;
use tailroute_e2e::client::Whole;
use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::metrics::Page;
use tailroute_e2e::talk::{Conversation, words};

use crate::agreement::fleet;
use crate::{Dice, agreement};

const BLOCK: u64 = 16;

/// Returns the reply as a client reads it: the message of an unstreamed response, or the sum of its deltas.
fn replied(answer: &Whole, streamed: bool) -> (Value, Value) {
    if !streamed {
        let json = answer.json();
        let choice = &json["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        return (choice["message"].clone(), json["usage"].clone());
    }
    let events = answer.events();
    let (mut content, mut calls) = (String::new(), BTreeMap::<u64, (Value, String)>::new());
    for event in &events {
        let delta = &event["choices"][0]["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap();
            let (_, arguments) = calls
                .entry(index)
                .or_insert_with(|| (call.clone(), String::new()));
            *arguments += call["function"]["arguments"].as_str().unwrap();
        }
    }
    let whole = |(mut call, arguments): (Value, String)| {
        call["function"]["arguments"] = arguments.into();
        call
    };
    let calls: Vec<Value> = calls.into_values().map(whole).collect();
    let message = json!({ "role": "assistant", "content": content, "tool_calls": calls });
    (message, events[events.len() - 2]["usage"].clone())
}

fn predicted(page: &Page) -> u64 {
    page.sum("tailroute_prompt_tokens_total", &[("kind", "predicted_cached")]) as u64
}

/// Runs a conversation of one question and many steps. Returns for each step after the first the prompt tokens that
/// the worker held, those that were predicted, and those that were found.
async fn work(fleet: &Fleet, seed: u64) -> Vec<[u64; 3]> {
    let mut dice = Dice(seed);
    let mut talk = Conversation::new(&words(seed, 150));
    talk.user(&words(seed + 1, 40));
    let tools = ["read_file", "edit"].map(|name| json!({ "type": "function", "function": { "name": name } }));
    let (mut held, mut known, mut steps) = (0, 0, Vec::new());
    for step in 0..12 {
        let streamed = step % 2 == 0;
        let body = talk.body(json!({
            "tools": tools, "tool_choice": "required", "parallel_tool_calls": dice.roll(2) == 0,
            "max_tokens": 80 + dice.roll(120), "stream": streamed, "stream_options": { "include_usage": true },
        }));
        let answer = fleet.chat(&[("x-session-id", "agent")], &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let (message, usage) = replied(&answer, streamed);
        fleet.at_rest().await;
        let before = std::mem::replace(&mut known, predicted(&fleet.metrics().await));
        if step > 0 {
            let found = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            steps.push([held, known - before, found]);
        }
        // The last token's keys and values are never computed.
        held = usage["total_tokens"].as_u64().unwrap() - 1;
        let calls = message["tool_calls"].as_array().unwrap().clone();
        assert!(!calls.is_empty());
        talk.push(message);
        for call in calls {
            let result = words(seed + 10 + step, 20 + dice.roll(60) as usize);
            talk.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": result }));
        }
    }
    steps
}

#[tokio::test]
async fn predictions_of_an_agents_next_step_include_its_tool_calls() {
    for events in [None, Some(EventStyle::Vllm), Some(EventStyle::Sglang)] {
        let fleet = fleet(1, events).await;
        let steps = work(&fleet, 7).await;
        for [held, predicted, found] in &steps {
            assert_eq!(
                *found,
                held / BLOCK * BLOCK,
                "{events:?}: the engine finds all it holds"
            );
            let least = held.saturating_sub(2 * BLOCK);
            assert!(
                *predicted >= least,
                "{events:?}: {predicted} predicted of {held} held: {steps:?}"
            );
        }
        let (exact, block) = agreement(&fleet.metrics().await);
        assert!(
            exact >= 0.9,
            "{events:?}: {exact} exact, {block} within a block: {steps:?}"
        );
    }
}

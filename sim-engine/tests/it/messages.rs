use http::StatusCode;
use serde_json::{Value, json};
use sim_engine::EngineConfig;

use crate::client::{call, post, quick, start, stream, types};

const MESSAGES: &str = "/v1/messages";

fn words(count: usize) -> String {
    (0..count).map(|at| format!("w{at} ")).collect()
}

fn ask(messages: &Value, tokens: u32) -> Value {
    json!({ "model": "sim", "max_tokens": tokens, "system": "Be brief.", "messages": messages })
}

fn prompt(usage: &Value) -> u64 {
    let count = |name: &str| usage[name].as_u64().unwrap();
    count("input_tokens") + count("cache_read_input_tokens") + count("cache_creation_input_tokens")
}

fn tools() -> Value {
    let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
    json!([
        { "name": "read", "description": "Reads.", "input_schema": schema, "cache_control": { "type": "ephemeral" } },
        { "name": "write", "input_schema": schema },
    ])
}

#[tokio::test]
async fn a_streamed_message_has_anthropics_events_and_the_text_of_a_whole_one() {
    let engine = start(quick()).await;
    let body = ask(&json!([{ "role": "user", "content": words(40) }]), 30);
    let whole = post(&engine, MESSAGES, &body).await;
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["model"]),
        (&json!("message"), &json!("assistant"), &json!("sim"))
    );
    assert_eq!(whole["stop_reason"], "max_tokens");
    assert_eq!(whole["usage"]["cache_read_input_tokens"], 0);
    assert_eq!(whole["usage"]["output_tokens"], 30);

    let events = stream(&engine, MESSAGES, &body).await;
    let order = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(types(&events), order);
    let text: String = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str())
        .collect();
    assert_eq!(whole["content"], json!([{ "type": "text", "text": text }]));

    let begun = &events[0]["message"];
    assert_eq!(begun["content"], json!([]));
    assert_eq!(begun["usage"]["output_tokens"], 0);
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], "max_tokens");
    assert_eq!(last["usage"]["output_tokens"], 30);
    assert!(last["usage"]["cache_read_input_tokens"].as_u64() > Some(0));
    assert_eq!(begun["usage"]["input_tokens"], prompt(&last["usage"]));
    assert_eq!(prompt(&whole["usage"]), prompt(&last["usage"]));
}

#[tokio::test]
async fn the_second_turn_finds_the_first_one_cached() {
    let engine = start(quick()).await;
    let question = json!({ "role": "user", "content": words(100) });
    let first = post(&engine, MESSAGES, &ask(&json!([question]), 50)).await;
    let computed = prompt(&first["usage"]) + 49;

    // A client marks the end of the prefix that it wants cached, and moves the mark.
    let marked = json!({ "type": "text", "text": words(100), "cache_control": { "type": "ephemeral" } });
    let history = json!([
        { "role": "user", "content": [marked] },
        { "role": "assistant", "content": first["content"] },
        { "role": "user", "content": "and then?" },
    ]);
    let second = post(&engine, MESSAGES, &ask(&history, 5)).await;
    assert_eq!(second["usage"]["cache_read_input_tokens"], computed / 16 * 16);
    let (_, counted) = call(
        &engine,
        "POST",
        "/v1/messages/count_tokens",
        &[],
        &ask(&history, 5),
    )
    .await;
    assert_eq!(counted["input_tokens"], prompt(&second["usage"]));
}

#[tokio::test]
async fn a_reply_ends_by_itself_below_a_high_limit() {
    let engine = start(quick()).await;
    let mut body = ask(&json!([{ "role": "user", "content": "go on" }]), 32_000);
    let whole = post(&engine, MESSAGES, &body).await;
    assert_eq!(whole["stop_reason"], "end_turn");
    assert_eq!(whole["usage"]["output_tokens"], 64);
    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop = text.split_whitespace().nth(10).unwrap();
    body["stop_sequences"] = json!([stop]);
    let stopped = post(&engine, MESSAGES, &body).await;
    assert_eq!(stopped["stop_reason"], "end_turn");
    assert_eq!(stopped["content"][0]["text"], text[..text.find(stop).unwrap()]);
}

#[tokio::test]
async fn tools_are_used_and_their_results_continue_the_cached_prompt() {
    let engine = start(quick()).await;
    let question = json!({ "role": "user", "content": words(20) });
    let mut body = ask(&json!([question]), 1000);
    body["tools"] = tools();
    body["tool_choice"] = json!({ "type": "any" });
    let whole = post(&engine, MESSAGES, &body).await;
    assert_eq!(whole["stop_reason"], "tool_use");
    let blocks = whole["content"].as_array().unwrap();
    let kinds: Vec<&Value> = blocks.iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "tool_use", "tool_use"]);
    assert_eq!(
        (&blocks[1]["name"], &blocks[2]["name"]),
        (&json!("read"), &json!("write"))
    );
    assert!(blocks[1]["input"]["text"].is_string());

    let events = stream(&engine, MESSAGES, &body).await;
    for (index, block) in blocks.iter().enumerate().skip(1) {
        let of_block = |event: &&Value| event["index"] == index;
        let begun = events.iter().find(of_block).unwrap();
        assert_eq!(begun["content_block"]["id"], block["id"]);
        assert_eq!(begun["content_block"]["input"], json!({}));
        let input: String = events
            .iter()
            .filter(of_block)
            .filter_map(|event| event["delta"]["partial_json"].as_str())
            .collect();
        assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), block["input"]);
    }

    let result =
        |block: &Value| json!({ "type": "tool_result", "tool_use_id": block["id"], "content": "done" });
    body["messages"] = json!([
        question,
        { "role": "assistant", "content": blocks },
        { "role": "user", "content": [result(&blocks[1]), result(&blocks[2])] },
    ]);
    body["tool_choice"] = json!({ "type": "auto" });
    let next = post(&engine, MESSAGES, &body).await;
    let computed = prompt(&whole["usage"]) + whole["usage"]["output_tokens"].as_u64().unwrap() - 1;
    assert_eq!(next["usage"]["cache_read_input_tokens"], computed / 16 * 16);
    assert_eq!(next["stop_reason"], "end_turn");

    body["tool_choice"] = json!({ "type": "tool", "name": "write", "disable_parallel_tool_use": true });
    let named = post(&engine, MESSAGES, &body).await;
    assert_eq!(named["content"][1]["name"], "write");
    assert_eq!(named["content"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn thoughts_and_numbers_of_requests_are_no_part_of_the_prompt() {
    let engine = start(quick()).await;
    let body = |system: Value, said: Value| {
        let messages = json!([
            { "role": "user", "content": words(60) }, { "role": "assistant", "content": said },
            { "role": "user", "content": "go on" },
        ]);
        json!({ "model": "sim", "max_tokens": 1, "system": system, "messages": messages })
    };
    let plain = post(&engine, MESSAGES, &body(json!("Be brief."), json!("yes"))).await;
    let system = json!([
        { "type": "text", "text": "x-anthropic-billing-header: cch=1;" },
        { "type": "text", "text": "Be brief." },
    ]);
    let said = json!([
        { "type": "thinking", "thinking": "hm", "signature": "s" }, { "type": "text", "text": "yes" },
    ]);
    let other = post(&engine, MESSAGES, &body(system, said)).await;
    assert_eq!(prompt(&other["usage"]), prompt(&plain["usage"]));
    assert_eq!(
        other["usage"]["cache_read_input_tokens"],
        (prompt(&plain["usage"]) - 1) / 16 * 16
    );
}

#[tokio::test]
async fn errors_are_anthropics_with_the_right_status() {
    let engine = start(EngineConfig {
        strict: true,
        max_model_len: 200,
        max_queued: 0,
        ..quick()
    })
    .await;
    let ok = ask(&json!([{ "role": "user", "content": "hi" }]), 5);
    let with = |name: &str, value: Value| {
        let mut body = ok.clone();
        body[name] = value;
        body
    };
    let cases = [
        ("POST", MESSAGES, json!({ "messages": [] }), 400),
        ("POST", MESSAGES, json!({ "max_tokens": 1 }), 400),
        ("POST", MESSAGES, with("max_tokens", json!(0)), 400),
        (
            "POST",
            MESSAGES,
            with("messages", json!([{ "role": "user", "content": 1 }])),
            400,
        ),
        ("POST", MESSAGES, with("frequency_penalty", json!(1)), 400),
        ("POST", MESSAGES, with("model", json!("other")), 404),
        ("POST", MESSAGES, with("max_tokens", json!(200)), 413),
        ("GET", MESSAGES, Value::Null, 405),
        ("POST", "/v1/messages/batches", ok.clone(), 404),
        ("POST", MESSAGES, ok.clone(), 503),
    ];
    for (method, path, body, expected) in cases {
        let (status, answer) = call(&engine, method, path, &[], &body).await;
        assert_eq!(status.as_u16(), expected, "{method} {path} {body}: {answer}");
        assert_eq!(answer["type"], "error");
        assert!(answer["error"]["type"].is_string() && answer["error"]["message"].is_string());
    }
    let (status, answer) = call(&engine, "POST", MESSAGES, &[("x-data-parallel-rank", "7")], &ok).await;
    assert_eq!(
        (status, &answer["type"]),
        (StatusCode::BAD_REQUEST, &json!("error"))
    );
}

#[tokio::test]
async fn cached_tokens_are_told_only_if_configured() {
    let engine = start(EngineConfig {
        cached_tokens_report: false,
        ..quick()
    })
    .await;
    let body = ask(&json!([{ "role": "user", "content": words(40) }]), 2);
    let first = post(&engine, MESSAGES, &body).await;
    let again = post(&engine, MESSAGES, &body).await;
    assert_eq!(first["usage"], again["usage"]);
    assert!(again["usage"].get("cache_read_input_tokens").is_none());
}

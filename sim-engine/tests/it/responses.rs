use http::StatusCode;
use policy::cost::PrefillCost;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig, Fault};

use crate::client::{NEVER_MS, call, open, post, quick, start, stream, typed_events, types, within};

const RESPONSES: &str = "/v1/responses";

fn words(count: usize) -> String {
    (0..count).map(|at| format!("w{at} ")).collect()
}

fn ask(input: impl Into<Value>, extra: Value) -> Value {
    let mut body = json!({ "model": "sim", "input": input.into(), "max_output_tokens": 30 });
    if let (Value::Object(body), Value::Object(extra)) = (&mut body, extra) {
        body.extend(extra);
    }
    body
}

fn count(usage: &Value, name: &str) -> u64 {
    usage[name].as_u64().unwrap()
}

fn cached(response: &Value) -> u64 {
    count(&response["usage"]["input_tokens_details"], "cached_tokens")
}

/// The full blocks of everything computed for a response: its prompt and all generated tokens but the last.
fn computed(response: &Value) -> u64 {
    (count(&response["usage"], "total_tokens") - 1) / 16 * 16
}

async fn get(engine: &Engine, id: &Value) -> (StatusCode, Value) {
    let path = format!("{RESPONSES}/{}", id.as_str().unwrap());
    call(engine, "GET", &path, &[], &Value::Null).await
}

#[tokio::test]
async fn a_streamed_response_has_openais_events_and_the_text_of_a_whole_one() {
    let engine = start(quick()).await;
    let body = ask(words(40), json!({ "instructions": "Be brief.", "user": "me" }));
    let whole = post(&engine, RESPONSES, &body).await;
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["user"]),
        (&json!("response"), &json!("incomplete"), &json!("me"))
    );
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!((cached(&whole), count(&whole["usage"], "output_tokens")), (0, 30));

    let events = stream(&engine, RESPONSES, &body).await;
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(types(&events), order);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let begun = &events[0]["response"];
    assert_eq!(
        (&begun["status"], &begun["usage"]),
        (&json!("in_progress"), &Value::Null)
    );
    let text: String = events
        .iter()
        .filter_map(|event| event["delta"].as_str())
        .collect();
    assert_eq!(whole["output"][0]["content"][0]["text"], text);
    assert_eq!(events[events.len() - 4]["text"], text);

    let last = &events[events.len() - 1]["response"];
    assert_eq!(last["id"], begun["id"]);
    assert_ne!(last["id"], whole["id"]);
    assert_eq!(last["output"], json!([events[events.len() - 2]["item"]]));
    assert_eq!(last["status"], "incomplete");
    assert!(cached(last) > 0);
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    assert_eq!(get(&engine, &last["id"]).await, (StatusCode::OK, last.clone()));
}

#[tokio::test]
async fn a_stream_begins_before_the_first_token() {
    let engine = start(EngineConfig {
        prefill: PrefillCost::linear(0.0, NEVER_MS),
        ..quick()
    })
    .await;
    let body = ask("hi", json!({ "stream": true })).to_string();
    let mut stream = open(&engine, "POST", RESPONSES, &[], body).await.unwrap();
    let begun = typed_events(&stream.chunk().await.unwrap().unwrap());
    assert_eq!(types(&begun), ["response.created", "response.in_progress"]);
    drop(stream);
    let stats = within(engine.stats_when(|stats| stats.aborted.total() == 1)).await;
    assert_eq!(stats.aborted.prefill, 1);
    let (status, _) = get(&engine, &begun[0]["response"]["id"]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_next_turn_finds_the_last_one_cached_whichever_way_it_is_named() {
    let engine = start(quick()).await;
    let brief = json!({ "instructions": "Be brief." });
    let first = post(&engine, RESPONSES, &ask(words(100), brief.clone())).await;

    let mut history =
        vec![json!({ "role": "user", "content": [{ "type": "input_text", "text": words(100) }] })];
    history.extend(first["output"].as_array().unwrap().iter().cloned());
    history.push(json!({ "role": "user", "content": "and then?" }));
    let repeated = post(&engine, RESPONSES, &ask(history, brief.clone())).await;
    assert_eq!(cached(&repeated), computed(&first));

    let named = json!({ "instructions": "Be brief.", "previous_response_id": first["id"] });
    let continued = post(&engine, RESPONSES, &ask("and then?", named)).await;
    assert_eq!(
        count(&continued["usage"], "input_tokens"),
        count(&repeated["usage"], "input_tokens")
    );
    assert_eq!(continued["previous_response_id"], first["id"]);
    assert!(cached(&continued) >= computed(&first));

    let third = json!({ "instructions": "Be brief.", "previous_response_id": continued["id"] });
    let third = post(&engine, RESPONSES, &ask("go on", third)).await;
    assert_eq!(cached(&third), computed(&continued));

    // Instructions are not inherited.
    let plain = json!({ "previous_response_id": first["id"] });
    let plain = post(&engine, RESPONSES, &ask("and then?", plain)).await;
    assert_eq!(cached(&plain), 0);
    assert!(count(&plain["usage"], "input_tokens") < count(&repeated["usage"], "input_tokens"));
}

#[tokio::test]
async fn calls_are_items_and_their_outputs_continue_the_cached_prompt() {
    let engine = start(quick()).await;
    let tool = |name: &str| json!({ "type": "function", "name": name, "parameters": { "type": "object" } });
    let tools = json!([tool("read"), tool("write")]);
    let required = json!({ "tools": tools, "tool_choice": "required", "max_output_tokens": 1000 });
    let body = ask(words(20), required);
    let whole = post(&engine, RESPONSES, &body).await;
    let output = whole["output"].as_array().unwrap();
    let kinds: Vec<&Value> = output.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call"]);
    assert_eq!(
        (&whole["status"], &output[2]["name"]),
        (&json!("completed"), &json!("write"))
    );

    let events = stream(&engine, RESPONSES, &body).await;
    let done: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| &event["item"])
        .collect();
    let last = &events[events.len() - 1]["response"];
    assert_eq!(json!(done), last["output"]);
    for (index, item) in output.iter().enumerate().skip(1) {
        let arguments: String = events
            .iter()
            .filter(|event| event["type"] == "response.function_call_arguments.delta")
            .filter(|event| event["output_index"] == index)
            .filter_map(|event| event["delta"].as_str())
            .collect();
        assert_eq!(item["arguments"], arguments);
        assert_eq!(item["call_id"], done[index]["call_id"]);
    }

    let outputs: Vec<Value> = output[1..]
        .iter()
        .map(|call| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "done" }))
        .collect();
    let named = json!({ "tools": tools, "previous_response_id": whole["id"] });
    let continued = post(&engine, RESPONSES, &ask(outputs.clone(), named)).await;
    assert_eq!(cached(&continued), computed(&whole));

    let mut history = vec![json!({ "role": "user", "content": words(20) })];
    history.push(json!({ "type": "reasoning", "summary": [] }));
    history.extend(output.iter().cloned());
    history.extend(outputs);
    let repeated = post(&engine, RESPONSES, &ask(history, json!({ "tools": tools }))).await;
    assert_eq!(
        count(&repeated["usage"], "input_tokens"),
        count(&continued["usage"], "input_tokens")
    );

    let choice = json!({ "type": "function", "name": "write" });
    let named = json!({ "tools": tools, "tool_choice": choice, "max_output_tokens": 1000 });
    let named = post(&engine, RESPONSES, &ask("hi", named)).await;
    assert_eq!(named["output"][1]["name"], "write");
}

#[tokio::test]
async fn unknown_responses_are_not_found_and_known_ones_not_cancelled() {
    let engine = start(quick()).await;
    let kept = post(
        &engine,
        RESPONSES,
        &ask("hi", json!({ "request_id": "resp_mine" })),
    )
    .await;
    assert_eq!(kept["id"], "resp_mine");
    assert_eq!(get(&engine, &kept["id"]).await.1, kept);
    let loose = post(&engine, RESPONSES, &ask("hi", json!({ "store": false }))).await;
    let loose = loose["id"].as_str().unwrap();

    let next = |id: &str| ask("go on", json!({ "previous_response_id": id }));
    let none = Value::Null;
    let cases = [
        ("POST", RESPONSES.to_owned(), next("resp_none"), 404),
        ("POST", RESPONSES.to_owned(), next(loose), 404),
        ("GET", format!("{RESPONSES}/{loose}"), none.clone(), 404),
        ("POST", format!("{RESPONSES}/resp_none/cancel"), none.clone(), 404),
        ("POST", format!("{RESPONSES}/resp_mine/cancel"), none.clone(), 400),
    ];
    for (method, path, body, expected) in cases {
        let (status, answer) = call(&engine, method, &path, &[], &body).await;
        assert_eq!(status.as_u16(), expected, "{method} {path}: {answer}");
        assert_eq!(answer["error"]["code"], expected);
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        assert_eq!(answer["error"]["param"], "response_id");
    }
    for (method, path, expected) in [
        ("DELETE", format!("{RESPONSES}/resp_mine"), 405),
        ("GET", format!("{RESPONSES}/resp_mine/cancel"), 405),
        ("GET", format!("{RESPONSES}/resp_mine/input_items"), 404),
    ] {
        let (status, _) = call(&engine, method, &path, &[], &none).await;
        assert_eq!(status.as_u16(), expected, "{method} {path}");
    }

    // A restarted engine has forgotten its responses.
    engine.set_fault(Fault {
        die: true,
        ..Fault::default()
    });
    engine.set_fault(Fault::default());
    within(async {
        while open(&engine, "GET", "/health", &[], "").await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(get(&engine, &kept["id"]).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn replies_end_as_in_chat_and_errors_are_openais() {
    let engine = start(EngineConfig {
        strict: true,
        cached_tokens_report: false,
        ..quick()
    })
    .await;
    let natural = post(&engine, RESPONSES, &json!({ "input": "hi" })).await;
    assert_eq!(
        (&natural["status"], &natural["incomplete_details"]),
        (&json!("completed"), &Value::Null)
    );
    assert_eq!(natural["usage"]["output_tokens"], 64);
    assert_eq!(natural["usage"]["input_tokens_details"], Value::Null);
    for (body, expected) in [
        (json!({}), 400),
        (json!({ "input": 1 }), 400),
        (ask("hi", json!({ "max_output_tokens": 0 })), 400),
        (ask("hi", json!({ "background": true })), 400),
        (ask("hi", json!({ "max_tokens": 1 })), 400),
        (ask("hi", json!({ "model": "other" })), 404),
    ] {
        let (status, answer) = call(&engine, "POST", RESPONSES, &[], &body).await;
        assert_eq!(status.as_u16(), expected, "{body}: {answer}");
        assert_eq!(answer["error"]["code"], expected);
    }
}

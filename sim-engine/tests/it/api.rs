use http::StatusCode;
use serde_json::{Value, json};
use sim_engine::EngineConfig;

use crate::client::{cached, call, chat, content, events, open, quick, say, start, streamed_text, talk};

fn words(count: usize) -> String {
    (0..count).map(|at| format!("w{at} ")).collect()
}

#[tokio::test]
async fn a_stream_and_a_whole_answer_say_the_same() {
    let engine = start(quick()).await;
    let extra = json!({ "max_tokens": 40, "stream": true, "stream_options": { "include_usage": true } });
    let body = serde_json::to_vec(&say("tell me", extra)).unwrap();
    let path = "/v1/chat/completions";
    let stream = open(&engine, "POST", path, &[("x-request-id", "abc")], body)
        .await
        .unwrap();
    assert_eq!(stream.headers["content-type"], "text/event-stream; charset=utf-8");
    let (bytes, error) = stream.rest().await;
    assert!(error.is_none());
    let events = events(&bytes);
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({ "role": "assistant", "content": "" })
    );
    assert_eq!(events[0]["id"], "chatcmpl-abc");
    let usage = &events[events.len() - 2];
    assert_eq!(
        (&usage["choices"], &usage["usage"]["completion_tokens"]),
        (&json!([]), &json!(40))
    );
    assert!(usage["metrics"]["time_to_first_token_ms"].is_f64());
    assert_eq!(events[events.len() - 3]["choices"][0]["finish_reason"], "length");

    let whole = chat(&engine, &[], &say("tell me", json!({ "max_tokens": 40 }))).await;
    assert_eq!(content(&whole), streamed_text(&events));
    assert_eq!(whole["usage"]["completion_tokens"], 40);
    let other = chat(
        &engine,
        &[],
        &say("tell me", json!({ "max_tokens": 40, "seed": 1 })),
    )
    .await;
    assert_ne!(content(&other), content(&whole));
}

#[tokio::test]
async fn cached_tokens_grow_over_the_turns_of_a_conversation() {
    let engine = start(quick()).await;
    let question = words(100);
    let first = chat(&engine, &[], &say(&question, json!({ "max_tokens": 50 }))).await;
    assert_eq!(cached(&first), 0);
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();

    let history = [
        ("user", question.as_str()),
        ("assistant", content(&first)),
        ("user", "and then?"),
    ];
    let second = chat(&engine, &[], &talk(&history, json!({ "max_tokens": 5 }))).await;
    // Everything but the token said last, in whole blocks of 16.
    assert_eq!(cached(&second), (prompt + 49) / 16 * 16);

    let salted = talk(&history, json!({ "max_tokens": 5, "cache_salt": "tenant" }));
    assert_eq!(cached(&chat(&engine, &[], &salted).await), 0);
    engine.shutdown().await;
}

#[tokio::test]
async fn ttft_is_the_formula_over_http_too() {
    let engine = start(quick()).await;
    for (text, hit) in [(words(64), 0.0), (words(128), 64.0)] {
        let answer = chat(&engine, &[], &say(&text, json!({ "max_tokens": 1 }))).await;
        let prompt = answer["usage"]["prompt_tokens"].as_f64().unwrap();
        let h = cached(&answer) as f64;
        assert!(h >= hit, "{h}");
        let u = prompt - h;
        let expected = 10.0 + 0.5 * u + 0.001 * u * (h + u / 2.0);
        let ttft = answer["metrics"]["time_to_first_token_ms"].as_f64().unwrap() * 1000.0;
        assert!((ttft - expected).abs() < 1e-6, "{ttft} is not {expected}");
        assert_eq!(answer["metrics"]["queue_time_ms"], 0.0);
    }
}

#[tokio::test]
async fn replies_end_where_they_are_told_to() {
    let engine = start(quick()).await;
    let natural = chat(&engine, &[], &say("go on", json!({}))).await;
    assert_eq!(natural["choices"][0]["finish_reason"], "stop");
    assert_eq!(natural["usage"]["completion_tokens"], 64);
    let exact = chat(
        &engine,
        &[],
        &say("go on", json!({ "max_completion_tokens": 7, "ignore_eos": true })),
    )
    .await;
    assert_eq!(exact["choices"][0]["finish_reason"], "length");
    assert_eq!(exact["usage"]["completion_tokens"], 7);

    let stop = content(&natural).split_whitespace().nth(10).unwrap();
    let before = &content(&natural)[..content(&natural).find(stop).unwrap()];
    for streamed in [false, true] {
        let request = say("go on", json!({ "stop": [stop], "stream": streamed }));
        let body = serde_json::to_vec(&request).unwrap();
        let (bytes, _) = open(&engine, "POST", "/v1/chat/completions", &[], body)
            .await
            .unwrap()
            .rest()
            .await;
        let said = if streamed {
            streamed_text(&events(&bytes))
        } else {
            content(&serde_json::from_slice::<Value>(&bytes).unwrap()).to_owned()
        };
        assert_eq!(said, before);
    }
}

#[tokio::test]
async fn plain_completions_take_text_and_tokens_and_tokenize_counts_them() {
    let engine = start(quick()).await;
    let (status, tokens) = call(&engine, "POST", "/tokenize", &[], &json!({ "prompt": words(40) })).await;
    assert_eq!((status, &tokens["count"]), (StatusCode::OK, &json!(41)));
    let text = json!({ "prompt": words(40), "max_tokens": 3 });
    let (_, answer) = call(&engine, "POST", "/v1/completions", &[], &text).await;
    assert_eq!(
        (&answer["object"], &answer["usage"]["prompt_tokens"]),
        (&json!("text_completion"), &json!(41))
    );
    let ids = json!({ "prompt": tokens["tokens"], "max_tokens": 3 });
    let (_, again) = call(&engine, "POST", "/v1/completions", &[], &ids).await;
    assert_eq!(again["choices"][0]["text"], answer["choices"][0]["text"]);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 32);
    let stream = json!({ "prompt": words(40), "max_tokens": 3, "stream": true }).to_string();
    let (bytes, _) = open(&engine, "POST", "/v1/completions", &[], stream)
        .await
        .unwrap()
        .rest()
        .await;
    let said: String = events(&bytes)
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(said, answer["choices"][0]["text"].as_str().unwrap());
}

#[tokio::test]
async fn errors_are_openai_shaped_with_the_right_status() {
    let config = EngineConfig {
        strict: true,
        max_model_len: 100,
        max_body_bytes: 4096,
        max_queued: 0,
        ..quick()
    };
    let engine = start(config).await;
    let chat = "/v1/chat/completions";
    let ok = say("hi", json!({})).to_string();
    let cases = [
        ("POST", chat, "{not json".to_owned(), 400),
        ("POST", chat, "\"text\"".to_owned(), 400),
        ("POST", chat, "{}".to_owned(), 400),
        (
            "POST",
            chat,
            say("hi", json!({ "max_tokens": -1 })).to_string(),
            400,
        ),
        (
            "POST",
            chat,
            say("hi", json!({ "max_tokens": 0 })).to_string(),
            400,
        ),
        ("POST", chat, say("hi", json!({ "n": 2 })).to_string(), 400),
        (
            "POST",
            chat,
            say("hi", json!({ "kv_hints": {} })).to_string(),
            400,
        ),
        (
            "POST",
            chat,
            say("hi", json!({ "model": "other" })).to_string(),
            404,
        ),
        ("POST", "/v1/embeddings", ok.clone(), 404),
        ("GET", chat, String::new(), 405),
        ("POST", chat, say(&words(120), json!({})).to_string(), 413),
        ("POST", chat, say(&"x".repeat(5000), json!({})).to_string(), 413),
        ("POST", chat, ok, 503),
    ];
    for (method, path, body, expected) in cases {
        let open = open(&engine, method, path, &[], body.clone()).await.unwrap();
        let status = open.status;
        let (bytes, _) = open.rest().await;
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(status.as_u16(), expected, "{method} {path} {body}: {answer}");
        assert_eq!(answer["error"]["code"], expected);
        assert!(
            answer["error"]["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty())
        );
    }
    assert_eq!(engine.stats().refused, 1);
}

#[tokio::test]
async fn what_is_switched_off_is_not_told() {
    let engine = start(EngineConfig {
        cached_tokens_report: false,
        per_request_metrics: false,
        ..quick()
    })
    .await;
    let answer = chat(&engine, &[], &say("hi", json!({}))).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"], Value::Null);
    assert!(answer.get("metrics").is_none());
}

#[tokio::test]
async fn metrics_go_by_vllms_names() {
    let engine = start(EngineConfig {
        time_scale: 1.0,
        prefill: policy::cost::PrefillCost::linear(0.0, 3.0),
        ..quick()
    })
    .await;
    for _ in 0..2 {
        chat(&engine, &[], &say(&words(40), json!({ "max_tokens": 1 }))).await;
    }
    let (_, page) = call(&engine, "GET", "/metrics", &[], &Value::Null).await;
    let page = page.as_str().unwrap();
    let value = |name: &str, labels: &str| -> f64 {
        let line = format!("{name}{{engine=\"0\",model_name=\"sim\"{labels}}} ");
        page.lines()
            .find_map(|found| found.strip_prefix(&line))
            .expect(name)
            .parse()
            .unwrap()
    };
    assert_eq!(value("vllm:num_requests_waiting", ""), 0.0);
    assert_eq!(value("vllm:kv_cache_usage_perc", ""), 0.0);
    assert_eq!(value("vllm:prefix_cache_queries_total", ""), 88.0);
    assert_eq!(value("vllm:prefix_cache_hits_total", ""), 32.0);
    assert_eq!(
        value("vllm:time_to_first_token_seconds_bucket", ",le=\"0.001\""),
        0.0
    );
    assert_eq!(
        value("vllm:time_to_first_token_seconds_bucket", ",le=\"0.005\""),
        2.0
    );
    assert_eq!(value("vllm:request_prefill_kv_computed_tokens_sum", ""), 56.0);
    assert!((value("vllm:request_prefill_time_seconds_sum", "") - 0.006).abs() < 1e-9);
    assert_eq!(
        value("vllm:request_success_total", ",finished_reason=\"length\""),
        2.0
    );
    let info = ",block_size=\"16\",num_gpu_blocks=\"8192\",enable_prefix_caching=\"True\"";
    assert_eq!(value("vllm:cache_config_info", info), 1.0);
}

#[tokio::test]
async fn bodies_can_be_compared_byte_for_byte() {
    let engine = start(quick()).await;
    let body = " { \"messages\" : [ {\"role\":\"user\",\"content\":\"\\u00e9\"} ], \"max_tokens\":1 }\n";
    let (bytes, _) = open(&engine, "POST", "/v1/chat/completions", &[("x-tag", "1")], body)
        .await
        .unwrap()
        .rest()
        .await;
    assert!(!bytes.is_empty());
    let seen = engine.captured();
    assert_eq!((seen.len(), &seen[0].body[..]), (1, body.as_bytes()));
    assert_eq!(seen[0].headers["x-tag"], "1");
    let (_, stats) = call(&engine, "GET", "/sim/stats", &[], &Value::Null).await;
    assert_eq!(stats["last_request"]["body"], body);
}

#[tokio::test]
async fn a_fast_engine_answers_at_once_in_both_forms() {
    let engine = start(EngineConfig {
        fast: true,
        ..quick()
    })
    .await;
    let whole = chat(&engine, &[], &say("hi", json!({}))).await;
    let body = say("hi", json!({ "stream": true })).to_string();
    let (bytes, _) = open(&engine, "POST", "/v1/chat/completions", &[], body)
        .await
        .unwrap()
        .rest()
        .await;
    assert_eq!(streamed_text(&events(&bytes)), content(&whole));
}

#[tokio::test]
async fn a_fast_engine_keeps_the_pace_that_it_is_told() {
    let engine = start(EngineConfig {
        fast: true,
        ..quick()
    })
    .await;
    let (status, _) = call(&engine, "PUT", "/sim/pace", &[], &json!({ "gap_ms": -1 })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    call(&engine, "PUT", "/sim/pace", &[], &json!({ "gap_ms": 5 })).await;
    let begun = std::time::Instant::now();
    let body = say("hi", json!({ "stream": true, "max_tokens": 5 })).to_string();
    let (bytes, _) = open(&engine, "POST", "/v1/chat/completions", &[], body)
        .await
        .unwrap()
        .rest()
        .await;
    assert!(begun.elapsed() >= std::time::Duration::from_millis(20));
    assert_eq!(streamed_text(&events(&bytes)).split_whitespace().count(), 5);
}

#[tokio::test]
async fn models_and_health_answer() {
    let engine = start(quick()).await;
    let (_, models) = call(&engine, "GET", "/v1/models", &[], &Value::Null).await;
    assert_eq!(models["data"][0]["id"], "sim");
    let (status, _) = call(&engine, "GET", "/health", &[], &Value::Null).await;
    assert_eq!(status, StatusCode::OK);
}

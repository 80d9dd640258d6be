//! Single requests: every endpoint, malformed bodies and headers, methods and paths.

use serde_json::{Value, json};
use tailroute_e2e::talk::{MODEL, with, words};

use super::{Ask, CHAT, Step, Story, post, story};

/// Every JSON endpoint, plain and streamed.
pub(super) fn endpoints() -> Story {
    let text = |seed| words(seed, 120);
    let tools =
        json!([{ "type": "function", "function": { "name": "look", "parameters": { "type": "object" } } }]);
    let picture = json!([{ "type": "text", "text": text(3) }, { "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } }]);
    let bodies: Vec<(&str, Value)> = vec![
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": text(1) }] }),
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": text(1) }], "tools": tools, "tool_choice": "auto" }),
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": picture }] }),
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": text(1) }], "n": 2, "max_tokens": 5 }),
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": "é\u{1f600}\"\\\n" }], "stream_options": { "include_usage": true } }),
        ),
        ("/v1/completions", json!({ "prompt": text(4) })),
        ("/v1/completions", json!({ "prompt": [text(4), text(5)] })),
        ("/v1/completions", json!({ "prompt": [1, 2, 3, 4, 5] })),
        (
            "/v1/completions",
            json!({ "prompt": [[1, 2, 3], [4, 5]], "echo": true }),
        ),
        ("/v1/responses", json!({ "input": text(6) })),
        (
            "/v1/responses",
            json!({ "input": [{ "role": "user", "content": text(6) }], "instructions": text(7) }),
        ),
        (
            "/v1/responses",
            json!({ "input": text(8), "previous_response_id": "resp_10" }),
        ),
        (
            "/v1/messages",
            json!({ "max_tokens": 9, "system": text(9), "messages": [{ "role": "user", "content": text(10) }] }),
        ),
        (
            "/v1/messages",
            json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": [{ "type": "text", "text": text(10), "cache_control": { "type": "ephemeral" } }] }] }),
        ),
        (
            "/generate",
            json!({ "text": text(11), "sampling_params": { "max_new_tokens": 4 } }),
        ),
        ("/generate", json!({ "input_ids": [9, 8, 7, 6, 5, 4, 3, 2, 1] })),
        ("/v1/embeddings", json!({ "input": text(12) })),
        ("/v1/embeddings", json!({ "input": [text(12), text(13)] })),
        (
            "/v1/rerank",
            json!({ "query": text(14), "documents": [text(15), text(16)] }),
        ),
        ("/v1/score", json!({ "text_1": text(14), "text_2": text(15) })),
        ("/classify", json!({ "input": text(17) })),
        ("/pooling", json!({ "input": text(17) })),
        ("/tokenize", json!({ "prompt": text(18) })),
        ("/detokenize", json!({ "tokens": [1, 2, 3] })),
        (
            "/v1/messages/count_tokens",
            json!({ "messages": [{ "role": "user", "content": text(10) }] }),
        ),
        ("/v1/audio/speech", json!({ "input": text(19), "voice": "a" })),
        ("/v1/images/generations", json!({ "prompt": text(20) })),
        ("/v1/moderations", json!({ "input": text(21) })),
    ];
    let streams = [
        CHAT,
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/generate",
    ];
    let mut steps = Vec::new();
    for (path, body) in &bodies {
        // Twice, because the second request hits the first one's cache.
        for (round, stream) in [(0, false), (1, false), (2, true)] {
            if stream && !streams.contains(path) {
                continue;
            }
            let extra = if stream {
                json!({ "model": MODEL, "stream": true })
            } else {
                json!({ "model": MODEL })
            };
            let mut ask = post(path, with(body.clone(), extra).to_string());
            if round == 1 {
                ask = ask.with("anthropic-version", "2023-06-01");
            }
            steps.extend([Step::Ask(ask), Step::Pass(30)]);
        }
    }
    story("endpoints", "", steps)
}

pub(super) fn malformed() -> Story {
    let long = words(1, 40_000);
    let bodies: Vec<String> = vec![
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "{}".to_owned(),
        r#"{"model":"sim"}"#.to_owned(),
        r#"{"model":7,"messages":[]}"#.to_owned(),
        r#"{"model":"none-such","messages":[{"role":"user","content":"a"}]}"#.to_owned(),
        r#"{"model":"sim","messages":"a"}"#.to_owned(),
        r#"{"model":"sim","messages":[]}"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user"}]}"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user","content":null}]}"#.to_owned(),
        r#"{"model":"sim","model":"other","messages":[{"role":"user","content":"a"}]}"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user","content":"a"}]} trailing"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user","content":"\ud800"}]}"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user","content":"a"}],"stream":"yes"}"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user","content":"a"}],"kv_transfer_params":{}}"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user","content":"a"}],"data_parallel_rank":3}"#.to_owned(),
        r#"{"model":"sim","messages":[{"role":"user","content":"a"}],"cache_salt":"s"}"#.to_owned(),
        format!("{}{}", "[".repeat(300), "]".repeat(300)),
        format!(r#"{{"model":"sim","messages":[{{"role":"user","content":"{long}"}}]}}"#),
    ];
    let mut steps = Vec::new();
    for path in [
        CHAT,
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/generate",
        "/v1/embeddings",
    ] {
        steps.extend(bodies.iter().map(|body| Step::Ask(post(path, body.as_bytes()))));
    }
    let plain = r#"{"model":"sim","messages":[{"role":"user","content":"a"}]}"#;
    for (name, value) in [
        ("content-type", "text/plain"),
        ("content-encoding", "gzip"),
        ("expect", "200-maybe"),
        ("x-slo-ttft-ms", "soon"),
        ("x-slo-ttft-ms", "-1"),
        ("x-slo-class", "none-such"),
        ("x-tailroute-policy", "none-such"),
        ("x-request-timeout-ms", "0"),
        ("x-session-id", ""),
        ("traceparent", "00-zz"),
        ("x-data-parallel-rank", "1"),
    ] {
        steps.push(Step::Ask(post(CHAT, plain).with(name, value)));
    }
    story("malformed", "", steps)
}

pub(super) fn paths() -> Story {
    let paths = [
        "/",
        "/v1",
        "/v1/",
        "/v1/models",
        "/v1/models/sim",
        "/v1/models/none-such",
        "/v1//models",
        "/v1/../health",
        "/v1/%6dodels",
        "/health",
        "/metrics",
        "/version",
        "/ping",
        "/get_model_info",
        "/server_info",
        "/flush_cache",
        "/v1/tailroute",
        "/v1/tailroute/hints",
        "/v1/load_lora_adapter",
        "/sleep",
        "/v1/responses/resp_1",
        "/v1/responses/resp_99",
        "/v1/files",
        "/v1/batches",
        "/v1/unheard-of",
        CHAT,
        "/v1/chat",
        "/v1/chat/completions/",
    ];
    let mut steps = Vec::new();
    for method in ["GET", "POST", "OPTIONS", "DELETE"] {
        for path in paths {
            let ask = Ask {
                method,
                path: path.to_owned(),
                headers: Vec::new(),
                body: Vec::new(),
            };
            steps.push(Step::Ask(ask));
        }
    }
    story("paths", "", steps)
}

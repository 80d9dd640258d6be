//! The worker of each request, by endpoint.

use fleet::overrides::AdminState;
use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{at_rest, metrics, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::ask;
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::within;

/// Two workers that serve different models.
pub(crate) struct Stage {
    pub(crate) a: Upstream,
    pub(crate) b: Upstream,
    pub(crate) router: Server,
}

impl Stage {
    pub(crate) async fn set(tweak: impl FnOnce(&mut config::Config)) -> Self {
        let a = Upstream::saying(&[
            ("/v1/models", r#"{"data":[{"id":"a","object":"model","max_model_len":8192,"root":"/m/a","permission":[{}]},{"id":"both","max_model_len":4096}]}"#),
        ])
        .await;
        let b = Upstream::saying(&[
            ("/v1/models", r#"{"data":[{"id":"meta/b","owned_by":"vllm"},{"id":"both","max_model_len":1024,"owned_by":"sglang"}]}"#),
        ])
        .await;
        let router = route(&[a.address, b.address], |config| {
            tweak(config);
        })
        .await;
        Self { a, b, router }
    }

    /// Sends a request that must reach the worker with model `a`, and answers it.
    async fn ask_a(&mut self, method: &str, path: &str, body: String, answer: &str) -> client::Whole {
        let address = self.router.address;
        let (method, sent) = (method.to_owned(), path.to_owned());
        let asked = body.clone();
        let kind = [("content-type", "application/json")];
        let call = tokio::spawn(async move { client::call(address, &method, &sent, &kind, asked).await });
        let exchange = self.a.next().await;
        assert_eq!(exchange.head.split(' ').nth(1), Some(path));
        assert_eq!(exchange.body, body.as_bytes(), "{path}");
        exchange.answer("200 OK", answer).await;
        assert!(!self.b.has_more(), "{path}");
        within(call).await.unwrap()
    }
}

#[tokio::test]
async fn every_endpoint_that_names_a_model_reaches_a_worker_that_serves_it() {
    let mut stage = Stage::set(|_| {}).await;
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/score",
        "/v1/score",
        "/classify",
        "/pooling",
        "/v1/tokenize",
        "/detokenize",
        "/v1/audio/speech",
        "/v1/moderations",
        "/generate",
        "/v1/%65mbeddings",
    ] {
        for turn in 0..3 {
            let body = format!(r#"{{ "input" : "x{turn}", "model":"a" }}"#);
            let answer = stage
                .ask_a("POST", path, body, r#"{"usage":{"prompt_tokens":3}}"#)
                .await;
            assert_eq!(answer.status, 200, "{path}");
        }
    }
    at_rest(&stage.router).await;
    let page = metrics(&stage.router).await;
    let count = |endpoint| {
        page.sum(
            "tailroute_requests_total",
            &[("endpoint", endpoint), ("outcome", "ok")],
        )
    };
    assert_eq!(
        (count("embeddings"), count("rerank"), count("messages")),
        (6.0, 9.0, 3.0)
    );
    let tokens = page.sum("tailroute_prompt_tokens_total", &[("kind", "all")]);
    assert!(
        tokens <= 5.0 * 9.0,
        "only what generates is learned from: {tokens}"
    );
}

#[tokio::test]
async fn an_unknown_model_is_an_error_that_lists_the_models_in_the_apis_format() {
    let stage = Stage::set(|_| {}).await;
    for path in [CHAT, "/v1/embeddings", "/v1/responses", "/rerank"] {
        let answer = client::call(stage.router.address, "POST", path, &[], r#"{"model":"gpt-9"}"#).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (404, "model_not_found")
        );
        let message = answer.json()["error"]["message"].to_string();
        for name in ["gpt-9", "`a`", "`both`", "`meta/b`"] {
            assert!(message.contains(name), "{message}");
        }
    }
    for (body, status, kind) in [
        (r#"{"model":"gpt-9"}"#, 404, "not_found_error"),
        ("{", 400, "invalid_request_error"),
    ] {
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            let answer = client::call(stage.router.address, "POST", path, &[], body).await;
            let error = answer.json();
            assert_eq!(
                (answer.status.as_u16(), &error["type"]),
                (status, &json!("error")),
                "{path}"
            );
            assert_eq!(error["error"]["type"], kind);
            assert!(error["error"]["message"].is_string());
        }
    }
}

#[tokio::test]
async fn a_model_with_unready_workers_is_not_unknown() {
    let stage = Stage::set(tailroute_e2e::fleet::probe_often).await;
    stage.a.set_well(false);
    let workers = stage.router.parts().state.routing.fleet.workers();
    tailroute_e2e::wait::until("a is down", || !workers[0].is_ready()).await;
    let body = json!({ "model": "a", "messages": [] }).to_string();
    let answer = client::call(stage.router.address, "POST", CHAT, &[], body).await;
    assert_eq!(
        (answer.status.as_u16(), answer.error_code().as_str()),
        (503, "no_worker_ready")
    );
}

#[tokio::test]
async fn models_are_listed_with_all_fields_and_individually() {
    let stage = Stage::set(|_| {}).await;
    let get = |path| client::call(stage.router.address, "GET", path, &[], "");
    let both = json!({ "id": "both", "max_model_len": 1024, "owned_by": "sglang" });
    let a =
        json!({ "id": "a", "object": "model", "max_model_len": 8192, "root": "/m/a", "permission": [{}] });
    let listed = get("/v1/models").await.json();
    assert_eq!(
        listed["data"],
        json!([a, both, { "id": "meta/b", "owned_by": "vllm" }])
    );
    assert_eq!(get("/v1/models/both").await.json(), both);
    for path in ["/v1/models/meta/b", "/v1/models/meta%2Fb"] {
        assert_eq!(get(path).await.json()["id"], "meta/b");
    }
    let unknown = get("/v1/models/c").await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.error_code().as_str()),
        (404, "model_not_found")
    );
}

#[tokio::test]
async fn a_stored_response_is_continued_and_fetched_on_its_worker() {
    let mut stage = Stage::set(|_| {}).await;
    let (address, mut made) = (stage.router.address, Vec::new());
    for (id, stream) in [("resp_1", false), ("resp_2", true)] {
        let body = json!({ "model": "both", "input": "hi", "stream": stream, "session_id": id }).to_string();
        let call =
            tokio::spawn(async move { client::call(address, "POST", "/v1/responses", &[], body).await });
        let (exchange, is_a) = tokio::select! {
            exchange = stage.a.next() => (exchange, true),
            exchange = stage.b.next() => (exchange, false),
        };
        if stream {
            let mut exchange = exchange;
            exchange.begin_events().await;
            for event in ["created", "completed"] {
                let data = json!({ "type": format!("response.{event}"), "response": { "id": id } });
                exchange
                    .chunk(format!("event: response.{event}\ndata: {data}\n\n").as_bytes())
                    .await;
            }
            exchange.end().await;
        } else {
            exchange
                .answer("200 OK", &json!({ "id": id, "output": [] }).to_string())
                .await;
        }
        assert_eq!(within(call).await.unwrap().status, 200);
        made.push((id, is_a));
    }
    for round in 0..4 {
        // A cordoned worker still serves requests that only it can serve.
        let hold = if round == 3 {
            AdminState::Cordoned
        } else {
            AdminState::None
        };
        for worker in stage.router.parts().state.routing.fleet.workers().iter() {
            worker.set_admin_state(hold);
        }
        for (id, is_a) in &made {
            let next = json!({ "model": "both", "input": "more", "previous_response_id": id }).to_string();
            for (method, path, body) in [
                ("POST", "/v1/responses".to_owned(), next),
                ("GET", format!("/v1/responses/{id}"), String::new()),
                ("POST", format!("/v1/responses/{id}/cancel"), String::new()),
            ] {
                let call = tokio::spawn(async move { client::call(address, method, &path, &[], body).await });
                let exchange = if *is_a {
                    stage.a.next().await
                } else {
                    stage.b.next().await
                };
                if exchange.head.starts_with("POST /v1/responses ") {
                    assert_eq!(
                        exchange.header("x-session-id"),
                        Some(*id),
                        "it is a turn of the same conversation"
                    );
                }
                exchange.answer("200 OK", "{}").await;
                assert_eq!(within(call).await.unwrap().status, 200);
            }
        }
    }
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_broken_anthropic_stream_ends_with_an_anthropic_error() {
    let mut stage = Stage::set(|_| {}).await;
    let address = stage.router.address;
    let body = json!({ "model": "a", "stream": true, "messages": [{ "role": "user", "content": "hi" }] });
    let call =
        tokio::spawn(
            async move { client::open(address, "POST", "/v1/messages", &[], body.to_string()).await },
        );
    let mut exchange = stage.a.next().await;
    exchange.begin_events().await;
    let delta = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"so"}}"#;
    exchange
        .chunk(format!("event: content_block_delta\ndata: {delta}\n\n").as_bytes())
        .await;
    let mut answer = within(call).await.unwrap().unwrap();
    // A reset discards what was not read before.
    answer.chunk().await.unwrap().unwrap();
    exchange.reset();
    let answer = answer.whole().await;
    assert!(!answer.clean);
    let last = answer.text().trim_end().rsplit("\n\n").next().unwrap().to_owned();
    let error: Value = serde_json::from_str(last.strip_prefix("event: error\ndata: ").expect(&last)).unwrap();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("api_error"))
    );
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn anthropic_and_sglang_turns_are_counted_and_timed_like_any_other() {
    let mut stage = Stage::set(|_| {}).await;
    let answers = [
        (
            "/v1/messages",
            r#"{"type":"message","content":[{"type":"text","text":"so"}],"stop_reason":"end_turn","usage":{"input_tokens":5,"cache_read_input_tokens":8,"output_tokens":2}}"#,
        ),
        (
            "/generate",
            r#"{"text":"so","meta_info":{"prompt_tokens":13,"completion_tokens":2,"cached_tokens":8,"finish_reason":{"type":"stop"}}}"#,
        ),
        (
            "/v1/responses",
            r#"{"id":"r","output":[],"usage":{"input_tokens":13,"output_tokens":2,"input_tokens_details":{"cached_tokens":8}}}"#,
        ),
    ];
    for (path, answer) in answers {
        let body = json!({ "model": "a", "messages": [{ "role": "user", "content": "hi" }], "text": "hi", "input": "hi" });
        assert_eq!(
            stage.ask_a("POST", path, body.to_string(), answer).await.status,
            200
        );
    }
    at_rest(&stage.router).await;
    let page = metrics(&stage.router).await;
    assert_eq!(
        page.sum("tailroute_prompt_tokens_total", &[("kind", "all")]),
        39.0
    );
    assert_eq!(page.sum("tailroute_time_to_first_token_seconds_count", &[]), 3.0);
}

#[tokio::test]
async fn engine_control_endpoints_are_not_reachable() {
    let mut stage = Stage::set(|config| config.http.extra_paths = vec!["/engine/info".to_owned()]).await;
    for path in [
        "/reset_prefix_cache",
        "/flush_cache",
        "/sleep",
        "/metrics",
        "/server_info",
        "/v1/tailroute/hints",
        "/v1/%74ailroute/hints",
        "/v1/load_lora_adapter",
        "/v1/../flush_cache",
        "/admin/v1/slo",
        "/readyz",
        "/livez",
        "/",
    ] {
        let answer = client::call(stage.router.address, "POST", path, &[], "{}").await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (404, "not_found"),
            "{path}"
        );
    }
    assert!(!stage.a.has_more() && !stage.b.has_more());
    let address = stage.router.address;
    let call = tokio::spawn(async move { client::call(address, "GET", "/engine/info", &[], "").await });
    let exchange =
        tokio::select! { exchange = stage.a.next() => exchange, exchange = stage.b.next() => exchange };
    exchange.answer("200 OK", "{}").await;
    assert_eq!(within(call).await.unwrap().status, 200);
}

#[tokio::test]
async fn options_and_other_server_methods_are_answered() {
    let mut stage = Stage::set(|_| {}).await;
    let address = stage.router.address;
    let mut wire = Wire::connect(address).await;
    wire.write(&request("OPTIONS *", &[], "")).await;
    // A response without body and length.
    wire.read_past(b"HTTP/1.1 204 No Content\r\n").await;
    for method in ["TRACE", "CONNECT"] {
        let mut wire = Wire::connect(address).await;
        let target = if method == "CONNECT" {
            "example.test:443"
        } else {
            CHAT
        };
        wire.write(&request(&format!("{method} {target}"), &[], "")).await;
        assert_eq!(wire.answer().await.expect(method).status, 405, "{method}");
    }
    let origin = [("origin", "https://parts.test")];
    let call = tokio::spawn(async move { client::call(address, "OPTIONS", CHAT, &origin, "").await });
    let mut exchange =
        tokio::select! { exchange = stage.a.next() => exchange, exchange = stage.b.next() => exchange };
    assert_eq!(exchange.header("origin"), Some("https://parts.test"));
    exchange
        .send(b"HTTP/1.1 204 No Content\r\naccess-control-allow-origin: *\r\nconnection: close\r\n\r\n")
        .await;
    let answer = within(call).await.unwrap();
    assert_eq!(
        (
            answer.status.as_u16(),
            answer.header("access-control-allow-origin")
        ),
        (204, Some("*"))
    );
}

/// No stream is buffered: each event has to be read before the next one is sent. Another proxy buffered the stream
/// and sent it in one piece: <https://github.com/BerriAI/litellm/issues/26102>.
#[tokio::test]
async fn no_stream_of_any_api_is_buffered() {
    let mut stage = Stage::set(|_| {}).await;
    for path in [
        CHAT,
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/generate",
        "/v1/audio/speech",
    ] {
        let body =
            json!({ "model": "a", "stream": true, "messages": [], "prompt": "x", "input": "x", "text": "x" });
        let address = stage.router.address;
        let call =
            tokio::spawn(async move { client::open(address, "POST", path, &[], body.to_string()).await });
        let mut exchange = stage.a.next().await;
        exchange.begin_events().await;
        let mut answer = within(call).await.unwrap().unwrap();
        for event in 0..5 {
            let event = format!("data: {{\"n\":{event}}}\n\n");
            exchange.chunk(event.as_bytes()).await;
            assert_eq!(answer.bytes(event.len()).await, event.as_bytes(), "{path}");
        }
        exchange.chunk(b"data: [DONE]\n\n").await;
        exchange.end().await;
        assert!(answer.whole().await.clean);
    }
    at_rest(&stage.router).await;
}

/// Nothing is tokenised in the router: while large prompts come in, its probes are answered. Elsewhere, tokenising
/// blocked the event loop and probes timed out: <https://github.com/vllm-project/production-stack/issues/1016>.
#[tokio::test]
async fn large_prompts_do_not_starve_probes() {
    let mut stage = Stage::set(|_| {}).await;
    let (address, admin) = (stage.router.address, stage.router.admin_address);
    let megabytes = ask(&"lorem ipsum ".repeat(400_000), json!({ "model": "a" })).to_string();
    let asks: Vec<_> = (0..4)
        .map(|_| {
            let body = megabytes.clone();
            tokio::spawn(async move { client::call(address, "POST", CHAT, &[], body).await })
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(client::call(admin, "GET", "/livez", &[], "").await.status, 200);
        assert_eq!(client::call(admin, "GET", "/readyz", &[], "").await.status, 200);
    }
    for _ in &asks {
        stage.a.next().await.answer("200 OK", "{}").await;
    }
    for ask in asks {
        assert_eq!(within(ask).await.unwrap().status, 200);
    }
    at_rest(&stage.router).await;
}

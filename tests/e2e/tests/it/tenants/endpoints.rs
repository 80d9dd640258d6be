//! Endpoints, fields and headers by which one tenant could reach another's state.

use config::Priority;
use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, Fields, Whole};
use tailroute_e2e::fleet::route;
use tailroute_e2e::raw::{Wire, exchange, request};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};

use super::{is_salt, two_tenants};
use crate::admission::bearer;

type Seen = (Option<String>, Value);

/// A router with keys and a scripted worker.
struct Stage {
    upstream: Upstream,
    router: Server,
}

impl Stage {
    async fn set(tweak: impl FnOnce(&mut config::Config)) -> Self {
        let upstream = Upstream::start().await;
        let router = route(&[upstream.address], |config| {
            two_tenants(config);
            tweak(config);
        })
        .await;
        Self { upstream, router }
    }

    /// Sends a request that must not reach a worker.
    async fn refused(&mut self, who: &str, method: &str, path: &str, body: &str) -> Whole {
        let secret = bearer(who);
        let headers = [("authorization", &*secret), ("content-type", "application/json")];
        let answer = client::call(self.router.address, method, path, &headers, body.to_owned()).await;
        assert!(
            answer.status.is_client_error(),
            "{method} {path}: {}",
            answer.status
        );
        assert!(!self.upstream.has_more(), "{method} {path} reached a worker");
        answer
    }

    /// Sends a request that the worker answers with this. Returns the `x-session-id` and the body that it received.
    async fn pass(
        &mut self,
        who: &str,
        (path, more): (&str, Fields<'_>),
        body: &Value,
        answer: &str,
    ) -> Seen {
        let (address, secret) = (self.router.address, bearer(who));
        let headers = [&[("authorization", &*secret)][..], more].concat();
        let call = client::call(address, "POST", path, &headers, body.to_string());
        let work = async {
            let exchange = self.upstream.next().await;
            let session = exchange.header("x-session-id").map(str::to_owned);
            let body = serde_json::from_slice(&exchange.body).unwrap();
            exchange.answer("200 OK", answer).await;
            (session, body)
        };
        let (answered, seen) = tokio::join!(call, work);
        assert_eq!(answered.status, 200, "{path}");
        seen
    }
}

#[tokio::test]
async fn unknown_paths_are_not_forwarded_with_keys() {
    let mut stage = Stage::set(|_| {}).await;
    let body = r#"{"model":"sim","cache_salt":"mine","messages":[]}"#;
    for path in [
        "/v1/anything/",
        "/v1/batches/",
        "/v1/batches",
        "/v1/files",
        "/v1/anything/new",
        "/v1/realtime",
    ] {
        let answer = stage.refused("a", "POST", path, body).await;
        assert_eq!(answer.status, 404, "{path}");
    }
    for path in ["/v1/files", "/v1/files/file-1/content", "/v1/batches/b"] {
        assert_eq!(stage.refused("a", "GET", path, "").await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn every_endpoint_with_a_cache_is_salted_and_session_ids_are_hashed() {
    let mut stage = Stage::set(|_| {}).await;
    for path in [
        "/v1/embeddings",
        "/rerank",
        "/v1/score",
        "/classify",
        "/pooling",
        "/v1/responses",
        "/generate",
        "/v1/completions",
        "/v1/tokenize",
    ] {
        let body = json!({
            "model": "sim", "input": "x", "cache_salt": "mine", "session_id": "named", "prompt_cache_key": ["named"],
        });
        let headers: Fields<'_> = &[("x-session-id", "named")];
        let mut seen = Vec::new();
        for who in ["a", "a2", "b"] {
            let (session, body) = stage.pass(who, (path, headers), &body, "{}").await;
            assert!(is_salt(&body["cache_salt"]), "{path}: {body}");
            assert_eq!(session.as_deref(), body["session_id"].as_str(), "{path}");
            assert!(!body.to_string().contains("named"), "{path}: {body}");
            assert_eq!((&body["model"], &body["input"]), (&json!("sim"), &json!("x")));
            seen.push((session, body));
        }
        assert_eq!(seen[0], seen[1], "{path}: keys of one tenant");
        for member in ["cache_salt", "session_id", "prompt_cache_key"] {
            assert_ne!(seen[0].1[member], seen[2].1[member], "{path}: {member}");
        }
    }
    let (_, body) = stage
        .pass("a", ("/v1/embeddings", &[]), &json!({ "input": "x" }), "{}")
        .await;
    assert!(is_salt(&body["cache_salt"]), "{body}");
    let (_, body) = stage
        .pass("a", ("/v1/tokenize", &[]), &json!({ "prompt": "x" }), "{}")
        .await;
    assert_eq!(body, json!({ "prompt": "x" }), "nothing is cached of it");
}

#[tokio::test]
async fn endpoints_without_salts_are_rejected_unless_allowed() {
    let mut stage = Stage::set(|_| {}).await;
    let ask = json!({ "model": "sim", "max_tokens": 1, "messages": [{ "role": "user", "content": "hi" }] });
    let answer = stage.refused("a", "POST", "/v1/messages", &ask.to_string()).await;
    assert_eq!(answer.status, 403);
    let error = answer.json();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("permission_error"))
    );
    assert_eq!(
        error["error"]["message"],
        "This endpoint cannot isolate tenants' caches. Use /v1/chat/completions, or ask your operator to set \
         admission.unsalted_messages."
    );
    for path in ["/v1/audio/transcriptions", "/v1/images/edits"] {
        let answer = stage.refused("a", "POST", path, "x").await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (403, "not_isolated")
        );
    }
    for (path, status) in [
        ("/v1/realtime?model=sim", 403),
        ("/v1/responses", 404),
        ("/v1/x", 404),
    ] {
        let secret = format!("authorization: {}", bearer("a"));
        let fields = upgrade_fields(&secret);
        let answer = exchange(
            stage.router.address,
            &request(&format!("GET {path}"), &fields, ""),
        )
        .await;
        assert_eq!(answer.status, status, "{path}");
        assert!(!stage.upstream.has_more(), "{path}");
    }
    let mut stage = Stage::set(|config| config.admission.unsalted_messages = true).await;
    stage.pass("a", ("/v1/messages", &[]), &ask, "{}").await;
}

#[tokio::test]
async fn forms_are_forwarded_unchanged_where_allowed_unsalted() {
    let mut stage = Stage::set(|config| config.admission.unsalted_forms = true).await;
    let form = "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nsim\r\n--x--\r\n";
    let (address, secret) = (stage.router.address, bearer("a"));
    let headers = [
        ("authorization", &*secret),
        ("content-type", "multipart/form-data; boundary=x"),
        ("x-session-id", "named"),
    ];
    let call = client::call(
        address,
        "POST",
        "/v1/audio/transcriptions",
        &headers,
        form.to_owned(),
    );
    let work = async {
        let exchange = stage.upstream.next().await;
        assert_eq!(exchange.body, form.as_bytes());
        assert_eq!(exchange.header("authorization"), None);
        assert_ne!(exchange.header("x-session-id"), Some("named"));
        exchange.answer("200 OK", r#"{"text":"hi"}"#).await;
    };
    let (answer, ()) = within(async { tokio::join!(call, work) }).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, r#"{"text":"hi"}"#));
    let refused = stage.refused("a", "POST", "/v1/messages", "{}").await;
    assert_eq!(refused.status, 403, "each switch opens its own");
}

#[tokio::test]
async fn a_websocket_is_opened_where_allowed_unsalted_and_counts_as_one_request() {
    let mut stage = Stage::set(|config| {
        config.admission.unsalted_websockets = true;
        config.keys[0].requests = Some(config::Rate {
            per_s: 1e-6,
            burst: 1.0,
        });
    })
    .await;
    let secret = format!("authorization: {}", bearer("a"));
    let fields = upgrade_fields(&secret);
    let asked = request("GET /v1/realtime?model=sim", &fields, "");
    let mut wire = Wire::connect(stage.router.address).await;
    wire.write(&asked).await;
    let mut worker = stage.upstream.next().await;
    assert_eq!(worker.header("authorization"), None);
    worker
        .send(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n\x81\x02hi")
        .await;
    wire.read_past(b"\x81\x02hi").await;
    let second = exchange(stage.router.address, &asked).await;
    assert_eq!(second.status, 429);
    assert!(!stage.upstream.has_more());
}

#[tokio::test]
async fn client_priorities_and_request_ids_are_replaced_with_keys() {
    for (priority, set) in [(Priority::Off, false), (Priority::LowestFirst, true)] {
        let mut stage = Stage::set(|config| config.workers[0].priority = priority).await;
        let body = json!({
            "priority": -1_000_000, "model": "sim", "rid": ["theirs"], "messages": [{ "role": "user", "content": "hi" }],
        });
        let (address, secret) = (stage.router.address, bearer("a"));
        let headers = [
            ("authorization", &*secret),
            ("x-vllm-priority", "-1000000"),
            ("x-override-priority", "-1000000"),
            ("x-override-rid", "theirs"),
        ];
        let text = body.to_string().replace("\"rid\"", "\"r\\u0069d\"");
        for path in [CHAT, "/v1/embeddings", "/generate"] {
            let call = client::call(address, "POST", path, &headers, text.clone());
            let work = async {
                let exchange = stage.upstream.next().await;
                let head = exchange.head.to_lowercase();
                assert!(
                    !head.contains("priority") && !head.contains("x-override"),
                    "{head}"
                );
                let seen: Value = serde_json::from_slice(&exchange.body).unwrap();
                exchange.answer("200 OK", "{}").await;
                seen
            };
            let (answer, seen) = within(async { tokio::join!(call, work) }).await;
            assert_eq!(answer.status, 200);
            assert_eq!(seen.get("rid"), None, "{path}: {seen}");
            assert_eq!(seen["messages"], body["messages"]);
            // The turn's deadline, in milliseconds since 1970.
            let due = seen
                .get("priority")
                .map(|due| due.as_i64().unwrap() > 1_000_000_000_000);
            assert_eq!(due, (set && path == CHAT).then_some(true), "{path}: {seen}");
        }
    }
}

#[tokio::test]
async fn references_to_other_requests_state_are_rejected() {
    // References to other requests' state are rejected even where transfer fields are allowed.
    let mut stage = Stage::set(|config| config.http.transfer_fields = true).await;
    let prompt = json!([{ "role": "user", "content": "hi" }]);
    for (member, value) in [
        ("session_params", json!({ "id": "theirs" })),
        (
            "kv_transfer_params",
            json!({ "do_remote_prefill": true, "remote_block_ids": [1] }),
        ),
        ("ec_transfer_params", json!({ "peer": 1 })),
        ("bootstrap_host", json!("10.0.0.1")),
        ("bootstrap_room", json!([7])),
        ("kv_router_hint", json!({ "source_control_endpoint": "x" })),
        ("http_worker_ipc", json!("ipc:///tmp/x")),
    ] {
        let mut body = json!({ "model": "sim", "messages": prompt, "text": "hi" });
        body[member] = value;
        for path in [CHAT, "/generate"] {
            let answer = stage.refused("a", "POST", path, &body.to_string()).await;
            assert_eq!(
                (answer.status.as_u16(), answer.error_code().as_str()),
                (403, "not_isolated")
            );
            assert!(answer.text().contains(member), "{}", answer.text());
        }
        body["vllm_xargs"] = json!({ "other": 1, member: body[member] });
        body[member] = json!(null);
        let answer = stage.refused("a", "POST", CHAT, &body.to_string()).await;
        assert!(answer.text().contains(member), "{}", answer.text());
        body["vllm_xargs"] = json!({ "other": 1, member: null });
        stage.pass("a", (CHAT, &[]), &body, "{}").await;
    }
}

#[tokio::test]
async fn inputs_that_sglang_caches_without_a_salt_are_rejected_unless_allowed() {
    const SHARED: &str = r#"{"is_embedding":true,"disable_radix_cache":false}"#;
    const DIVIDED: &str = r#"{"is_embedding":true,"disable_radix_cache":true}"#;
    for (info, allowed, status) in [(SHARED, false, 403), (SHARED, true, 200), (DIVIDED, false, 200)] {
        let upstream = Upstream::saying(&[("/server_info", info)]).await;
        let router = route(&[upstream.address], |config| {
            two_tenants(config);
            config.admission.unsalted_embeddings = allowed;
        })
        .await;
        let mut stage = Stage { upstream, router };
        let worker = std::sync::Arc::clone(&stage.router.parts().state.routing.fleet.workers()[0]);
        until("it is introduced", || worker.models().is_some()).await;
        let body = json!({ "model": "sim", "input": "x" });
        if status == 200 {
            stage.pass("a", ("/v1/embeddings", &[]), &body, "{}").await;
            continue;
        }
        let answer = stage
            .refused("a", "POST", "/v1/embeddings", &body.to_string())
            .await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (403, "not_isolated")
        );
        assert!(
            answer.text().contains("--disable-radix-cache"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn a_response_is_its_tenants_alone() {
    let mut stage = Stage::set(|_| {}).await;
    let ask = json!({ "model": "sim", "input": "hi", "request_id": "resp_mine" });
    let (_, sent) = stage
        .pass(
            "a",
            ("/v1/responses", &[]),
            &ask,
            r#"{"id":"resp_1","output":[]}"#,
        )
        .await;
    let named = sent["request_id"].as_str().unwrap();
    assert!(named.starts_with("resp_") && named != "resp_mine", "{named}");
    tailroute_e2e::fleet::at_rest(&stage.router).await;
    let next = json!({ "model": "sim", "input": "more", "previous_response_id": "resp_1" });
    for (method, path, body) in [
        ("GET", "/v1/responses/resp_1", String::new()),
        ("DELETE", "/v1/responses/resp_1", String::new()),
        ("POST", "/v1/responses/resp_1/cancel", String::new()),
        ("POST", "/v1/responses", next.to_string()),
    ] {
        let answer = stage.refused("b", method, path, &body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (404, "response_not_found"),
            "{method} {path}"
        );
    }
    let unknown = json!({ "model": "sim", "input": "more", "previous_response_id": "resp_2" });
    stage
        .refused("a", "POST", "/v1/responses", &unknown.to_string())
        .await;
    stage.pass("a2", ("/v1/responses", &[]), &next, "{}").await;
    let secret = bearer("a");
    let headers = [("authorization", &*secret)];
    let get = client::call(stage.router.address, "GET", "/v1/responses/resp_1", &headers, "");
    let work = async { stage.upstream.next().await.answer("200 OK", "{}").await };
    let (answer, ()) = within(async { tokio::join!(get, work) }).await;
    assert_eq!(answer.status, 200);
}

/// Returns the fields of a request that opens a WebSocket.
fn upgrade_fields(secret: &str) -> [&str; 5] {
    [
        secret,
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
}

#[tokio::test]
async fn a_single_tenant_is_refused_nothing_for_lack_of_isolation() {
    let mut stage = Stage::set(|config| config.keys.retain(|key| key.tenant == "a")).await;
    let ask = json!({ "model": "sim", "max_tokens": 1, "messages": [{ "role": "user", "content": "hi" }] });
    stage.pass("a", ("/v1/messages", &[]), &ask, "{}").await;
    stage.pass("a2", ("/v1/messages", &[]), &ask, "{}").await;
    stage.pass("a", ("/v1/batches", &[]), &ask, "{}").await;
    let previous = json!({ "model": "sim", "input": "x", "previous_response_id": "resp_of_another_replica" });
    stage.pass("a", ("/v1/responses", &[]), &previous, "{}").await;
    let session = json!({ "model": "sim", "messages": [], "session_params": { "id": "own" } });
    let (_, body) = stage.pass("a", (CHAT, &[]), &session, "{}").await;
    assert!(
        is_salt(&body["cache_salt"]),
        "caches stay apart once there is another tenant: {body}"
    );
}

//! Requests with fields that steer an engine: key-value cache transfers, ranks. None of them reaches a worker unless
//! allowed, in any place and spelling.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, Fields, Whole};
use tailroute_e2e::fleet::{Fleet, quick, route};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::within;
use tokio_tungstenite::tungstenite::Message;

const JSON: Fields<'static> = &[("content-type", "application/json")];
const FORM: Fields<'static> = &[("content-type", "multipart/form-data; boundary=xyz")];

const FIELDS: [&str; 12] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
    "data_parallel_rank",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "backend_instance_id",
    "prefill_worker_id",
    "kv_hints",
];

const ENDPOINTS: [&str; 9] = [
    CHAT,
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/generate",
    "/v1/embeddings",
    "/rerank",
    "/tokenize",
    "/v1/messages/count_tokens",
];

fn assert_refusal(answer: &Whole, field: &str, what: &str) {
    assert_eq!(answer.status, 400, "{what}");
    let error = answer.json();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("`{field}`")), "{what}: {error}");
}

async fn refused(router: &Server, path: &str, fields: Fields<'_>, body: &str, field: &str) {
    let answer = client::call(router.address, "POST", path, fields, body.to_owned()).await;
    assert_refusal(&answer, field, &format!("{path} {body}"));
}

fn turn(more: &str) -> String {
    format!(
        r#"{{"model":"sim","messages":[{{"role":"user","content":"hi"}}],"prompt":"hi","input":"hi","text":"hi"{more}}}"#
    )
}

#[tokio::test]
async fn a_steering_field_is_a_400_that_names_it_at_every_endpoint() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    for path in ENDPOINTS {
        for field in FIELDS {
            let body = turn(&format!(r#","{field}":{{"do_remote_prefill":true}}"#));
            refused(&router, path, JSON, &body, field).await;
        }
    }
    assert!(!worker.has_more());
    let answer = client::call(router.address, "POST", CHAT, JSON, turn(r#","bootstrap_room":7"#)).await;
    assert_eq!(
        (&*answer.error_code(), &answer.json()["error"]["param"]),
        ("field_not_allowed", &json!("bootstrap_room"))
    );
}

#[tokio::test]
async fn a_steering_field_is_found_at_any_depth_and_in_any_spelling() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    for path in [
        CHAT,
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/generate",
    ] {
        for spelled in [
            r#""kv\u005ftransfer_params":{"do_remote_prefill":true}"#,
            r#""\u006b\u0076\u005F\u0074ransfer_params" : 1"#,
            r#""kv_transfer_params":{},"kv_transfer_params":null"#,
            r#""kv_transfer_params":null,"kv_transfer_params":[]"#,
            r#""vllm_xargs":{"kv_transfer_params":"{}"}"#,
            r#""extra_body":{"a":[{"vllm_xargs":{"kv\u005ftransfer_params":{}}}]}"#,
            r#""nvext":{"kv_transfer_params":{}}"#,
            r#""sampling_params":[{"extra_args":{"kv_transfer_params":{}}}]"#,
        ] {
            refused(
                &router,
                path,
                JSON,
                &turn(&format!(",{spelled}")),
                "kv_transfer_params",
            )
            .await;
        }
        let several = format!("[{},{}]", turn(""), turn(r#","bootstrap_host":"10.0.0.1""#));
        refused(&router, path, JSON, &several, "bootstrap_host").await;
    }
    assert!(!worker.has_more());
}

#[tokio::test]
async fn text_that_mentions_a_steering_field_passes() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    for more in [
        r#","kv_transfer_params":null,"vllm_xargs":{"bootstrap_host":null}"#,
        r#","user":"kv_transfer_params","metadata":{"kv_transfer_params":"x"}"#,
        r#","tools":[{"type":"function","function":{"name":"bootstrap_host","parameters":{"properties":{"bootstrap_host":{}}}}}]"#,
    ] {
        let body = turn(more).replace(
            "\"prompt\":\"hi\",\"input\":\"hi\",\"text\":\"hi\"",
            "\"max_tokens\":1",
        );
        let answer = client::call(fleet.router.address, "POST", CHAT, JSON, body).await;
        assert_eq!(answer.status, 200, "{more}: {}", answer.text());
    }
}

#[tokio::test]
async fn bodies_that_are_not_parsed_are_inspected_as_they_pass() {
    let worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    let batch = json!({ "messages": [[{ "role": "user", "content": "hi" }]], "kv_transfer_params": {} });
    for path in [
        "/v1/chat/completions/batch",
        "/v1/batches",
        "/v1/responses/resp_1/cancel",
    ] {
        refused(&router, path, JSON, &batch.to_string(), "kv_transfer_params").await;
        refused(&router, path, &[], &batch.to_string(), "kv_transfer_params").await;
    }
    let part = |name: &str, value: &str| {
        format!("--xyz\r\ncontent-disposition: form-data; name={name}\r\n\r\n{value}\r\n")
    };
    let lines = format!("{}\n{}\n", json!({ "custom_id": "\"" }), json!({ "body": batch }));
    for form in [
        part("\"kv_transfer_params\"", "{}"),
        part("kv_transfer_params", "{}"),
        part("model", "sim") + &part("vllm_xargs", r#"{"kv_transfer_params":{}}"#),
        part("model", "sim") + &part("\"file\"; filename=\"b.jsonl\"", &lines),
        part("file", &"x".repeat(200_000)) + &part("\"kv_transfer_params\"", "{}"),
    ] {
        for path in ["/v1/files", "/v1/audio/transcriptions"] {
            refused(
                &router,
                path,
                FORM,
                &(form.clone() + "--xyz--\r\n"),
                "kv_transfer_params",
            )
            .await;
        }
    }
    let encoded = part("*=utf-8''kv%5Ftransfer_params", "{}").replace("name=*", "name*");
    let answer = client::call(router.address, "POST", "/v1/files", FORM, encoded + "--xyz--\r\n").await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.error_code()),
        (400, "malformed_form")
    );
    let wide: Vec<u8> = batch
        .to_string()
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let answer = client::call(router.address, "POST", "/v1/batches", JSON, wide).await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.error_code()),
        (400, "malformed_json")
    );
}

#[tokio::test]
async fn a_steering_header_is_a_400_that_names_it() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    for (name, value) in [
        ("x-data-parallel-rank", "1"),
        ("x-override-routed-dp-rank", "1"),
        ("x-override-bootstrap-host", "10.0.0.1"),
        ("x-prefiller-host-port", "10.0.0.1:80"),
        ("x-kv-cache-source-host-port", "10.0.0.1:80"),
    ] {
        for path in [CHAT, "/v1/something"] {
            let answer = client::call(router.address, "POST", path, &[(name, value)], turn("")).await;
            assert_eq!(answer.status, 400, "{name} {path}");
            assert!(
                answer
                    .text()
                    .contains(name.trim_start_matches("x-override-").split('-').next().unwrap())
            );
        }
    }
    assert!(!worker.has_more());
}

#[tokio::test]
async fn a_websocket_is_closed_before_a_steering_message_reaches_the_worker() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |_| {}).await;
    let address = router.address;
    let client = tokio::spawn(async move {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let asked = tokio_tungstenite::client_async("ws://router.test/v1/realtime?model=sim", stream);
        asked.await.unwrap().0
    });
    let mut exchange = worker.next().await;
    let key = exchange.header("sec-websocket-key").unwrap();
    let key = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
    assert_eq!(
        exchange.header("sec-websocket-extensions"),
        None,
        "what is compressed cannot be seen"
    );
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: {key}\r\n\r\n"
    );
    exchange.send(head.as_bytes()).await;
    let mut client = within(client).await.unwrap();
    let said = json!({ "type": "response.create", "bootstrap_host": "10.0.0.1" });
    client.send(Message::text(said.to_string())).await.unwrap();
    assert!(within(client.next()).await.is_none_or(|message| message.is_err()));
    let mut heard = Vec::new();
    let mut stream = exchange.into_stream();
    let _ = within(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut heard)).await;
    assert!(heard.is_empty(), "{heard:?}");
}

#[tokio::test]
async fn with_transfer_fields_allowed_everything_passes_unchanged() {
    let mut worker = Upstream::start().await;
    let router = route(&[worker.address], |config| config.http.transfer_fields = true).await;
    let body = turn(r#","kv_transfer_params":{"do_remote_prefill":true},"vllm_xargs":{"bootstrap_room":1}"#);
    let fields = [
        "content-type: application/json",
        "x-data-parallel-rank: 3",
        &format!("content-length: {}", body.len()),
    ];
    for path in [CHAT, "/v1/batches"] {
        let mut wire = Wire::connect(router.address).await;
        wire.write(&request(&format!("POST {path}"), &fields, &body))
            .await;
        let exchange = worker.next().await;
        assert_eq!(exchange.header("x-data-parallel-rank"), Some("3"));
        let (came, sent): (Value, Value) = (
            serde_json::from_slice(&exchange.body).unwrap(),
            serde_json::from_str(&body).unwrap(),
        );
        assert_eq!(came, sent);
        exchange.answer("200 OK", "{}").await;
        assert_eq!(wire.answer().await.unwrap().status, 200);
    }
}

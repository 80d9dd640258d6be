//! Requests that are relayed unparsed, where workers serve different models: none goes to a worker of another model.

use tailroute_e2e::client;
use tailroute_e2e::fleet::{at_rest, route};
use tailroute_e2e::raw::{Wire, exchange, request};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::within;

use crate::api::Stage;

const FORM: &str = "multipart/form-data; boundary=xyz";
const JSON: &str = "application/json";
/// Longer than what is read of a form where models do not differ.
const LONG: usize = 200_000;

fn part(name: &str, value: &str) -> String {
    format!("--xyz\r\ncontent-disposition: form-data; name=\"{name}\"; filename=\"f\"\r\n\r\n{value}\r\n")
}

fn form(parts: &[String]) -> String {
    parts.concat() + "--xyz--\r\n"
}

/// Bodies that name the model in each form that engines read, with their content types.
fn bodies(model: &str) -> Vec<(&'static str, String)> {
    let file = part("file", &"f".repeat(LONG));
    let model_part = part("model", model);
    let filler = "x".repeat(LONG);
    vec![
        (FORM, form(&[file.clone(), model_part.clone()])),
        (FORM, form(&[model_part, file])),
        (JSON, format!(r#"{{"input":"{filler}","model":"{model}"}}"#)),
        (JSON, format!("\u{feff}{{\"model\":\"{model}\"}}")),
        (
            JSON,
            format!(r#"{{"model":"none","x":{{"model":"a"}},"mod\u0065l":"{model}"}}"#),
        ),
        ("", format!(r#"{{"model":"{model}"}}"#)),
        (
            "application/x-www-form-urlencoded",
            format!("input=x&model={}", model.replace('/', "%2F")),
        ),
        (
            "application/x-www-form-urlencoded",
            format!(r#"{{"model":"{model}"}}"#),
        ),
    ]
}

async fn stage() -> Stage {
    Stage::set(|config| config.http.extra_paths = vec!["/v2/embed".to_owned()]).await
}

fn call(
    stage: &Stage,
    path: &str,
    kind: &'static str,
    body: &str,
) -> impl Future<Output = client::Whole> + use<> {
    let (address, path, body) = (stage.router.address, path.to_owned(), body.to_owned());
    let kind = (!kind.is_empty()).then_some(("content-type", kind));
    async move { client::call(address, "POST", &path, kind.as_slice(), body).await }
}

#[tokio::test]
async fn every_body_that_names_a_model_reaches_a_worker_that_serves_it() {
    let mut stage = stage().await;
    for path in [
        "/v1/audio/transcriptions",
        "/v1/images/edits",
        "/v1/files",
        "/v1/chat/completions/render",
        "/v1/batches",
        "/v1/videos",
        "/v1/responses/compact",
        "/v2/embed",
        "/v2/embed/x/",
    ] {
        for (kind, body) in bodies("meta/b") {
            let answering = tokio::spawn(call(&stage, path, kind, &body));
            let exchange = stage.b.next().await;
            assert!(exchange.body == body.as_bytes(), "{path} {kind}: as it was sent");
            exchange.answer("200 OK", "{}").await;
            assert_eq!(within(answering).await.unwrap().status, 200, "{path} {kind}");
        }
        let unknown = call(&stage, path, JSON, r#"{"model":"c"}"#).await;
        assert_eq!(unknown.error_code(), "model_not_found", "{path}");
        assert!(!stage.a.has_more(), "{path}");
    }
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_body_in_chunks_is_read_until_it_names_its_model() {
    let mut stage = stage().await;
    for (kind, body) in bodies("meta/b") {
        let kind = format!("content-type: {kind}");
        let head = request("POST /v1/videos", &[&kind, "transfer-encoding: chunked"], "");
        let mut wire = Wire::connect(stage.router.address).await;
        wire.write(&head).await;
        for piece in body.as_bytes().chunks(50_000) {
            wire.write(format!("{:x}\r\n", piece.len()).as_bytes()).await;
            wire.write(piece).await;
            wire.write(b"\r\n").await;
        }
        wire.write(b"0\r\n\r\n").await;
        let mut exchange = stage.b.next().await;
        while !exchange.body.ends_with(b"\r\n0\r\n\r\n") {
            exchange.read_to(exchange.body.len() + 1).await;
        }
        exchange.answer("200 OK", "{}").await;
        assert_eq!(wire.answer().await.unwrap().status, 200, "{kind}");
    }
    assert!(!stage.a.has_more());
}

#[tokio::test]
async fn a_request_whose_model_cannot_be_read_is_refused_unless_its_query_names_it() {
    let mut stage = stage().await;
    for (kind, body) in [
        ("application/octet-stream", "\u{1}\u{2}binary"),
        ("application/jsonl", "[1]\n{\"model\":\"a\"}\n"),
        (JSON, r#"[{"model":"a"}]"#),
        (JSON, r#"{"model":"a""#),
        ("text/plain", "model=a"),
    ] {
        let refused = call(&stage, "/v1/videos", kind, body).await;
        assert_eq!(
            (refused.status.as_u16(), refused.error_code().as_str()),
            (400, "model_not_read"),
            "{kind}"
        );
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains("?model=NAME"), "{message}");
        let answering = tokio::spawn(call(&stage, "/v1/videos?x=1&model=meta%2Fb", kind, body));
        stage.b.next().await.answer("200 OK", "{}").await;
        assert_eq!(within(answering).await.unwrap().status, 200, "{kind}");
    }
    assert!(!stage.a.has_more() && !stage.b.has_more());
}

#[tokio::test]
async fn a_websocket_that_names_no_model_is_refused() {
    let mut stage = stage().await;
    let fields = [
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    for path in ["/v1/realtime", "/v1/realtime?model=", "/v1/responses"] {
        let refused = exchange(
            stage.router.address,
            &request(&format!("GET {path}"), &fields, ""),
        )
        .await;
        assert_eq!(
            (refused.status, refused.error_code().as_str()),
            (400, "model_not_read"),
            "{path}"
        );
    }
    for path in [
        "/v1/realtime?mod%65l=meta%2Fb",
        "/v1/realtime/?model=a&model=meta/b",
    ] {
        let mut wire = Wire::connect(stage.router.address).await;
        wire.write(&request(&format!("GET {path}"), &fields, "")).await;
        let mut exchange = stage.b.next().await;
        assert!(
            exchange.head.starts_with("GET /v1/realtime?"),
            "{}",
            exchange.head
        );
        exchange
            .send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            .await;
        assert_eq!(wire.answer().await.unwrap().status, 404);
    }
    assert!(!stage.a.has_more());
}

#[tokio::test]
async fn requests_that_name_no_model_go_to_any_worker() {
    let mut stage = stage().await;
    let bodies = [
        ("GET", "/v1/files", "", String::new()),
        ("DELETE", "/v1/batches/batch_1", "", String::new()),
        ("POST", "/v1/batches", JSON, r#"{"input_file_id":"f"}"#.to_owned()),
        (
            "POST",
            "/v1/files",
            FORM,
            form(&[part("purpose", "batch"), part("file", &"f".repeat(LONG))]),
        ),
        ("POST", "/v1/batches/batch_1/cancel", "", String::new()),
    ];
    for (method, path, kind, body) in bodies {
        let address = stage.router.address;
        let asked = body.clone();
        let answering = tokio::spawn(async move {
            client::call(address, method, path, &[("content-type", kind)], asked).await
        });
        let exchange = tokio::select! {
            exchange = stage.a.next() => exchange,
            exchange = stage.b.next() => exchange,
        };
        assert!(exchange.body == body.as_bytes(), "{path}");
        exchange.answer("200 OK", "{}").await;
        assert_eq!(within(answering).await.unwrap().status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_form_with_two_models_is_never_forwarded_complete() {
    let mut stage = stage().await;
    let two = form(&[part("model", "a"), part("model", "meta/b")]);
    let refused = call(&stage, "/v1/audio/transcriptions", FORM, &two).await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code().as_str()),
        (400, "malformed_form")
    );
    assert!(!stage.a.has_more() && !stage.b.has_more());
    for kind in [
        "multipart/form-data",
        "multipart/form-data; boundary=a; boundary=xyz",
    ] {
        let refused = call(&stage, "/v1/videos", kind, &form(&[part("model", "a")])).await;
        assert_eq!(refused.error_code(), "malformed_form", "{kind}");
    }
}

#[tokio::test]
async fn reading_for_the_model_is_bounded_in_memory_and_size() {
    let unread = 150_000;
    let mut stage = Stage::set(|config| {
        config.limits.max_unread_bytes = unread.try_into().unwrap();
        config.limits.max_body_bytes = 1_000_000.try_into().unwrap();
    })
    .await;
    let (kind, body) = bodies("meta/b").swap_remove(0);
    let refused = call(&stage, "/v1/audio/transcriptions", kind, &body).await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code().as_str()),
        (503, "overloaded")
    );
    assert!(!stage.a.has_more() && !stage.b.has_more());
    let large = form(&[part("file", &"f".repeat(1_000_001)), part("model", "a")]);
    let refused = call(&stage, "/v1/audio/transcriptions", kind, &large).await;
    assert_eq!(refused.error_code(), "body_too_large");
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn where_models_do_not_differ_bodies_are_streamed() {
    let (mut a, mut b) = (Upstream::start().await, Upstream::start().await);
    a.hands_over_early();
    b.hands_over_early();
    let router = route(&[a.address, b.address], |_| {}).await;
    for (path, kind, body) in [
        (
            "/v1/audio/transcriptions",
            FORM,
            form(&[part("file", &"f".repeat(LONG)), part("model", "sim")]),
        ),
        (
            "/v1/videos",
            JSON,
            format!(r#"{{"x":"{}","model":"sim"}}"#, "x".repeat(LONG)),
        ),
        ("/v1/videos", "application/octet-stream", "x".repeat(LONG)),
    ] {
        let kind = format!("content-type: {kind}");
        let length = format!("content-length: {}", body.len());
        let mut wire = Wire::connect(router.address).await;
        wire.write(&request(&format!("POST {path}"), &[&kind, &length], ""))
            .await;
        let (first, rest) = body.split_at(100_000);
        wire.write(first.as_bytes()).await;
        // The worker has the request before the client has sent the rest.
        let mut early = tokio::select! {
            exchange = a.next() => exchange,
            exchange = b.next() => exchange,
        };
        wire.write(rest.as_bytes()).await;
        early.read_to(body.len()).await;
        assert!(early.body == body.as_bytes(), "{path}");
        early.answer("200 OK", "{}").await;
        assert_eq!(wire.answer().await.unwrap().status, 200, "{path}");
    }
}

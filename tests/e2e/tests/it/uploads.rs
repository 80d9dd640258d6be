//! Multipart bodies: they are streamed to a worker with their model, and only the client determines their end.

use std::time::Duration;

use tailroute_e2e::client;
use tailroute_e2e::fleet::{at_rest, metrics};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::wait::within;

use crate::api::Stage;

const BOUNDARY: &str = "multipart/form-data; boundary=xyz";

fn form(model: &str, file: usize) -> String {
    format!(
        "--xyz\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--xyz\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n{}\r\n--xyz--\r\n",
        "f".repeat(file)
    )
}

#[tokio::test]
async fn a_multipart_body_is_streamed_to_a_worker_with_its_model() {
    let mut stage = Stage::set(|_| {}).await;
    let address = stage.router.address;
    for (path, size) in [
        ("/v1/audio/transcriptions", 10),
        ("/v1/audio/translations", 300_000),
        ("/v1/images/edits", 100),
    ] {
        let body = form("meta/b", size);
        let sent = body.clone();
        let call = tokio::spawn(async move {
            client::call(address, "POST", path, &[("content-type", BOUNDARY)], sent).await
        });
        let exchange = stage.b.next().await;
        assert!(exchange.body == body.as_bytes(), "as it was sent");
        assert_eq!(
            exchange.header("content-length"),
            Some(body.len().to_string().as_str())
        );
        exchange.answer("200 OK", r#"{"text":"so"}"#).await;
        assert_eq!(within(call).await.unwrap().json()["text"], "so");
        assert!(!stage.a.has_more());
    }
    let kind = [("content-type", BOUNDARY)];
    let unknown = client::call(address, "POST", "/v1/audio/transcriptions", &kind, form("c", 10)).await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.error_code().as_str()),
        (404, "model_not_found")
    );
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_file_reaches_the_worker_while_it_is_still_being_sent() {
    let mut stage = Stage::set(|_| {}).await;
    let body = form("a", 200_000);
    let fields = [
        format!("content-type: {BOUNDARY}"),
        format!("content-length: {}", body.len()),
    ];
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let mut wire = Wire::connect(stage.router.address).await;
    stage.a.hands_over_early();
    // The head reaches the worker when the model is known, before the rest is sent.
    let (first, rest) = body.split_at(150_000);
    wire.write(
        &[
            &request("POST /v1/audio/transcriptions", &fields, "")[..],
            first.as_bytes(),
        ]
        .concat(),
    )
    .await;
    let mut early = stage.a.next().await;
    wire.write(rest.as_bytes()).await;
    early.read_to(body.len()).await;
    assert!(early.body == body.as_bytes());
    early.answer("200 OK", "{}").await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
    at_rest(&stage.router).await;
}

#[tokio::test]
async fn a_truncated_or_oversized_multipart_body_does_not_open_the_breaker() {
    let mut stage = Stage::set(|config| {
        config.limits.max_body_bytes = 100_000.try_into().unwrap();
        config.limits.body_timeout = Duration::from_secs(5);
    })
    .await;
    let kind = format!("content-type: {BOUNDARY}");
    let chunk = |data: &str| format!("{:x}\r\n{data}\r\n", data.len());
    let beginning = chunk(&form("a", 90_000)[..80_000]);
    for (what, more, ends, status, code) in [
        (
            "too large",
            chunk(&"f".repeat(30_000)),
            false,
            413,
            "body_too_large",
        ),
        ("cut", String::new(), true, 400, "body_cut_short"),
        ("no chunk", "zz\r\n".to_owned(), false, 400, "body_cut_short"),
        ("too slow", String::new(), false, 408, "request_timeout"),
    ] {
        let mut wire = Wire::connect(stage.router.address).await;
        let head = request(
            "POST /v1/audio/transcriptions",
            &[&kind, "transfer-encoding: chunked"],
            "",
        );
        wire.write(&[&head[..], beginning.as_bytes()].concat()).await;
        let mut exchange = stage.a.next().await;
        wire.write(more.as_bytes()).await;
        if ends {
            // A client that closes its write side has disconnected.
            wire.finish_writing().await;
            assert!(wire.closes().await, "{what}");
        } else {
            let answer = wire.answer().await.expect(what);
            assert_eq!(
                (answer.status, answer.error_code().as_str()),
                (status, code),
                "{what}"
            );
        }
        exchange.read_to_end().await;
        assert!(
            !exchange.body.ends_with(b"0\r\n\r\n"),
            "{what}: never as if complete"
        );
        at_rest(&stage.router).await;
    }
    let declared = request("POST /v1/files", &["content-length: 100001"], "");
    let mut wire = Wire::connect(stage.router.address).await;
    wire.write(&declared).await;
    assert_eq!(wire.answer().await.unwrap().status, 413);
    let page = metrics(&stage.router).await;
    assert_eq!(page.sum("tailroute_breaker_opened_total", &[]), 0.0);
}

#[tokio::test]
async fn waiting_for_a_request_body_does_not_open_the_breaker() {
    let stage = Stage::set(|config| config.limits.first_byte_timeout = Duration::from_millis(50)).await;
    for _ in 0..6 {
        let mut wire = Wire::connect(stage.router.address).await;
        let head = request("POST /v1/files?model=a", &["content-length: 100"], "");
        wire.write(&[&head[..], b"some"].concat()).await;
        let answer = wire.answer().await.unwrap();
        assert_eq!(
            (answer.status, answer.error_code().as_str()),
            (408, "request_timeout")
        );
    }
    at_rest(&stage.router).await;
    let page = metrics(&stage.router).await;
    assert_eq!(page.sum("tailroute_breaker_opened_total", &[]), 0.0);
}

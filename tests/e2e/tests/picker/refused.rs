//! Error responses to clients, and errors for a gateway that is not configured for the picker.

use operator::secret::hash;
use picker::wire::{self, BodyMode, ProcessingRequest, RequestPart};
use policy::units::Millis;
use serde_json::json;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::fleet::{quick, stuck_in_prefill};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::until;
use tonic::Code;

use crate::gateway::headers;
use crate::start;

fn hi() -> Vec<u8> {
    ask("hi", json!({})).to_string().into_bytes()
}

#[tokio::test]
async fn an_invalid_request_gets_the_data_ports_error() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.limits.max_body_bytes = 5_000.try_into().unwrap();
    })
    .await;
    let large = ask(&words(1, 2_000), json!({})).to_string();
    let unknown = ask("hi", json!({ "model": "nope" })).to_string();
    let steers = ask("hi", json!({ "kv_transfer_params": {} })).to_string();
    let absurd = ask("hi", json!({ "model": "m".repeat(1000) })).to_string();
    for (what, body, status, code) in [
        (
            "what steers an engine",
            steers.as_bytes(),
            400,
            "field_not_allowed",
        ),
        ("an absurd name", absurd.as_bytes(), 400, "invalid_name"),
        ("garbage", "{\"model\":".as_bytes(), 400, "malformed_json"),
        ("not UTF-8", b"{\"model\":\"\xff\"}", 400, "malformed_json"),
        ("nothing", b"", 400, "malformed_json"),
        ("too much", large.as_bytes(), 413, "body_too_large"),
        ("another model", unknown.as_bytes(), 404, "model_not_found"),
    ] {
        for gateway in [&gateway, &gateway.sending(BodyMode::Buffered, BodyMode::None)] {
            let (told, headers, error) = gateway.chat(&[], body, None).await.immediate().await;
            let found = error["error"]["code"].as_str();
            assert_eq!((told, found), (status, Some(code)), "{what}");
            assert_eq!(headers["content-type"], "application/json");
            assert_eq!(headers["x-tailroute-error"], code);
        }
    }
    for (method, path, status) in [
        ("GET", CHAT, 405),
        ("GET", "/metrics", 404),
        ("GET", "nowhere", 400),
    ] {
        let mut stream = gateway.open((method, path), &[], true, None).await;
        assert_eq!(stream.immediate().await.0, status, "{path}");
    }
    // In Anthropic's error format.
    let mut stream = gateway.open(("POST", "/v1/messages"), &[], false, None).await;
    stream.body(b"{", true);
    assert_eq!(stream.immediate().await.2["type"], "error");
    let page = fleet.metrics().await;
    let picks = |outcome| page.sum("tailroute_picker_picks_total", &[("outcome", outcome)]);
    assert_eq!((picks("refused"), picks("picked")), (18.0, 0.0));
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_steering_field_in_a_passing_body_is_rejected() {
    let (fleet, gateway) = start(vec![quick()], |_| {}).await;
    let mut stream = gateway.open(("POST", "/v1/unknown"), &[], false, None).await;
    assert_eq!(stream.named().await.endpoints.len(), 1);
    stream.body(br#"{"kv_trans"#, false);
    stream.told().await.expect("it goes on");
    stream.body(br#"fer_params":{}}"#, true);
    let (status, _, error) = stream.immediate().await;
    assert_eq!(
        (status, &error["error"]["param"]),
        (400, &json!("kv_transfer_params"))
    );
    let headers = [("x-data-parallel-rank", "1")];
    let mut stream = gateway.open(("POST", "/v1/unknown"), &headers, false, None).await;
    assert_eq!(stream.immediate().await.0, 400);
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_slow_body_times_out() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.limits.body_timeout = std::time::Duration::from_millis(20);
    })
    .await;
    let mut stream = gateway.open(("POST", CHAT), &[], false, None).await;
    stream.body(b"{", false);
    assert_eq!(stream.immediate().await.0, 408);
    fleet.at_rest().await;
}

#[tokio::test]
async fn without_a_ready_worker_the_answer_is_503() {
    let (fleet, gateway) = start(vec![quick()], |_| {}).await;
    fleet.kill(0).await;
    let workers = fleet.router.parts().state.routing.fleet.workers();
    until("nobody is ready", || !workers[0].is_ready()).await;
    let (status, headers, error) = gateway.chat(&[], &hi(), None).await.immediate().await;
    assert_eq!(
        (status, error["error"]["code"].as_str()),
        (503, Some("no_worker_ready"))
    );
    assert_eq!(headers["retry-after"], "1");
    let page = fleet.metrics().await;
    assert_eq!(
        page.sum("tailroute_picker_picks_total", &[("outcome", "unavailable")]),
        1.0
    );
}

#[tokio::test]
async fn a_turn_that_would_be_late_everywhere_is_shed_with_429() {
    let (fleet, gateway) = start(vec![stuck_in_prefill()], |config| {
        config.admission.shed = true;
        config.admission.max_concurrent_per_worker = std::num::NonZeroU32::new(1);
        config.objective.ttft = Millis(100.0);
        config.health.queue_interval = None;
    })
    .await;
    let (_first, _) = gateway.name(&ask("hi", json!({})), None).await;
    let (status, headers, error) = gateway.chat(&[], &hi(), None).await.immediate().await;
    assert_eq!(
        (status, error["error"]["code"].as_str()),
        (429, Some("objective_out_of_reach"))
    );
    assert!(headers.contains_key("retry-after"));
    let page = fleet.metrics().await;
    assert_eq!(
        page.sum("tailroute_picker_picks_total", &[("outcome", "shed")]),
        1.0
    );
}

#[tokio::test]
async fn keys_are_required_and_limited_as_on_the_data_port() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.keys = vec![config::Key {
            name: "a".to_owned(),
            digest: hash(b"tr-secret-of-a"),
            tenant: "a".to_owned(),
            weight: 1.0,
            priority: 0,
            requests: Some(config::Rate {
                per_s: 0.001,
                burst: 1.0,
            }),
            tokens: None,
            explain: false,
        }];
    })
    .await;
    let mut stream = gateway.open(("GET", "/v1/models"), &[], true, None).await;
    let (status, headers, _) = stream.immediate().await;
    assert_eq!((status, &*headers["www-authenticate"]), (401, "Bearer"));
    let key = [("authorization", "Bearer tr-secret-of-a")];
    let carried = gateway.carry(&key, &ask("hi", json!({}))).await;
    assert_eq!(carried.status, 200);
    assert_eq!(carried.marks["x-ratelimit-remaining-requests"], "0");
    let (status, headers, _) = gateway.chat(&key, &hi(), None).await.immediate().await;
    assert_eq!((status, &*headers["x-ratelimit-limit-requests"]), (429, "1"));
    let page = fleet.metrics().await;
    let counted = |outcome| page.sum("tailroute_admission_requests_total", &[("outcome", outcome)]);
    assert_eq!((counted("unauthorized"), counted("requests_limited")), (1.0, 1.0));
}

#[tokio::test]
async fn an_unsupported_body_mode_is_an_error_that_names_the_supported_ones() {
    let (fleet, gateway) = start(vec![quick()], |_| {}).await;
    for mode in [
        BodyMode::None,
        BodyMode::Streamed,
        BodyMode::BufferedPartial,
        BodyMode::Grpc,
    ] {
        let gateway = gateway.sending(mode, BodyMode::None);
        let mut stream = gateway.open(("POST", CHAT), &[], false, None).await;
        let status = stream.told().await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("request_body_mode"), "{status}");
    }
    let page = fleet.metrics().await;
    assert_eq!(
        page.sum("tailroute_picker_picks_total", &[("outcome", "protocol")]),
        4.0
    );
}

#[tokio::test]
async fn streams_that_violate_the_protocol_are_ended() {
    let (fleet, gateway) = start(vec![quick()], |_| {}).await;
    let mut stream = gateway.call(wire::PATH).await.unwrap();
    stream.body(b"x", true);
    let status = stream.told().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    // A head must not be sent twice.
    let (mut stream, _) = gateway.name(&ask("hi", json!({})), None).await;
    stream.pieces().await;
    stream.say(ProcessingRequest {
        request: Some(RequestPart::RequestHeaders(wire::HttpHeaders {
            headers: Some(headers(&[])),
            end_of_stream: true,
        })),
        ..ProcessingRequest::default()
    });
    assert_eq!(stream.told().await.unwrap_err().code(), Code::InvalidArgument);
    fleet.at_rest().await;
}

#[tokio::test]
async fn only_the_external_processor_is_served() {
    let (_fleet, gateway) = start(vec![quick()], |_| {}).await;
    let status = gateway.call("/grpc.reflection.v1.ServerReflection/List").await;
    assert_eq!(status.err().unwrap().code(), Code::Unimplemented);
}

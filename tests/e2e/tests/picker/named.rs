//! The choice of endpoints.

use std::collections::HashSet;
use std::net::SocketAddr;

use picker::wire::{AnswerPart, BodyMode};
use serde_json::json;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::until;

use crate::gateway::subset;
use crate::start;

fn addresses(fleet: &Fleet) -> Vec<SocketAddr> {
    fleet.engines.iter().map(sim_engine::Engine::addr).collect()
}

#[tokio::test]
async fn a_conversation_stays_with_its_cache_through_gateway_and_router() {
    let (fleet, gateway) = start(vec![quick(); 4], |_| {}).await;
    let mut homes = HashSet::new();
    for seed in 0..4 {
        let mut talk = Conversation::new(&words(seed, 400));
        talk.user(&words(100 + seed, 20));
        let first = gateway.carry(&[], &talk.body(json!({ "stream": true }))).await;
        assert_eq!(first.status, 200);
        let home = first.named.endpoints[0];
        homes.insert(home);
        let said: String = client::events(&first.body)
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
            .collect();
        talk.assistant(&said);
        talk.user("and then?");
        let extra = json!({ "stream": true, "stream_options": { "include_usage": true } });
        let second = gateway.carry(&[], &talk.body(extra)).await;
        assert_eq!(second.named.endpoints[0], home, "conversation {seed}");
        let events = client::events(&second.body);
        let usage = &events[events.len() - 2]["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(cached >= 400, "{usage}");
        // Turns that the router carries itself use the same knowledge.
        talk.assistant("so");
        let third = fleet.turn(&mut talk, &[], "and now?").await;
        assert_eq!(fleet.engines[third.engine].addr(), home);
    }
    assert!(homes.len() > 1, "idle workers share new conversations");
    fleet.at_rest().await;
}

#[tokio::test]
async fn the_body_is_returned_unchanged_in_pieces_after_the_head() {
    let (_fleet, gateway) = start(vec![quick()], |_| {}).await;
    let body = ask(&words(1, 40_000), json!({})).to_string();
    assert!(body.len() > 3 * 62 * 1024);
    let mut stream = gateway.chat(&[], body.as_bytes(), None).await;
    stream.named().await;
    assert!(stream.pieces().await == body.as_bytes());
}

#[tokio::test]
async fn trailers_end_a_body_and_are_passed_on_after_it() {
    let (_fleet, gateway) = start(vec![quick()], |_| {}).await;
    let body = ask("hi", json!({})).to_string();
    let mut stream = gateway.open(("POST", CHAT), &[], false, None).await;
    stream.body(body.as_bytes(), false);
    stream.trailers();
    stream.named().await;
    let piece = stream.told().await.unwrap();
    assert!(
        matches!(piece.response, Some(AnswerPart::RequestBody(_))),
        "{piece:?}"
    );
    let last = stream.told().await.unwrap();
    assert!(
        matches!(last.response, Some(AnswerPart::RequestTrailers(_))),
        "{last:?}"
    );
}

#[tokio::test]
async fn a_request_without_a_body_gets_an_endpoint_at_once() {
    let (fleet, gateway) = start(vec![quick(); 2], |_| {}).await;
    for (path, kind) in [
        ("/v1/models", "models"),
        ("/v1/models/sim", "models"),
        ("/health", "other"),
    ] {
        let mut stream = gateway.open(("GET", path), &[], true, None).await;
        let named = stream.named().await;
        assert_eq!(named.endpoints.len(), 1, "{path}");
        assert!(addresses(&fleet).contains(&named.endpoints[0]));
        stream.answer(200, "application/json", true, None);
        let told = stream.told().await.unwrap();
        assert!(matches!(told.response, Some(AnswerPart::ResponseHeaders(_))));
        stream.ends().await;
        let page = fleet.metrics().await;
        let labels = [("endpoint", kind), ("outcome", "ok")];
        assert!(page.sum("tailroute_requests_total", &labels) >= 1.0, "{path}");
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn only_endpoints_listed_by_the_gateway_are_named() {
    let (fleet, gateway) = start(vec![quick(); 4], |_| {}).await;
    let all = addresses(&fleet);
    for seed in 0..8 {
        let body = ask(&words(seed, 50), json!({}));
        let (_stream, named) = gateway.name(&body, Some(subset(&all[1..3]))).await;
        let named: HashSet<_> = named.endpoints.into_iter().collect();
        assert_eq!(
            named,
            all[1..3].iter().copied().collect(),
            "the other one comes after"
        );
    }
    let mut stream = gateway
        .open(("GET", "/v1/models"), &[], true, Some(subset(&all[3..])))
        .await;
    assert_eq!(stream.named().await.endpoints, all[3..]);
    let (_stream, named) = gateway.name(&ask("hi", json!({})), None).await;
    assert_eq!(
        named.endpoints.len(),
        3,
        "the best one and as many after it as are configured"
    );
}

#[tokio::test]
async fn without_an_eligible_listed_endpoint_none_is_named() {
    let (fleet, gateway) = start(vec![quick(); 2], |_| {}).await;
    let elsewhere: SocketAddr = "10.9.9.9:8000".parse().unwrap();
    let all = addresses(&fleet);
    fleet.kill(0).await;
    let workers = fleet.router.parts().state.routing.fleet.workers();
    until("the dead engine is noticed", || {
        !workers
            .iter()
            .find(|one| one.endpoint == Some(all[0]))
            .unwrap()
            .is_ready()
    })
    .await;
    for listed in [&[][..], &[elsewhere], &all[..1]] {
        let body = ask("hi", json!({})).to_string();
        let mut stream = gateway.chat(&[], body.as_bytes(), Some(subset(listed))).await;
        let (status, headers, error) = stream.immediate().await;
        assert_eq!(
            (status, error["error"]["code"].as_str()),
            (503, Some("no_worker_ready")),
            "{listed:?}"
        );
        assert_eq!(headers["retry-after"], "1");
        let mut stream = gateway
            .open(("GET", "/v1/models"), &[], true, Some(subset(listed)))
            .await;
        assert_eq!(stream.immediate().await.0, 503);
    }
    let (_stream, named) = gateway.name(&ask("hi", json!({})), None).await;
    assert_eq!(
        named.endpoints,
        all[1..],
        "who is dead is not named after others either"
    );
}

#[tokio::test]
async fn a_gateway_that_supports_one_endpoint_gets_one() {
    let (_fleet, gateway) = start(vec![quick(); 3], |config| {
        config.endpoint_picker.as_mut().unwrap().fallbacks = 0;
    })
    .await;
    let (_stream, named) = gateway.name(&ask("hi", json!({})), None).await;
    assert_eq!(named.endpoints.len(), 1);
}

#[tokio::test]
async fn a_form_is_routed_by_model_and_unknown_paths_pass_unparsed() {
    let (_fleet, gateway) = start(vec![quick()], |_| {}).await;
    let kind = [("content-type", "multipart/form-data; boundary=b")];
    let form = |model: &str| {
        format!("--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--b--\r\n")
    };
    let path = ("POST", "/v1/audio/transcriptions");
    let mut stream = gateway.open(path, &kind, false, None).await;
    stream.body(form("sim").as_bytes(), true);
    assert_eq!(stream.named().await.endpoints.len(), 1);
    assert_eq!(stream.pieces().await, form("sim").as_bytes());
    let mut stream = gateway.open(path, &kind, false, None).await;
    stream.body(form("other").as_bytes(), true);
    assert_eq!(stream.immediate().await.0, 404);
    // The body is not waited for.
    let plain = gateway.sending(BodyMode::Streamed, BodyMode::None);
    for (gateway, comes_back) in [(&gateway, true), (&plain, false)] {
        let mut stream = gateway.open(("POST", "/v1/unknown"), &[], false, None).await;
        assert_eq!(stream.named().await.endpoints.len(), 1);
        stream.body(b"anything", true);
        if comes_back {
            assert_eq!(stream.pieces().await, b"anything");
        } else {
            let told = stream.told().await.unwrap();
            assert_eq!(told.response, Some(AnswerPart::RequestBody(Default::default())));
        }
    }
}

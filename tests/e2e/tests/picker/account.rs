//! The accounting of a request that a gateway carries: open as long as the gateway carries it, and closed however it
//! ends.

use picker::wire::BodyMode;
use serde_json::json;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::until;

use crate::gateway::served;
use crate::start;

/// Returns the requests in flight: in the router, and on its workers.
fn in_flight(fleet: &Fleet) -> (usize, u32) {
    let parts = fleet.router.parts();
    let workers = parts.state.routing.fleet.workers();
    let on = |worker: &std::sync::Arc<fleet::Worker>| worker.with_load(|load| load.in_flight);
    (parts.proxy.in_flight(), workers.iter().map(on).sum())
}

/// Returns the record of the latest decision.
async fn last(fleet: &Fleet) -> serde_json::Value {
    let page = client::admin(
        fleet.router.admin_address,
        "GET",
        "/admin/v1/decisions?limit=1",
        &[],
        None,
    )
    .await;
    page.json()["decisions"][0].clone()
}

#[tokio::test]
async fn a_turn_counts_from_the_pick_until_its_response_has_passed() {
    let (fleet, gateway) = start(vec![quick(); 2], |_| {}).await;
    let (mut stream, named) = gateway.name(&ask(&words(1, 300), json!({})), None).await;
    stream.pieces().await;
    assert_eq!(in_flight(&fleet), (1, 1));
    stream.answer(200, "text/event-stream", false, None);
    stream.told().await.unwrap();
    let first = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"so\"}}]}\n\n";
    stream.answer_body(first, false);
    stream.goes_on(first).await;
    let parts = fleet.router.parts();
    let workers = parts.state.routing.fleet.workers();
    let worker = workers
        .iter()
        .find(|one| one.endpoint == Some(named.endpoints[0]))
        .unwrap();
    until("its prefill is over", || {
        worker.with_load(|load| load.pending.len()) == 0
    })
    .await;
    assert_eq!(in_flight(&fleet), (1, 1), "its answer goes on");
    let rest = b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":310,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":7}}}\n\ndata: [DONE]\n\n";
    stream.answer_body(rest, true);
    stream.goes_on(rest).await;
    until("it is over", || in_flight(&fleet).1 == 0).await;
    stream.ends().await;
    fleet.at_rest().await;
    let record = last(&fleet).await;
    assert_eq!(record["outcome"]["state"], "ok", "{record}");
    assert_eq!(record["outcome"]["cached_tokens"], 7, "{record}");
    assert_eq!(record["worker"].as_str(), Some(worker.name()), "{record}");
}

#[tokio::test]
async fn a_dropped_stream_releases_everything_in_every_phase() {
    let (fleet, gateway) = start(vec![quick(); 2], |_| {}).await;
    let body = ask(&words(1, 300), json!({})).to_string();
    // Before the body is complete.
    let stream = gateway.open(("POST", CHAT), &[], false, None).await;
    stream.body(&body.as_bytes()[..20], false);
    drop(stream);
    fleet.at_rest().await;
    // Before there is a response, in the middle of it, and for a request that is not a turn.
    for how_far in 0..3 {
        let (mut stream, _) = gateway.name(&ask(&words(how_far, 300), json!({})), None).await;
        stream.pieces().await;
        assert_eq!(in_flight(&fleet), (1, 1));
        if how_far > 0 {
            stream.answer(200, "text/event-stream", false, None);
            stream.told().await.unwrap();
        }
        if how_far > 1 {
            stream.answer_body(b"data: {", false);
            stream.goes_on(b"data: {").await;
        }
        drop(stream);
        fleet.at_rest().await;
        assert_eq!(last(&fleet).await["outcome"]["state"], "aborted");
    }
    let mut stream = gateway.open(("GET", "/v1/models"), &[], true, None).await;
    stream.named().await;
    assert_eq!(in_flight(&fleet), (1, 1));
    drop(stream);
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_picker_streams", &[]), 0.0);
}

#[tokio::test]
async fn a_disconnect_in_the_queue_leaves_the_queue() {
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.admission.max_concurrent_per_worker = std::num::NonZeroU32::new(1);
        config.health.queue_interval = None;
    })
    .await;
    let (first, _) = gateway.name(&ask("hi", json!({})), None).await;
    let body = ask("there", json!({})).to_string();
    let parts = fleet.router.parts();
    let waiting = gateway.chat(&[], body.as_bytes(), None).await;
    until("it waits", || parts.proxy.admission.gate.counts().waiting == 1).await;
    waiting.ends().await;
    until("nobody waits", || {
        parts.proxy.admission.gate.counts().waiting == 0
    })
    .await;
    let mut next = gateway.chat(&[], body.as_bytes(), None).await;
    until("it waits", || parts.proxy.admission.gate.counts().waiting == 1).await;
    drop(first);
    next.named().await;
    drop(next);
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_request_served_by_another_endpoint_is_accounted_there() {
    let (fleet, gateway) = start(vec![quick(); 2], |_| {}).await;
    let talk = ask(&words(1, 400), json!({ "stream": true }));
    let (stream, named) = gateway.name(&talk, None).await;
    let [picked, other] = named.endpoints[..] else {
        panic!("{named:?}")
    };
    let by = served(&other.to_string());
    let carried = stream.carry(named, other, Some(by)).await;
    assert_eq!(carried.marks["x-tailroute-worker"], other.to_string());
    fleet.at_rest().await;
    // The cached prefix is known.
    let (_stream, named) = gateway.name(&talk, None).await;
    assert_eq!(named.endpoints[0], other, "not {picked}");
    let page = fleet.metrics().await;
    assert_eq!(
        page.sum("tailroute_picker_served_total", &[("by", "fallback")]),
        1.0
    );
    let turns = [("endpoint", "chat"), ("outcome", "ok")];
    assert_eq!(
        page.sum("tailroute_requests_total", &turns),
        1.0,
        "it is one request"
    );
}

#[tokio::test]
async fn a_request_served_by_an_unknown_endpoint_is_accounted_nowhere() {
    let (fleet, gateway) = start(vec![quick(); 2], |_| {}).await;
    let (mut stream, _) = gateway.name(&ask("hi", json!({})), None).await;
    stream.pieces().await;
    stream.answer(200, "application/json", false, Some(served("10.9.9.9:1")));
    stream.told().await.unwrap();
    assert_eq!(in_flight(&fleet).1, 0);
    stream.answer_body(b"{}", true);
    stream.goes_on(b"{}").await;
    stream.ends().await;
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    assert_eq!(
        page.sum("tailroute_picker_served_total", &[("by", "unknown")]),
        1.0
    );
}

#[tokio::test]
async fn a_worker_that_fails_carried_requests_is_skipped() {
    let (fleet, gateway) = start(vec![quick(); 2], |config| {
        config.failure.breaker_failures = 3;
    })
    .await;
    let all: Vec<_> = fleet.engines.iter().map(sim_engine::Engine::addr).collect();
    let page = || async {
        let page = fleet.metrics().await;
        page.sum("tailroute_breaker_opened_total", &[])
    };
    for seed in 0..20 {
        let listed = crate::gateway::subset(&all[..1]);
        let (mut stream, _) = gateway
            .name(&ask(&words(seed, 20), json!({})), Some(listed))
            .await;
        stream.pieces().await;
        stream.answer(500, "text/plain", true, None);
        stream.told().await.unwrap();
        stream.ends().await;
        if page().await > 0.0 {
            break;
        }
    }
    assert_eq!(page().await, 1.0);
    let (_stream, named) = gateway.name(&ask("hi", json!({})), None).await;
    assert_eq!(named.endpoints, all[1..]);
}

#[tokio::test]
async fn without_the_response_body_a_turns_prompt_is_still_indexed() {
    let (fleet, gateway) = start(vec![quick(); 4], |_| {}).await;
    let gateway = gateway.sending(BodyMode::FullDuplexStreamed, BodyMode::None);
    for seed in 0..3 {
        let talk = ask(&words(seed, 400), json!({ "stream": true }));
        let first = gateway.carry(&[], &talk).await;
        fleet.at_rest().await;
        let (_stream, named) = gateway.name(&talk, None).await;
        assert_eq!(named.endpoints[0], first.named.endpoints[0]);
    }
}

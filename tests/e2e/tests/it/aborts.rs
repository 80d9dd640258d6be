//! A client that disconnects aborts its request in every phase. Routers that let it continue keep a GPU busy for
//! nothing: <https://github.com/sgl-project/sglang/issues/6280>.

use policy::cost::PrefillCost;
use serde_json::json;
use sim_engine::{Engine, EngineConfig, Stats};
use tailroute_e2e::client::{self, CHAT, H2};
use tailroute_e2e::fleet::{Fleet, NEVER_MS, at_rest, quick, route, stuck_in_decode, stuck_in_prefill};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};

async fn when(engine: &Engine, enough: impl Fn(&Stats) -> bool) -> Stats {
    within(engine.stats_when(enough)).await
}

/// Sends a request whose response is not awaited.
fn send(fleet: &Fleet, seed: u64, stream: bool) -> tokio::task::JoinHandle<Result<client::Answer, String>> {
    let body = ask(&words(seed, 40), json!({ "stream": stream })).to_string();
    tokio::spawn(client::open(fleet.address(), "POST", CHAT, &[], body))
}

#[tokio::test]
async fn a_disconnect_before_or_during_prefill_aborts_the_request() {
    for stream in [false, true] {
        let fleet = Fleet::start(vec![stuck_in_prefill()], |_| {}).await;
        let engine = &fleet.engines[0];
        let prefilled = send(&fleet, 1, stream);
        when(engine, |stats| {
            stats.received == 1 && stats.running + stats.waiting == 1
        })
        .await;
        let queued = send(&fleet, 2, stream);
        when(engine, |stats| stats.running + stats.waiting == 2).await;
        assert_eq!(fleet.router.parts().proxy.in_flight(), 2);

        queued.abort();
        drop(queued.await);
        let stats = when(engine, |stats| stats.aborted.total() == 1).await;
        assert_eq!(stats.aborted.queued, 1);
        prefilled.abort();
        drop(prefilled.await);
        let stats = when(engine, |stats| stats.aborted.total() == 2).await;
        assert_eq!(stats.aborted.prefill, 1);
        fleet.at_rest().await;
        let page = fleet.metrics().await;
        assert_eq!(
            page.sum("tailroute_requests_total", &[("outcome", "aborted")]),
            2.0
        );
        let held = page.sum("tailroute_worker_resident_tokens", &[]);
        assert_eq!(held, 0.0, "what was not computed is not there");
    }
}

#[tokio::test]
async fn a_disconnect_mid_stream_aborts_the_request_and_keeps_its_prompt_indexed() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |_| {}).await;
    let mut answer = fleet
        .open(&[], &ask(&words(1, 400), json!({ "stream": true })))
        .await;
    answer.chunk().await.unwrap().unwrap();
    drop(answer);
    let stats = when(&fleet.engines[0], |stats| stats.aborted.total() == 1).await;
    assert_eq!(stats.aborted.decode, 1);
    fleet.at_rest().await;
    let held = fleet.metrics().await.sum("tailroute_worker_resident_tokens", &[]);
    assert!(held > 300.0, "its prompt was computed: {held}");
}

#[tokio::test]
async fn a_disconnect_aborts_an_unstreamed_request() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |_| {}).await;
    let request = send(&fleet, 1, false);
    when(&fleet.engines[0], |stats| stats.generation_tokens == 1).await;
    request.abort();
    drop(request.await);
    let stats = when(&fleet.engines[0], |stats| stats.aborted.total() == 1).await;
    assert_eq!(stats.aborted.decode, 1);
    fleet.at_rest().await;
}

#[tokio::test]
async fn an_http2_reset_aborts_only_its_stream() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |_| {}).await;
    let h2 = H2::connect(fleet.address()).await;
    let body = |seed| ask(&words(seed, 40), json!({ "stream": true })).to_string();
    let (first, second) = (h2.post(CHAT, body(1)).await, h2.post(CHAT, body(2)).await);
    assert_eq!(fleet.router.parts().proxy.in_flight(), 2);
    drop(first);
    when(&fleet.engines[0], |stats| stats.aborted.total() == 1).await;
    until("its place is free", || {
        fleet.router.parts().proxy.in_flight() == 1
    })
    .await;
    assert_eq!(fleet.engines[0].stats().running, 1, "the other one goes on");
    drop((second, h2));
    when(&fleet.engines[0], |stats| stats.aborted.total() == 2).await;
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_disconnect_while_sending_reaches_no_worker() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    let fields = ["content-length: 1000", "expect: 100-continue"];
    let head = request(&format!("POST {CHAT}"), &fields, "");
    let mut wire = Wire::connect(fleet.address()).await;
    wire.write(&head).await;
    // The router has begun to read the body.
    wire.read_past(b"100 Continue\r\n\r\n").await;
    wire.write(b"{\"model\":").await;
    drop(wire);
    fleet.at_rest().await;
    assert_eq!(fleet.received(), [0]);
}

#[tokio::test]
async fn a_disconnect_aborts_a_request_without_a_turn() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let asking = tokio::spawn(client::open(router.address, "POST", "/v1/embeddings", &[], "{}"));
    let mut exchange = upstream.next().await;
    asking.abort();
    drop(asking.await);
    exchange.hung_up().await;
    at_rest(&router).await;

    let asking = client::open(router.address, "POST", "/v1/embeddings", &[], "{}");
    let respond = async {
        let mut exchange = upstream.next().await;
        exchange.begin_events().await;
        exchange
    };
    let (answer, mut exchange) = tokio::join!(asking, respond);
    drop(answer);
    exchange.hung_up().await;
    at_rest(&router).await;
}

#[tokio::test]
async fn an_aborted_request_frees_its_slot_for_the_next_one() {
    let engine = EngineConfig {
        prefill: PrefillCost::linear(NEVER_MS, 0.0),
        max_queued: 1,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |_| {}).await;
    let first = send(&fleet, 1, true);
    when(&fleet.engines[0], |stats| stats.running + stats.waiting == 1).await;
    let mut others = Vec::new();
    for seed in 2..5 {
        others.push(send(&fleet, seed, true));
    }
    until("all are on the worker or refused", || fleet.received() == [4]).await;
    for request in others.into_iter().chain([first]) {
        request.abort();
        drop(request.await);
    }
    when(&fleet.engines[0], |stats| stats.running + stats.waiting == 0).await;
    fleet.at_rest().await;
}

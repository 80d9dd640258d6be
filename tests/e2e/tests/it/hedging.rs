//! Hedges and failovers: when a second worker is used, and what it costs.

use std::time::Duration;

use config::{Config, PolicyName};
use fleet::health::Probe;
use serde_json::json;
use sim_engine::Fault;
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, at_rest, quick, route};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};

fn in_turn(config: &mut Config) {
    config.routing.policy = PolicyName::RoundRobin;
}

#[tokio::test]
async fn a_late_turn_is_hedged_if_requested_and_the_slower_attempt_is_cancelled() {
    for stream in [false, true] {
        let fleet = Fleet::start(vec![quick(); 2], |config| {
            in_turn(config);
            config.failure.hedge_after = Some(Duration::from_millis(20));
        })
        .await;
        fleet.engines[0].set_fault(Fault {
            slow: 1e9,
            ..Fault::default()
        });
        for seed in 0..4 {
            let body = ask(&words(seed, 9), json!({ "stream": stream }));
            let answer = fleet.chat(&[], &body).await;
            assert_eq!(
                (answer.status.as_u16(), fleet.engine_of(&answer.worker())),
                (200, 1)
            );
            assert!(answer.clean);
        }
        within(fleet.engines[0].stats_when(|stats| stats.running + stats.waiting == 0)).await;
        fleet.at_rest().await;
        let page = fleet.metrics().await;
        let hedges = |what| page.sum("tailroute_hedges_total", &[("what", what)]);
        assert_eq!([hedges("sent"), hedges("won")], [4.0, 4.0]);
        assert_eq!(
            page.sum("tailroute_requests_total", &[("outcome", "ok")]),
            4.0,
            "each request counts once"
        );
        assert_eq!(
            page.sum("tailroute_requests_total", &[("outcome", "aborted")]),
            0.0
        );
    }
}

#[tokio::test]
async fn a_hedge_answers_when_the_first_worker_fails() {
    let mut upstreams = [Upstream::start().await, Upstream::start().await];
    let router = route(&[upstreams[0].address, upstreams[1].address], |config| {
        config.failure.hedge_after = Some(Duration::from_millis(10));
    })
    .await;
    let asking = client::call(router.address, "POST", CHAT, &[], ask("x", json!({})).to_string());
    let respond = async {
        let [one, other] = &mut upstreams;
        let (first, second) = tokio::join!(one.next(), other.next());
        first.reset();
        second.answer("200 OK", r#"{"choices":[]}"#).await;
    };
    let (answer, ()) = tokio::join!(asking, respond);
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, r#"{"choices":[]}"#)
    );
    at_rest(&router).await;
}

/// Returns the retry budget that is left.
fn left(router: &Server) -> f64 {
    router.parts().proxy.state.routing.retries.lock().left()
}

#[tokio::test]
async fn a_hedge_without_a_second_worker_costs_no_budget() {
    // Far off until the other worker is down; then the clock jumps.
    const AFTER: Duration = Duration::from_secs(5);
    let mut upstreams = [Upstream::start().await, Upstream::start().await];
    let router = route(&[upstreams[0].address, upstreams[1].address], |config| {
        in_turn(config);
        config.failure.hedge_after = Some(AFTER);
        config.health.interval = Duration::from_secs(3600);
    })
    .await;
    let (parts, before) = (std::sync::Arc::clone(router.parts()), left(&router));
    let asking = client::call(router.address, "POST", CHAT, &[], ask("x", json!({})).to_string());
    let respond = async {
        let [one, other] = &mut upstreams;
        let (exchange, other) = tokio::select! {
            exchange = one.next() => (exchange, 1),
            exchange = other.next() => (exchange, 0),
        };
        let second = &parts.state.routing.fleet.workers()[other];
        until("the other one is down", || {
            parts.state.note_health(second, Probe::Bad);
            !second.is_ready()
        })
        .await;
        tokio::time::pause();
        tokio::time::sleep(2 * AFTER).await;
        tokio::time::resume();
        exchange.answer("200 OK", r#"{"choices":[]}"#).await;
    };
    let (answer, ()) = tokio::join!(asking, respond);
    assert_eq!(answer.status, 200);
    at_rest(&router).await;
    assert!(left(&router) >= before, "{} of {before}", left(&router));
}

#[tokio::test]
async fn a_model_with_one_worker_is_not_retried_and_costs_no_budget() {
    let models = ["a", "b"].map(|model| {
        [(
            "/v1/models",
            if model == "a" {
                r#"{"data":[{"id":"a"}]}"#
            } else {
                r#"{"data":[{"id":"b"}]}"#
            },
        )]
    });
    let mut a = Upstream::saying(&models[0]).await;
    let mut b = Upstream::saying(&models[1]).await;
    let router = route(&[a.address, b.address], |_| {}).await;
    until("the models are known", || {
        router
            .parts()
            .state
            .routing
            .fleet
            .workers()
            .iter()
            .all(|worker| worker.models().is_some())
    })
    .await;
    let before = left(&router);
    let form = "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\na\r\n--x--\r\n";
    let kind = [
        ("content-type", "multipart/form-data; boundary=x"),
        ("idempotency-key", "1"),
    ];
    let asking = client::call(
        router.address,
        "POST",
        "/v1/audio/transcriptions",
        &kind,
        form.to_owned(),
    );
    let respond = async { a.next().await.answer("503 Service Unavailable", "{}").await };
    let (answer, ()) = tokio::join!(asking, respond);
    assert_eq!(answer.status, 503, "the worker's own answer");
    assert!(!b.has_more());
    at_rest(&router).await;
    assert!(left(&router) >= before, "{} of {before}", left(&router));
}

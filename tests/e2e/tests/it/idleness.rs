//! Workers without traffic for a long time: their learned costs stay but become uncertain, so that new work is shared.

use std::time::Duration;

use policy::cost::PrefillCost;
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use serde_json::json;
use sim_engine::{EngineConfig, Fault};
use tailroute_e2e::client;
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::until;

/// An engine that reports prefill times: a fifth of the configuration's default per token.
fn telling() -> EngineConfig {
    EngineConfig {
        time_scale: 10.0,
        prefill: PrefillCost::linear(0.2, 20.0),
        default_output_tokens: 4,
        tpot_ms: 1.0,
        per_request_metrics: true,
        ..quick()
    }
}

/// A fleet of such engines without probes while the clock jumps.
async fn fleet(engines: usize) -> Fleet {
    Fleet::start(vec![telling(); engines], |config| {
        config.health.interval = Duration::from_secs(86_400);
        config.health.queue_interval = None;
    })
    .await
}

/// Lets time pass without a request. The clock jumps only while nothing is in flight.
async fn idle(time: Duration) {
    const STEP: Duration = Duration::from_secs(5);
    for _ in 0..time.as_secs() / STEP.as_secs() {
        tokio::time::pause();
        tokio::time::advance(STEP).await;
        tokio::time::resume();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

/// Starts conversations one after another that share nothing. Returns the number per engine.
async fn begin(fleet: &Fleet, first: u64, count: u64) -> Vec<u64> {
    let before = fleet.received();
    for number in first..first + count {
        let text = words(1000 + number, 50 + (number * 7919 % 700) as usize);
        let answer = fleet.chat(&[], &ask(&text, json!({}))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    fleet.at_rest().await;
    let after = fleet.received();
    after.iter().zip(before).map(|(now, then)| now - then).collect()
}

/// Returns the learned time of a prompt of 400 tokens on a worker, and its error.
fn learned(fleet: &Fleet, worker: u32) -> (Millis, f64) {
    let costs = fleet.router.parts().state.routing.feedback.costs.lock();
    let state = costs.state(WorkerId(worker)).unwrap();
    (state.cost.prefill(Tokens(400), Tokens::ZERO), state.error_ms)
}

/// Removes an engine's worker from the fleet and adds it again, without a configured cost.
async fn add_again(fleet: &Fleet, engine: usize) {
    let parts = fleet.router.parts();
    let name = fleet.engines[engine].addr().to_string();
    let call = async |path: &str, body: serde_json::Value| {
        let path = format!("/admin/v1/workers{path}");
        let admin = fleet.router.admin_address;
        let answer = client::admin(admin, "POST", &path, &[], Some(&body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    call(&format!("/{name}/remove"), json!({ "reason": "a new disk" })).await;
    until("it to be gone", || {
        parts.state.routing.fleet.find(&name).is_none()
    })
    .await;
    let worker = json!({ "name": &name, "url": format!("http://{name}") });
    call("", json!({ "worker": worker, "reason": "it is in" })).await;
    until("it to be ready", || {
        parts
            .state
            .routing
            .fleet
            .find(&name)
            .is_some_and(|worker| worker.is_ready())
    })
    .await;
}

#[tokio::test]
async fn after_ten_idle_minutes_four_workers_share_new_conversations_equally() {
    for (before, after) in [(300, 300), (600, 0)] {
        share_after(Duration::from_secs(before), Duration::from_secs(after)).await;
    }
}

/// Runs traffic, a pause, a worker added again, another pause, and then new conversations.
async fn share_after(before_adding: Duration, after_adding: Duration) {
    let fleet = fleet(4).await;
    begin(&fleet, 0, 400).await;
    let before = [0, 1, 2].map(|worker| learned(&fleet, worker));
    idle(before_adding).await;
    add_again(&fleet, 3).await;
    idle(after_adding).await;
    for (worker, (took, error)) in (0..).zip(before) {
        let (now, widened) = learned(&fleet, worker);
        assert_eq!(now, took, "what was learned does not move by itself");
        assert!(widened > error + 0.4 * took.0, "{widened} {error} {took}");
    }
    let shares = begin(&fleet, 10_000, 100).await;
    assert!(shares.iter().all(|share| (15..=35).contains(share)), "{shares:?}");
}

#[tokio::test]
async fn a_recovered_worker_is_used_again_within_minutes() {
    let fleet = fleet(3).await;
    begin(&fleet, 0, 90).await;
    fleet.engines[0].set_fault(Fault {
        slow: 6.0,
        ..Fault::default()
    });
    let believed = || learned(&fleet, 0).0.0 / learned(&fleet, 1).0.0;
    let mut round = 1000;
    while believed() < 3.0 {
        assert!(round < 3000, "six times as slow, taken for {}", believed());
        begin(&fleet, round, 10).await;
        round += 10;
    }
    // An equal share would be ten. A few still go there while the learned cost is uncertain.
    let shunned = begin(&fleet, 5000, 30).await;
    assert!(shunned[0] <= 5, "{shunned:?}");
    fleet.engines[0].set_fault(Fault::default());
    let mut waited = Duration::ZERO;
    while believed() > 1.2 {
        // Minutes on a quiet machine; a busy one slows every engine for a while.
        assert!(waited < Duration::from_secs(900), "taken for {}", believed());
        idle(Duration::from_secs(10)).await;
        waited += Duration::from_secs(10);
        begin(&fleet, 6000 + 10 * waited.as_secs(), 6).await;
    }
    // The others did all of the last minutes' work, which counts for a while.
    idle(Duration::from_secs(180)).await;
    let shares = begin(&fleet, 20_000, 90).await;
    assert!(shares.iter().all(|share| (20..=40).contains(share)), "{shares:?}");
}

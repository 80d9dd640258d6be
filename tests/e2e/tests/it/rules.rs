//! Evictions by each `hints.rule`, and the threshold ξ that workers receive.

use config::{Config, HintRule};
use policy::route::PolicyName;
use policy::units::{Millis, Tokens};
use serde_json::json;
use sim_engine::EngineConfig;
use sim_engine::hints::Objective;
use tailroute_e2e::client;
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::until;

fn told(fleet: &Fleet, engine: usize) -> Option<Objective> {
    fleet.engines[engine].stats().objective
}

fn reload(fleet: &Fleet, change: impl FnOnce(&mut Config)) {
    let parts = fleet.router.parts();
    let mut config = (*parts.state.config).clone();
    change(&mut config);
    tailroute::reload::reconfigure(parts, &config).unwrap();
}

/// Returns ξ of a worker without a queue, found by trying.
fn fitting(objective_ms: f64, alpha_ms: f64) -> f64 {
    let beta_ms = 20.0;
    let fits = |tokens: &u64| beta_ms + alpha_ms * *tokens as f64 <= objective_ms;
    (0..).take_while(fits).last().unwrap() as f64
}

async fn is_told(fleet: &Fleet, engine: usize, xi_tokens: f64) {
    until("the worker is told", || {
        told(fleet, engine).is_some_and(|told| (told.xi_tokens - xi_tokens).abs() < 1.0)
    })
    .await;
}

#[tokio::test]
async fn the_told_threshold_follows_the_objective_and_the_cost_of_the_worker() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.objective.ttft = Millis(500.0);
        for worker in &mut config.workers {
            worker.cost.alpha_ms_per_token = 0.1;
            worker.cost.beta_ms = 20.0;
            worker.cost.gamma_ms_per_token2 = 0.0;
            worker.cost_is_known = true;
        }
    })
    .await;
    is_told(&fleet, 0, fitting(500.0, 0.1)).await;
    reload(&fleet, |config| config.objective.ttft = Millis(250.0));
    is_told(&fleet, 0, fitting(250.0, 0.1)).await;
    let admin = fleet.router.admin_address;
    let name = fleet.router.parts().state.routing.fleet.workers()[0]
        .name()
        .to_owned();
    let path = format!("/admin/v1/workers/{name}/alpha");
    let twice = json!({ "alpha_ms_per_token": 0.2, "reason": "half as fast" });
    let answer = client::admin(admin, "PUT", &path, &[], Some(&twice)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    is_told(&fleet, 0, fitting(250.0, 0.2)).await;
    is_told(&fleet, 1, fitting(250.0, 0.1)).await;
    let slo = client::admin(admin, "GET", "/admin/v1/slo", &[], None)
        .await
        .json();
    let shown = &slo["workers"][0];
    assert_eq!(shown["told"]["ttft_objective_ms"], 250.0, "{shown}");
    assert_eq!(shown["told"]["xi_tokens"], shown["xi_tokens"], "{shown}");
    let page = fleet.metrics().await;
    let xi = page.sum("tailroute_worker_xi_tokens", &[("worker", &*name)]);
    assert_eq!(Some(xi), shown["xi_tokens"].as_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_lowers_the_told_threshold() {
    let engine = EngineConfig {
        time_scale: 1.0,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |config| {
        config.objective.ttft = Millis(500.0);
        config.learning.costs = false;
    })
    .await;
    until("the worker is told", || told(&fleet, 0).is_some()).await;
    let idle = told(&fleet, 0).unwrap().xi_tokens;
    let bodies: Vec<_> = (0..12)
        .map(|number| ask(&words(number, 2_000), json!({ "stream": true, "max_tokens": 1 })))
        .collect();
    futures_util::future::join_all(bodies.iter().map(|body| fleet.chat(&[], body))).await;
    until("ξ is lower", || {
        told(&fleet, 0).is_some_and(|told| told.xi_tokens < idle)
    })
    .await;
}

#[tokio::test]
async fn a_rule_takes_effect_while_the_router_serves() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    until("the worker is told", || told(&fleet, 0).is_some()).await;
    assert!(!told(&fleet, 0).unwrap().t_lru, "hints name the ends");
    for (rule, is_t_lru) in [
        (HintRule::TLru, true),
        (HintRule::QueueAware, false),
        (HintRule::Both, true),
    ] {
        reload(&fleet, |config| config.hints.rule = rule);
        until(rule.as_str(), || {
            told(&fleet, 0).is_some_and(|told| told.t_lru == is_t_lru)
        })
        .await;
    }
    let epoch = || told(&fleet, 0).map(|told| told.epoch);
    reload(&fleet, |config| config.hints.rule = HintRule::Off);
    let last = epoch();
    // An objective that changed would be told.
    reload(&fleet, |config| {
        config.hints.rule = HintRule::Off;
        config.objective.ttft = Millis(100.0);
    });
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    assert_eq!(epoch(), last);
}

#[tokio::test]
async fn a_single_worker_has_a_rule_of_its_own() {
    let fleet = Fleet::start(vec![quick(); 2], |_| {}).await;
    let name = fleet.router.parts().state.routing.fleet.workers()[0]
        .name()
        .to_owned();
    reload(&fleet, |config| {
        config.hints.workers.insert(name.clone(), HintRule::TLru);
    });
    let evicts_by_xi = |engine| told(&fleet, engine).map(|told| told.t_lru);
    until("one worker evicts by ξ", || evicts_by_xi(0) == Some(true)).await;
    until("the other is told", || evicts_by_xi(1) == Some(false)).await;
}

#[tokio::test]
async fn by_t_lru_worker_and_mirror_give_up_the_same_tail() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.hints.rule = HintRule::TLru;
        config.learning.costs = false;
        config.learning.habits = false;
        config.objective.next_prompt = Tokens(50);
        config.objective.ttft = Millis(50.0);
    })
    .await;
    until("the worker is told", || told(&fleet, 0).is_some()).await;
    let mut talk = Conversation::new(&words(1, 800));
    for turn in 0..3 {
        fleet.turn(&mut talk, &[], &words(turn, 50)).await;
    }
    fleet.at_rest().await;
    let marked = || fleet.engines[0].stats().cache_evict_first_tokens;
    until("its tail goes first", || marked() > 0).await;
    let worker = std::sync::Arc::clone(&fleet.router.parts().state.routing.fleet.workers()[0]);
    let knowledge = &fleet.router.parts().state.routing.knowledge;
    let mirrored = knowledge.update(worker.id, |residency| residency.evict_first_on(worker.id));
    let block = u64::from(worker.spec.block_size);
    assert!(
        mirrored.0.abs_diff(marked()) <= block,
        "{mirrored:?} {}",
        marked()
    );
    for request in fleet.engines[0].captured() {
        assert!(!request.headers.contains_key("x-tailroute-evict-first-tokens"));
    }
}

#[tokio::test]
async fn the_copy_that_a_conversation_leaves_goes_first() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.routing.policy = PolicyName::RoundRobin;
    })
    .await;
    let mut talk = Conversation::new(&words(1, 800));
    for turn in 0..2 {
        fleet.turn(&mut talk, &[], &words(turn, 50)).await;
    }
    fleet.at_rest().await;
    let left = || {
        fleet
            .engines
            .iter()
            .map(|engine| engine.stats().cache_evict_first_tokens)
    };
    until("the copy is given up", || {
        left().max().is_some_and(|tokens| tokens > 500)
    })
    .await;
    assert_eq!(left().min(), Some(0), "the other worker keeps its copy");
    let moved = [("kind", "moved"), ("delivered", "true")];
    let delivered = async { fleet.metrics().await.sum("tailroute_hints_total", &moved) };
    assert_eq!(delivered.await, 1.0);
}

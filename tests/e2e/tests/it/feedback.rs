//! The router's metrics, and its messages to workers.

use std::collections::BTreeMap;

use config::PolicyName;
use metrics::spec::Spec;
use metrics::table::TABLE;
use policy::units::Tokens;
use serde_json::json;
use sim_engine::{EngineConfig, Fault, Stats};
use tailroute_e2e::client;
use tailroute_e2e::fleet::{Fleet, probe_often, quick};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::{until, within};

/// Metrics of events that do not occur in a quiet fleet of simulated engines.
const ABSENT: [&str; 11] = [
    "tailroute_kv_events_total",
    "tailroute_kv_stream_total",
    "tailroute_kv_stream_behind_batches",
    "tailroute_kv_stream_lag_seconds",
    "tailroute_capture_turns_total",
    "tailroute_admin_requests_total",
    "tailroute_discovery_up",
    "tailroute_discovery_heard_timestamp_seconds",
    "tailroute_discovery_workers",
    "tailroute_discovery_failures_total",
    "tailroute_worker_slow_ratio",
];

fn metrics_of_the_table() -> impl Iterator<Item = &'static Spec> {
    TABLE.iter().flat_map(|(_, specs)| *specs)
}

/// Time to first token is measured without a predictor: <https://github.com/llm-d/llm-d-router/issues/1498>.
#[tokio::test]
async fn the_metrics_page_has_all_documented_metrics_with_help() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        probe_often(config);
        config.learning.costs = false;
    })
    .await;
    let mut talk = Conversation::new(&words(1, 600));
    for turn in 0..2 {
        fleet.turn(&mut talk, &[], &words(turn, 20)).await;
    }
    // An unused branch: evicted once something used later is known to be evicted.
    fleet.turn(&mut talk.clone(), &[], &words(20, 200)).await;
    // Metrics that appear only after faults.
    fleet.turn(&mut talk, &[], &words(3, 20)).await;
    // Three of these are on one worker, whose cache is then known to be cleared.
    let mut talks: Vec<Conversation> = (30..36)
        .map(|seed| Conversation::new(&words(seed, 200)))
        .collect();
    for round in 0..2 {
        for (seed, talk) in (40 + 10 * round..).zip(&mut talks) {
            fleet.turn(talk, &[], &words(seed, 20)).await;
        }
        for engine in &fleet.engines {
            engine.set_fault(Fault {
                clear_cache: true,
                ..Fault::default()
            });
        }
    }
    for engine in &fleet.engines {
        engine.set_fault(Fault {
            status: Some(503),
            ..Fault::default()
        });
    }
    fleet.chat(&[], &talk.body(json!({}))).await;
    fleet.at_rest().await;
    within(async {
        while fleet
            .metrics()
            .await
            .samples()
            .iter()
            .filter(|sample| sample.name == "tailroute_worker_queue")
            .count()
            < 8
        {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let page = client::admin(fleet.router.admin_address, "GET", "/metrics", &[], None).await;
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4"));
    for Spec { name, .. } in metrics_of_the_table().filter(|spec| !ABSENT.contains(&spec.name)) {
        let explained = |what: &str| page.text().contains(&format!("# {what} {name} "));
        assert!(explained("HELP") && explained("TYPE"), "{name}");
    }
    let page = fleet.metrics().await;
    for sample in page.samples() {
        let known = metrics_of_the_table().any(|spec| sample.name.starts_with(spec.name));
        assert!(known, "{} is not documented", sample.name);
        let signed = sample.name == "tailroute_time_to_first_token_signed_error_seconds";
        assert!(
            sample.value.is_finite() && (signed || sample.value >= 0.0),
            "{sample:?}"
        );
    }
    assert_eq!(page.sum("tailroute_worker_ready", &[]), 2.0);
    assert_eq!(page.sum("tailroute_time_to_first_token_seconds_count", &[]), 16.0);
    // Those that stream.
    assert_eq!(page.sum("tailroute_slo_turns_total", &[]), 7.0);
    assert_eq!(page.sum("tailroute_worker_in_flight", &[]), 0.0);
}

/// Elsewhere, the number of metric series grew without bound: <https://github.com/smg-project/smg/issues/2266>.
#[tokio::test]
async fn unknown_paths_and_session_ids_do_not_add_metric_series() {
    let fleet = Fleet::start(vec![quick()], |config| {
        // These series appear with the first request.
        config.health.queue_interval = None;
    })
    .await;
    let series = || async {
        let mut count = BTreeMap::new();
        for sample in fleet.metrics().await.samples() {
            *count.entry(sample.name.clone()).or_insert(0) += 1;
        }
        count
    };
    let strange = |i: u32| {
        let (path, session) = (format!("/strange/{i}"), format!("session-{i}"));
        let fleet = &fleet;
        async move {
            let address = fleet.address();
            client::call(address, "GET", &path, &[("x-session-id", &session)], "").await;
            client::call(address, "GET", client::CHAT, &[], "").await;
            let headers = [("x-session-id", session.as_str())];
            fleet
                .chat(&headers, &ask("hi", json!({ "model": path, "user": path })))
                .await;
            fleet.chat(&headers, &ask("hi", json!({ "user": path }))).await;
        }
    };
    strange(0).await;
    fleet.at_rest().await;
    let before = series().await;
    for i in 1..20 {
        strange(i).await;
    }
    fleet.at_rest().await;
    assert_eq!(series().await, before);
}

#[tokio::test]
async fn the_data_port_serves_neither_metrics_of_the_router_nor_its_health() {
    let fleet = Fleet::of(1).await;
    let page = client::call(fleet.address(), "GET", "/metrics", &[], "").await;
    assert!(!page.text().contains("tailroute_"), "these are the worker's");
    for path in ["/livez", "/readyz"] {
        assert_eq!(
            client::call(fleet.address(), "GET", path, &[], "").await.status,
            404
        );
    }
}

#[tokio::test]
async fn a_worker_with_hints_gets_the_objective_on_first_contact_and_after_a_restart() {
    let fleet = Fleet::start(vec![quick()], probe_often).await;
    let engine = &fleet.engines[0];
    let told = engine
        .stats()
        .objective
        .expect("it is told before it is given work");
    // The worker takes hints between requests, so ξ only informs it.
    assert!(told.xi_tokens > 0.0 && !told.t_lru, "{told:?}");
    assert_eq!(told.next_prompt_tokens, 200.0);

    let worker = std::sync::Arc::clone(&fleet.router.parts().state.routing.fleet.workers()[0]);
    let delivered = || async {
        let labels = [("kind", "objective"), ("delivered", "true")];
        fleet.metrics().await.sum("tailroute_hints_total", &labels)
    };
    assert_eq!(delivered().await, 1.0);
    fleet.kill(0).await;
    until("its death is noticed", || !worker.is_ready()).await;
    engine.set_fault(Fault::default());
    until("it is back", || worker.is_ready()).await;
    assert!(delivered().await > 1.0);
}

/// Conversations that share three system prompts return at random to a worker that holds a third of them.
#[tokio::test]
async fn a_worker_and_its_mirror_evict_the_same() {
    const CAPACITY: u64 = 8_000;
    let engine = EngineConfig {
        capacity_blocks: CAPACITY / 16,
        block_size: 16,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |_| {}).await;
    let mut talks: Vec<Conversation> = (0..36)
        .map(|talk| Conversation::new(&words(100 + talk % 3, 300)))
        .collect();
    let (mut random, mut prompts) = (7_u64, 0);
    for turn in 0..300 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let talk = (random >> 33) as usize % talks.len();
        prompts += fleet
            .turn(&mut talks[talk], &[], &words(1_000 + turn, 60))
            .await
            .prompt;
        if talks[talk].turns() >= 10 {
            talks[talk] = Conversation::new(&words(100 + turn % 3, 300));
        }
    }
    fleet.at_rest().await;
    let parts = fleet.router.parts();
    let worker = parts.state.routing.fleet.workers()[0].id;
    let believed = parts
        .state
        .routing
        .knowledge
        .update(worker, |residency| residency.room_on(worker))
        .0;
    // Blocks and chunks end in different places, and the last hints may be in transit.
    let agrees = |stats: &Stats| {
        let room = CAPACITY - stats.cache_used_tokens + stats.cache_evict_first_tokens;
        room.abs_diff(believed) < CAPACITY / 10
    };
    // Hints do not wake `stats_when`.
    until("worker and mirror agree", || agrees(&fleet.engines[0].stats())).await;
    let stats = fleet.engines[0].stats();
    assert!(stats.memory.hints_applied > 100, "{stats:?}");
    let error = fleet
        .metrics()
        .await
        .sum("tailroute_cached_tokens_error_sum", &[]);
    assert!(error < 0.04 * prompts as f64, "{error} of {prompts} tokens");
}

/// A worker of 2,000 tokens, on which conversations of 300 tokens are begun and abandoned.
#[tokio::test]
async fn a_worker_gets_hints_for_the_least_valuable_ends_just_in_time() {
    let engine = EngineConfig {
        capacity_blocks: 125,
        block_size: 16,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |_| {}).await;
    let mut other = 0;
    let mut begin = async |fleet: &Fleet| {
        other += 1;
        let mut talk = Conversation::new(&words(100 + other, 300));
        fleet.turn(&mut talk, &[], &words(10, 20)).await;
    };
    begin(&fleet).await;
    fleet.at_rest().await;
    let engine = &fleet.engines[0];
    assert_eq!(engine.stats().cache_evict_first_tokens, 0, "it has room");
    for _ in 0..8 {
        begin(&fleet).await;
    }
    until("a hint is applied", || engine.stats().memory.hints_applied > 0).await;
    let stats = engine.stats();
    assert!(stats.cache_evict_first_tokens > 0, "{stats:?}");
    let trimmed = [("kind", "trim"), ("delivered", "true")];
    // It counts once the worker has answered.
    within(async { while fleet.metrics().await.sum("tailroute_hints_total", &trimmed) == 0.0 {} }).await;
    let told = client::admin(fleet.router.admin_address, "GET", "/admin/v1/slo", &[], None).await;
    let went = &told.json()["given_up"][0];
    assert!(
        went["keep_tokens"].as_u64() < went["length_tokens"].as_u64(),
        "{went}"
    );
    for term in ["returns_per_s", "late", "epsilon", "kappa", "value"] {
        assert!(went[term].is_number(), "{term}: {went}");
    }
    // ξ still only informs, or the worker would evict blocks that its mirror keeps.
    let parts = fleet.router.parts();
    let told = parts
        .state
        .routing
        .objective_for(&parts.state.routing.fleet.workers()[0]);
    assert_eq!(told.tail(), Tokens(0), "{told:?}");
    for request in engine.captured() {
        assert!(!request.headers.contains_key("x-tailroute-evict-first-tokens"));
    }
}

/// Without hints between requests, each request says how much of its end is worth less than other conversations'
/// blocks.
#[tokio::test]
async fn a_worker_without_separate_hints_gets_them_within_requests() {
    let engine = EngineConfig {
        capacity_blocks: 125,
        block_size: 16,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |config| config.hints.out_of_band = false).await;
    let engine = &fleet.engines[0];
    let told = || {
        let header = |request: &sim_engine::Captured| {
            let value = request.headers.get("x-tailroute-evict-first-tokens")?;
            value.to_str().ok()?.parse::<u64>().ok()
        };
        engine.captured().iter().filter_map(header).max()
    };
    let mut number = 0;
    within(async {
        while told().is_none_or(|tokens| tokens == 0) {
            number += 1;
            let mut talk = Conversation::new(&words(100 + number, 300));
            fleet.turn(&mut talk, &[], &words(10, 20)).await;
        }
    })
    .await;
    assert!(number > 5, "it had room at first");
    let stats = engine.stats();
    assert!(stats.cache_evict_first_tokens > 0, "{stats:?}");
    assert_eq!(stats.memory.hints_applied, 0);
}

#[tokio::test]
async fn a_worker_that_takes_no_hints_is_sent_none() {
    let engine = EngineConfig {
        dialect: sim_engine::Dialect::None,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine; 2], |config| {
        config.routing.policy = PolicyName::RoundRobin;
    })
    .await;
    let mut talk = Conversation::new(&words(1, 300));
    for turn in 0..4 {
        fleet.turn(&mut talk, &[], &words(turn, 50)).await;
    }
    fleet.at_rest().await;
    assert_eq!(fleet.metrics().await.sum("tailroute_hints_total", &[]), 0.0);
    for engine in &fleet.engines {
        let all = engine.captured();
        assert!(
            all.iter()
                .all(|request| [client::CHAT, "/tokenize"].contains(&request.uri.path())),
            "{all:?}"
        );
    }
}

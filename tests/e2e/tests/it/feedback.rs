//! What the router says of itself, and what it tells its workers.

use std::collections::BTreeMap;

use config::PolicyName;
use policy::cost::PrefillCost;
use serde_json::json;
use sim_engine::{EngineConfig, Fault};
use tailroute::metrics::table::{Spec, TABLE};
use tailroute_e2e::client;
use tailroute_e2e::fleet::{Fleet, probe_often, quick};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::wait::{until, within};

/// Metrics of what does not happen in a quiet fleet of simulated engines, none of which was found.
const ABSENT: [&str; 10] = [
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
];

fn metrics_of_the_table() -> impl Iterator<Item = &'static Spec> {
    TABLE.iter().flat_map(|(_, specs)| *specs)
}

/// Time to first token is measured without any predictor: <https://github.com/llm-d/llm-d-router/issues/1498>.
#[tokio::test]
async fn the_metrics_page_has_what_operators_rely_on_each_explained() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        probe_often(config);
        config.learning.costs = false;
    })
    .await;
    let mut talk = Conversation::new(&words(1, 600));
    for turn in 0..2 {
        fleet.turn(&mut talk, &[], &words(turn, 20)).await;
    }
    // A branch that is used no more: gone, once it is known that what was used after it is gone.
    fleet.turn(&mut talk.clone(), &[], &words(20, 200)).await;
    // What only shows once something went wrong.
    let home = fleet.turn(&mut talk, &[], &words(3, 20)).await.engine;
    for turn in 0..3 {
        fleet.engines[home].set_fault(Fault {
            clear_cache: true,
            ..Fault::default()
        });
        fleet.turn(&mut talk, &[], &words(10 + turn, 20)).await;
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
        let signed = sample.name == "tailroute_time_to_first_token_error_quantile_seconds";
        assert!(
            sample.value.is_finite() && (signed || sample.value >= 0.0),
            "{sample:?}"
        );
    }
    assert_eq!(page.sum("tailroute_worker_ready", &[]), 2.0);
    assert_eq!(page.sum("tailroute_time_to_first_token_seconds_count", &[]), 7.0);
    assert_eq!(page.sum("tailroute_slo_turns_total", &[]), 7.0);
    assert_eq!(page.sum("tailroute_worker_in_flight", &[]), 0.0);
}

/// Metrics whose series grew without bound: <https://github.com/smg-project/smg/issues/2266>.
#[tokio::test]
async fn strangers_cannot_make_the_metrics_page_grow() {
    let fleet = Fleet::start(vec![quick()], |config| {
        // Its figures appear when they are first asked for, whoever else asks for what.
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
async fn a_worker_that_takes_hints_is_told_the_objective_when_it_is_met_and_when_it_comes_back() {
    let fleet = Fleet::start(vec![quick()], probe_often).await;
    let engine = &fleet.engines[0];
    let told = engine
        .stats()
        .objective
        .expect("it is told before it is given work");
    // 500 ms less 20 ms at 0.1 ms per token.
    assert!((told.xi_tokens - 4800.0).abs() < 1e-6, "{told:?}");
    assert_eq!(told.next_prompt_tokens as u64, 200);

    let worker = std::sync::Arc::clone(&fleet.router.app().fleet.workers()[0]);
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

#[tokio::test]
async fn a_worker_is_told_that_a_conversation_has_moved_away() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.routing.policy = PolicyName::RoundRobin;
    })
    .await;
    for named in [&[][..], &[("x-session-id", "wanderer")]] {
        let mut talk = Conversation::new(&words(named.len() as u64, 300));
        let applied = |engine: usize| fleet.engines[engine].stats().memory.hints_applied;
        let old = fleet.turn(&mut talk, named, &words(10, 50)).await.engine;
        let before = applied(old);
        let new = fleet.turn(&mut talk, named, &words(11, 50)).await.engine;
        assert_ne!(old, new);
        let engine = &fleet.engines[old];
        let stats = within(engine.stats_when(|stats| stats.memory.hints_applied > before)).await;
        assert!(
            stats.cache_evict_first_tokens >= 300,
            "all that it holds of it may go first"
        );
    }
    let labels = [("kind", "moved"), ("delivered", "true")];
    within(async {
        while fleet.metrics().await.sum("tailroute_hints_total", &labels) < 2.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The old copy is what a conversation comes back to where all are busy: ρ from 0.6 on, docs/routing.md.
#[tokio::test]
async fn a_busy_worker_is_not_told_that_a_conversation_has_moved_away() {
    for (beta_ms, moves) in [(20_000.0, 0.0), (20.0, 1.0)] {
        let fleet = Fleet::start(vec![quick(); 2], |config| {
            config.routing.policy = PolicyName::RoundRobin;
            // A turn of 20 s within the last minute is a third of a worker's time, or, as it is young, more than all.
            config.learning.costs = false;
            for worker in &mut config.workers {
                worker.cost = PrefillCost::linear(0.0001, beta_ms);
            }
        })
        .await;
        let delivered = |kind: &'static str| {
            let fleet = &fleet;
            async move {
                let labels = [("kind", kind), ("delivered", "true")];
                fleet.metrics().await.sum("tailroute_hints_total", &labels)
            }
        };
        let mut talk = Conversation::new(&words(1, 300));
        let old = fleet.turn(&mut talk, &[], &words(10, 50)).await.engine;
        let last = [("x-session-end", "true")];
        let new = fleet.turn(&mut talk, &last, &words(11, 50)).await.engine;
        assert_ne!(old, new);
        // What the old worker is told after that, as it is told one thing after the other.
        let mut other = Conversation::new(&words(2, 300));
        assert_eq!(fleet.turn(&mut other, &last, &words(12, 50)).await.engine, old);
        within(async {
            while delivered("ended").await < 2.0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(delivered("moved").await, moves, "beta {beta_ms} ms");
    }
}

#[tokio::test]
async fn a_turn_marks_its_own_free_tail_in_the_request_or_beside_it() {
    for in_request in [true, false] {
        let fleet = Fleet::start(vec![quick()], |config| {
            config.hints.in_request = in_request;
            // 1000 tokens fit in the objective, 200 of them are the next prompt's: 800 may be missing.
            config.objective.ttft = policy::units::Millis(120.0);
        })
        .await;
        let mut talk = Conversation::new(&words(1, 1500));
        fleet.turn(&mut talk, &[], &words(10, 50)).await;
        let engine = &fleet.engines[0];
        let stats = within(engine.stats_when(|stats| stats.cache_evict_first_tokens >= 700)).await;
        assert!(stats.cache_evict_first_tokens <= 816 + 64, "{stats:?}");
        assert_eq!(stats.memory.hints_applied > 0, !in_request);
    }
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

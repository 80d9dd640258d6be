//! Workers that fail temporarily: retries elsewhere, workers that are skipped, and workers that never are.
//!
//! The doc comments name public issues in which users of other routers met the failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use config::{Config, PolicyName};
use fleet::breaker::BreakerState;
use fleet::health::Probe;
use operator::events::EventKind;
use policy::units::Millis;
use serde_json::json;
use sim_engine::Fault;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, at_rest, metrics, probe_often, quick, route, stuck_in_decode};
use tailroute_e2e::silent::Silent;
use tailroute_e2e::talk::{MODEL, ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, within};

fn answers(status: u16) -> Fault {
    Fault {
        status: Some(status),
        ..Fault::default()
    }
}

fn in_turn(config: &mut Config) {
    config.routing.policy = PolicyName::RoundRobin;
    // Forever, for the duration of a test.
    config.failure.breaker_pause = Millis(1e9);
    config.failure.breaker_longest_pause = Millis(1e9);
}

pub(crate) fn standing(fleet: &Fleet, engine: usize) -> BreakerState {
    let parts = fleet.router.parts();
    parts.state.routing.fleet.workers()[engine]
        .condition(parts.state.routing.clock.now())
        .breaker
}

/// Sends requests that are all different: one that is repeated counts once for a breaker.
async fn statuses(fleet: &Fleet, count: u64) -> Vec<u16> {
    static SEED: AtomicU64 = AtomicU64::new(0);
    let mut all = Vec::new();
    for _ in 0..count {
        let seed = SEED.fetch_add(1, Ordering::Relaxed);
        let answer = fleet.chat(&[], &ask(&words(seed, 9), json!({}))).await;
        all.push(answer.status.as_u16());
    }
    all
}

/// A worker that answers invalid requests with 4xx is healthy: <https://github.com/vllm-project/router/pull/60>,
/// <https://github.com/sgl-project/sglang/issues/25811>.
#[tokio::test]
async fn no_number_of_client_errors_opens_a_breaker() {
    for status in [400, 404, 413, 422, 429, 501] {
        let fleet = Fleet::start(vec![quick(); 2], in_turn).await;
        for engine in &fleet.engines {
            engine.set_fault(answers(status));
        }
        assert_eq!(statuses(&fleet, 20).await, [status; 20]);
        assert_eq!(
            [0, 1].map(|engine| standing(&fleet, engine)),
            [BreakerState::Closed; 2]
        );
        fleet.at_rest().await;
    }
}

#[tokio::test]
async fn a_failing_worker_is_skipped_and_then_tried_with_one_request() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        in_turn(config);
        config.failure.breaker_pause = Millis(30.0);
    })
    .await;
    fleet.engines[0].set_fault(answers(500));
    let first = statuses(&fleet, 12).await;
    let failed = first.iter().filter(|status| **status == 500).count();
    // Five, and the trial requests since.
    assert!(failed >= 5, "{first:?}");
    let page = fleet.metrics().await;
    let name = fleet.router.parts().state.routing.fleet.workers()[0]
        .name()
        .to_owned();
    assert!(page.sum("tailroute_breaker_opened_total", &[("worker", &name)]) >= 1.0);

    let mut events = fleet.router.parts().state.operations.operator.events.listen();
    fleet.engines[0].set_fault(Fault::default());
    until("it may be tried", || {
        standing(&fleet, 0) == BreakerState::HalfOpen
    })
    .await;
    within(async {
        while standing(&fleet, 0) != BreakerState::Closed {
            statuses(&fleet, 1).await;
        }
    })
    .await;
    let told = std::iter::from_fn(|| events.try_recv().ok()).last().unwrap();
    assert_eq!(
        (told.kind, told.subject.as_str(), &told.now["breaker"]),
        (EventKind::Breaker, name.as_str(), &"closed".into())
    );
    let before = fleet.received()[0];
    assert_eq!(statuses(&fleet, 8).await, [200; 8]);
    assert!(fleet.received()[0] > before, "it is used again");
    fleet.at_rest().await;
}

/// Elsewhere, breakers that open on invalid requests left no worker, and the router's own 503s were retried into a
/// storm: <https://github.com/vllm-project/vime/issues/371>, <https://github.com/vllm-project/vime/pull/350>.
#[tokio::test]
async fn half_of_the_workers_stay_in_use_however_many_fail() {
    for workers in [1, 2, 3, 4] {
        let fleet = Fleet::start(vec![quick(); workers], in_turn).await;
        for engine in &fleet.engines {
            engine.set_fault(answers(500));
        }
        assert_eq!(statuses(&fleet, 40).await, [500; 40], "{workers} workers");
        let before = fleet.received();
        assert_eq!(statuses(&fleet, 8).await, [500; 8]);
        let used = before
            .iter()
            .zip(fleet.received())
            .filter(|(before, after)| *before < after)
            .count();
        assert_eq!(used, workers - workers / 2, "{workers} workers");
        for engine in &fleet.engines {
            engine.set_fault(Fault::default());
        }
        assert_eq!(
            statuses(&fleet, 8).await,
            [200; 8],
            "none of them waits for a breaker"
        );
        fleet.at_rest().await;
    }
}

/// One request that fails everywhere opens at most one breaker, not one after another:
/// <https://github.com/vllm-project/vime/issues/371>.
#[tokio::test]
async fn a_request_that_fails_everywhere_is_charged_to_one_worker() {
    let fleet = Fleet::start(vec![quick(); 3], |config| {
        in_turn(config);
        config.failure.breaker_failures = 1;
        config.failure.breaker_share = 0.01;
    })
    .await;
    for engine in &fleet.engines {
        engine.set_fault(Fault {
            reset_before_first_byte: true,
            ..Fault::default()
        });
    }
    let answer = fleet
        .chat(&[("idempotency-key", "1")], &ask("hello", json!({})))
        .await;
    assert_eq!(answer.status, 502);
    assert_eq!(fleet.received(), [1, 1, 1], "it was tried everywhere");
    let opened = fleet.metrics().await.sum("tailroute_breaker_opened_total", &[]);
    assert_eq!(opened, 1.0);
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_lost_connection_is_retried_only_for_idempotent_requests() {
    let fleet = Fleet::start(vec![quick(); 2], in_turn).await;
    fleet.engines[0].set_fault(Fault {
        reset_before_first_byte: true,
        ..Fault::default()
    });
    let mut seen = Vec::new();
    for (key, engine) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let headers: &[(&str, &str)] = if key { &[("idempotency-key", "7")] } else { &[] };
        let text = format!("hello {key} {engine}");
        let answer = fleet.chat(headers, &ask(&text, json!({}))).await;
        seen.push((key, engine, answer.status.as_u16()));
    }
    let with_key: Vec<u16> = seen
        .iter()
        .filter(|(key, ..)| *key)
        .map(|(.., status)| *status)
        .collect();
    assert_eq!(with_key, [200, 200]);
    let failed = seen.iter().filter(|(.., status)| *status == 502).count();
    assert_eq!(failed, 1, "{seen:?}");
    fleet.at_rest().await;
}

#[tokio::test]
async fn an_embedding_is_retried_when_its_worker_dies() {
    let mut upstreams = [Upstream::start().await, Upstream::start().await];
    let router = route(&[upstreams[0].address, upstreams[1].address], |_| {}).await;
    let asking = client::call(router.address, "POST", "/v1/embeddings", &[], r#"{"input":"x"}"#);
    let respond = async {
        let [one, other] = &mut upstreams;
        let (exchange, other) = tokio::select! {
            exchange = one.next() => (exchange, other),
            exchange = other.next() => (exchange, one),
        };
        assert_eq!(exchange.body, br#"{"input":"x"}"#);
        exchange.reset();
        let again = other.next().await;
        assert_eq!(again.body, br#"{"input":"x"}"#, "the same bytes");
        again.answer("200 OK", r#"{"data":[]}"#).await;
    };
    let (answer, ()) = tokio::join!(asking, respond);
    assert_eq!((answer.status.as_u16(), answer.text()), (200, r#"{"data":[]}"#));
    at_rest(&router).await;
}

#[tokio::test]
async fn retries_beyond_the_budget_are_refused() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        in_turn(config);
        config.failure.retry_share = 0.0;
        config.failure.retry_floor_per_s = 0.2;
        config.failure.breaker_failures = 1000;
    })
    .await;
    fleet.engines[0].set_fault(answers(503));
    let all = statuses(&fleet, 16).await;
    let refused = all.iter().filter(|status| **status == 503).count();
    // The budget allows two retries, and perhaps one more over time; after that every other request fails.
    assert!((5..=7).contains(&refused), "{all:?}");
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_retries_refused_total", &[]), refused as f64);
    fleet.at_rest().await;
}

/// Requests in flight are counted until they end, whatever probes find and however long it takes: health checks that
/// reset counts (<https://github.com/vllm-project/router/issues/197>) and a reaper of old ones
/// (<https://github.com/llm-d/llm-d-router/issues/2295>) made busy workers look idle.
#[tokio::test]
async fn a_request_is_counted_until_its_end() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |_| {}).await;
    let mut streams = Vec::new();
    for seed in 0..3 {
        let body = ask(&words(seed, 9), json!({ "stream": true }));
        let mut answer = fleet.open(&[], &body).await;
        answer.chunk().await.unwrap().unwrap();
        streams.push(answer);
    }
    let parts = fleet.router.parts();
    let worker = &parts.state.routing.fleet.workers()[0];
    for probe in [Probe::Bad, Probe::Late, Probe::Well]
        .into_iter()
        .cycle()
        .take(60)
    {
        for _ in 0..8 {
            parts.state.note_health(worker, probe);
        }
        assert_eq!(worker.with_load(|load| load.in_flight), 3);
    }
    drop(streams);
    fleet.at_rest().await;
}

/// A worker that misses probes while it streams is busy, not dead: <https://github.com/sgl-project/sglang/pull/9198>.
#[tokio::test]
async fn a_streaming_worker_stays_ready_despite_missed_probes() {
    const TOKENS: u64 = 150;
    let engine = sim_engine::EngineConfig {
        time_scale: 1.0,
        tpot_ms: 5.0,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], |config| {
        config.health.interval = Duration::from_millis(60);
        config.health.timeout = Duration::from_millis(30);
        config.health.queue_interval = None;
    })
    .await;
    let worker = &fleet.router.parts().state.routing.fleet.workers()[0];
    let body = ask("go on", json!({ "stream": true, "max_tokens": TOKENS }));
    let mut answer = fleet.open(&[], &body).await;
    answer.chunk().await.unwrap().unwrap();
    fleet.engines[0].set_fault(Fault {
        hang: true,
        ..Fault::default()
    });
    while let Some(chunk) = answer.chunk().await {
        chunk.unwrap();
        assert!(worker.is_ready(), "it sends");
    }
    until("it neither sends nor answers", || !worker.is_ready()).await;
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_worker_with_fewer_requests_than_counted_is_reported() {
    let none = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n";
    let mut upstream = Upstream::saying(&[("/metrics", none)]).await;
    let router = route(&[upstream.address], probe_often).await;
    let body = ask("hello", json!({ "stream": true })).to_string();
    let asking = client::open(router.address, "POST", CHAT, &[], body);
    let respond = async {
        let mut exchange = upstream.next().await;
        exchange.begin_events().await;
        exchange
    };
    let (answer, exchange) = tokio::join!(asking, respond);
    within(async { while metrics(&router).await.sum("tailroute_in_flight_drift_total", &[]) == 0.0 {} })
        .await;
    drop((answer, exchange));
    at_rest(&router).await;
}

#[tokio::test]
async fn a_recovered_worker_gets_load_gradually() {
    let fleet = Fleet::start(vec![stuck_in_decode(); 2], |config| {
        probe_often(config);
        config.routing.policy = PolicyName::LeastLoaded;
        // So long that some requests come early in it, even on a busy machine.
        config.failure.slow_start = Millis(3_000.0);
    })
    .await;
    let parts = fleet.router.parts();
    let workers = parts.state.routing.fleet.workers();
    let started = |at: usize| workers[at].condition(parts.state.routing.clock.now()).started >= 1.0;
    until("both have started", || started(0) && started(1)).await;
    let mut streams = Vec::new();
    for seed in 0..12 {
        streams.push(
            fleet
                .open(&[], &ask(&words(seed, 9), json!({ "stream": true })))
                .await,
        );
    }
    // As a worker that has just come back.
    let home = fleet.engine_of(&streams[0].worker());
    fleet.kill(home).await;
    until("it is out", || !workers[home].is_ready()).await;
    until("its streams are gone", || {
        workers[home].with_load(|load| load.in_flight) == 0
    })
    .await;
    fleet.engines[home].set_fault(Fault::default());
    until("it is back", || workers[home].is_ready()).await;
    let mut kept = Vec::new();
    let mut refused = 0;
    while !started(home) {
        let condition = workers[home].condition(parts.state.routing.clock.now());
        let busiest = workers[1 - home].with_load(|load| load.in_flight);
        let answer = fleet.open(&[], &ask("again", json!({ "stream": true }))).await;
        if fleet.engine_of(&answer.worker()) == 1 - home {
            refused += 1;
        }
        let has = workers[home].with_load(|load| load.in_flight);
        let later = workers[home].condition(parts.state.routing.clock.now()).started;
        assert!(
            f64::from(has) <= (later * f64::from(busiest + 2)).max(1.0),
            "{has} beside {busiest}, at {} to {later}",
            condition.started
        );
        kept.push(answer);
        if kept.len() > 100 {
            break;
        }
    }
    assert!(
        refused > 0 || kept.is_empty(),
        "least loaded would have sent all to it"
    );
    drop((streams, kept));
    fleet.at_rest().await;
}

/// A worker that accepts no connections delays only the request that is sent to it, and only until the connect
/// timeout: <https://github.com/vllm-project/production-stack/issues/749>.
#[tokio::test]
async fn a_worker_that_accepts_no_connections_delays_only_its_own_request() {
    let mut silent = Silent::start().await;
    let fleet = sim_engine::Engine::start(quick()).await.unwrap();
    let router = route(&[silent.address, fleet.addr()], |config| {
        in_turn(config);
        let named = |worker: &mut config::Worker| worker.models = vec![MODEL.to_owned()];
        config.workers.iter_mut().for_each(named);
        config.limits.connect_timeout = Duration::from_millis(50);
    })
    .await;
    silent.fall_silent().await;
    let body = ask("hello", json!({})).to_string();
    for _ in 0..6 {
        let answer = client::call(router.address, "POST", CHAT, &[], body.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let page = metrics(&router).await;
    assert!(page.sum("tailroute_retries_total", &[]) >= 1.0);
    at_rest(&router).await;
}

/// A retry that finds only workers with open breakers is better than an error.
#[tokio::test]
async fn a_retry_uses_a_worker_with_an_open_breaker_rather_than_failing() {
    let fleet = Fleet::start(vec![quick(); 2], in_turn).await;
    fleet.engines[0].set_fault(answers(500));
    while standing(&fleet, 0) != BreakerState::Open {
        statuses(&fleet, 1).await;
    }
    fleet.engines[0].set_fault(Fault::default());
    fleet.engines[1].set_fault(Fault {
        die: true,
        ..Fault::default()
    });
    assert_eq!(statuses(&fleet, 1).await, [200]);
    fleet.at_rest().await;
}

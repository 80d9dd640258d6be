//! Faults behind the router, and their visibility to clients.

use std::sync::Arc;
use std::time::Duration;

use config::{Config, PolicyName};
use fleet::Worker;
use serde_json::json;
use sim_engine::Fault;
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, code_of};
use tailroute_e2e::fleet::{
    Fleet, NEVER_MS, at_rest, configured, probe_often, quick, route, stuck_in_decode,
};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::until;
use tokio::net::TcpSocket;

fn answers(status: u16) -> Fault {
    Fault {
        status: Some(status),
        ..Fault::default()
    }
}

fn in_turn(config: &mut Config) {
    config.routing.policy = PolicyName::RoundRobin;
}

fn worker(fleet: &Fleet, engine: usize) -> Arc<Worker> {
    Arc::clone(&fleet.router.parts().state.routing.fleet.workers()[engine])
}

#[tokio::test]
async fn a_dead_workers_turns_move_without_errors_and_it_returns_with_a_cold_cache() {
    let fleet = Fleet::start(vec![quick(); 3], |config| {
        probe_often(config);
        // Routing must depend on the caches, not on this machine's speed.
        config.learning.costs = false;
        config.health.queue_interval = None;
    })
    .await;
    let mut talk = Conversation::new(&words(1, 300));
    let home = fleet.turn(&mut talk, &[], &words(2, 50)).await.engine;
    fleet.kill(home).await;
    let refuge = fleet.turn(&mut talk, &[], &words(3, 50)).await.engine;
    assert_ne!(refuge, home);

    let worker = worker(&fleet, home);
    until("the dead worker is out of rotation", || !worker.is_ready()).await;
    let retried = fleet.metrics().await.sum("tailroute_retries_total", &[]);
    for seed in 0..6 {
        let mut other = Conversation::new(&words(10 + seed, 30));
        assert_ne!(fleet.turn(&mut other, &[], &words(2, 50)).await.engine, home);
    }
    let page = fleet.metrics().await;
    assert_eq!(
        page.sum("tailroute_retries_total", &[]),
        retried,
        "it is not even tried"
    );
    let held = |page: &tailroute_e2e::metrics::Page| {
        page.sum("tailroute_worker_resident_tokens", &[("worker", worker.name())])
    };
    assert_eq!(held(&page), 0.0, "what it held is forgotten");

    fleet.engines[home].set_fault(Fault::default());
    until("it is back", || worker.is_ready()).await;
    assert_eq!(fleet.turn(&mut talk, &[], &words(4, 50)).await.engine, refuge);
    let before = fleet.received()[home];
    for seed in 0..6 {
        let mut other = Conversation::new(&words(20 + seed, 30));
        fleet.turn(&mut other, &[], &words(2, 50)).await;
    }
    assert!(fleet.received()[home] > before, "it is used again");
    assert!(held(&fleet.metrics().await) > 0.0);
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    let chats = page.sum("tailroute_requests_total", &[("endpoint", "chat")]);
    assert_eq!(
        chats,
        page.sum(
            "tailroute_requests_total",
            &[("endpoint", "chat"), ("outcome", "ok")]
        )
    );
}

/// Elsewhere, a cleared cache was not detected: <https://github.com/sgl-project/sglang/issues/7773>,
/// <https://github.com/vllm-project/router/issues/294>.
#[tokio::test]
async fn a_cleared_cache_is_detected_and_relearned() {
    let fleet = Fleet::start(vec![quick()], |_| {}).await;
    let mut talks: Vec<Conversation> = (0..4).map(|seed| Conversation::new(&words(seed, 600))).collect();
    for (at, talk) in (10..).zip(&mut talks) {
        fleet.turn(talk, &[], &words(at, 50)).await;
        fleet.at_rest().await;
    }
    fleet.engines[0].set_fault(Fault {
        clear_cache: true,
        ..Fault::default()
    });
    // One response without hits may be an exception. A second one is not, and everything used before both counts as
    // evicted too.
    let predicted = || async {
        let page = fleet.metrics().await;
        page.sum("tailroute_prompt_tokens_total", &[("kind", "predicted_cached")])
    };
    let mut wrong = Vec::new();
    for at in [3, 2, 1, 0] {
        let before = predicted().await;
        let turned = fleet.turn(&mut talks[at], &[], &words(20, 50)).await;
        fleet.at_rest().await;
        assert_eq!(turned.cached, 0);
        wrong.push(predicted().await - before > 0.0);
    }
    assert_eq!(wrong, [true, true, false, false]);
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_mirror_corrections_total", &[]), 1.0);
}

#[tokio::test]
async fn a_slow_worker_gets_few_further_turns() {
    let fleet = Fleet::of(2).await;
    fleet.engines[0].set_fault(Fault {
        slow: NEVER_MS,
        ..Fault::default()
    });
    let mut running = Vec::new();
    for seed in 0..20 {
        let body = ask(&words(seed, 20), json!({})).to_string();
        let request = tokio::spawn(client::open(fleet.address(), "POST", CHAT, &[], body));
        until("it is answered, or where it will not be", || {
            request.is_finished() || fleet.received()[0] > running.len() as u64
        })
        .await;
        if !request.is_finished() {
            running.push(request);
        }
    }
    // A late request may finish at any moment; with a second one queued, the other worker is the better choice.
    assert!(running.len() <= 2, "{:?}", fleet.received());
    for request in running {
        request.abort();
        drop(request.await);
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_worker_that_answers_503_is_skipped() {
    let fleet = Fleet::start(vec![quick(); 2], in_turn).await;
    fleet.engines[0].set_fault(answers(503));
    for seed in 0..4 {
        let answer = fleet.chat(&[], &ask(&words(seed, 9), json!({}))).await;
        assert_eq!(
            (answer.status.as_u16(), fleet.engine_of(&answer.worker())),
            (200, 1)
        );
    }
    let page = fleet.metrics().await;
    let name = worker(&fleet, 0).name().to_owned();
    assert!(page.sum("tailroute_retries_total", &[("worker", &name)]) >= 2.0);
    assert_eq!(
        page.sum("tailroute_requests_total", &[]),
        4.0,
        "each request counts once"
    );
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_503_of_every_worker_is_forwarded() {
    for workers in [1, 2, 4] {
        let fleet = Fleet::start(vec![quick(); workers], in_turn).await;
        for engine in &fleet.engines {
            engine.set_fault(answers(503));
        }
        let answer = fleet.chat(&[], &ask("hello", json!({}))).await;
        assert_eq!(answer.status, 503, "{workers} workers: {}", answer.text());
        assert!(answer.json()["error"]["message"].is_string());
        assert_eq!(fleet.received().iter().sum::<u64>(), workers.min(3) as u64);
        fleet.at_rest().await;
    }
}

#[tokio::test]
async fn a_workers_500_is_forwarded_and_not_retried() {
    let fleet = Fleet::start(vec![quick(); 2], in_turn).await;
    for engine in &fleet.engines {
        engine.set_fault(answers(500));
    }
    let answer = fleet.chat(&[], &ask("hello", json!({}))).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["message"], "This failure was requested.");
    assert_eq!(fleet.received().iter().sum::<u64>(), 1);
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_reset_before_the_first_byte_is_a_502_and_not_retried_since_the_worker_may_have_begun() {
    for reused in [false, true] {
        let fleet = Fleet::start(vec![quick(); 2], in_turn).await;
        if reused {
            for seed in 0..2 {
                assert_eq!(
                    fleet.chat(&[], &ask(&words(seed, 9), json!({}))).await.status,
                    200
                );
            }
        }
        for engine in &fleet.engines {
            engine.set_fault(Fault {
                reset_before_first_byte: true,
                ..Fault::default()
            });
        }
        let before: u64 = fleet.received().iter().sum();
        for streamed in [false, true] {
            let answer = fleet
                .chat(&[], &ask("hello", json!({ "stream": streamed })))
                .await;
            assert_eq!(
                (answer.status.as_u16(), answer.error_code().as_str()),
                (502, "worker_failed")
            );
        }
        assert_eq!(fleet.received().iter().sum::<u64>(), before + 2, "one each");
        fleet.at_rest().await;
    }
}

#[tokio::test]
async fn a_worker_that_does_not_answer_in_time_is_a_504() {
    let fleet = Fleet::start(vec![quick(); 2], |config| {
        config.limits.first_byte_timeout = Duration::from_millis(500);
    })
    .await;
    for engine in &fleet.engines {
        engine.set_fault(Fault {
            hang: true,
            ..Fault::default()
        });
    }
    let answer = fleet.chat(&[], &ask("hello", json!({}))).await;
    assert_eq!(
        (answer.status.as_u16(), answer.error_code().as_str()),
        (504, "worker_timeout")
    );
    let passed = client::call(fleet.address(), "POST", "/tokenize", &[], "{}").await;
    assert_eq!(
        (passed.status.as_u16(), passed.error_code().as_str()),
        (504, "worker_timeout")
    );
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_truncated_stream_ends_with_an_error_event_and_is_not_terminated() {
    let fleet = Fleet::of(1).await;
    fleet.engines[0].set_fault(Fault {
        reset_after_tokens: Some(3),
        ..Fault::default()
    });
    let answer = fleet
        .chat(&[], &ask("hello", json!({ "stream": true, "max_tokens": 20 })))
        .await;
    assert_eq!(answer.status, 200, "it had begun well");
    assert!(!answer.clean, "the connection is cut, not ended");
    let events = answer.events();
    let (last, said) = events.split_last().unwrap();
    assert_eq!(code_of(last), "worker_failed");
    let said: String = said
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(said.split(' ').count(), 3, "all that was said arrives: {said}");
    fleet.at_rest().await;
    let page = fleet.metrics().await;
    assert_eq!(
        page.sum("tailroute_requests_total", &[("outcome", "broken")]),
        1.0
    );
}

#[tokio::test]
async fn a_truncated_response_is_not_terminated_for_the_client() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |_| {}).await;
    let body = ask("hello", json!({})).to_string();
    let request = client::open(router.address, "POST", CHAT, &[], body);
    let respond = async {
        let mut exchange = upstream.next().await;
        exchange
            .send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"choices\"")
            .await;
        exchange
    };
    let (answer, exchange) = tokio::join!(request, respond);
    let mut answer = answer.unwrap();
    assert_eq!(answer.bytes(10).await, b"{\"choices\"");
    exchange.reset();
    assert!(!answer.whole().await.clean);
    at_rest(&router).await;
}

#[tokio::test]
async fn a_silent_stream_times_out() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |config| {
        config.limits.idle_timeout = Duration::from_millis(50);
    })
    .await;
    let answer = fleet.chat(&[], &ask("hello", json!({ "stream": true }))).await;
    assert!(!answer.clean);
    assert_eq!(code_of(answer.events().last().unwrap()), "worker_timeout");
    let stats = fleet.engines[0].stats_when(|stats| stats.aborted.decode == 1);
    tailroute_e2e::wait::within(stats).await;
    fleet.at_rest().await;
}

#[tokio::test]
async fn without_a_worker_the_response_has_a_retry_after() {
    // A bound socket that does not listen reserves the port.
    let reserved = TcpSocket::new_v4().unwrap();
    reserved.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = reserved.local_addr().unwrap();
    let router = Server::start(configured(&[address])).await.unwrap();
    for (method, path, body) in [
        ("POST", CHAT, "{}"),
        ("GET", "/version", ""),
        ("POST", "/tokenize", "{}"),
    ] {
        let answer = client::call(router.address, method, path, &[], body).await;
        assert_eq!(
            (
                answer.status.as_u16(),
                answer.error_code().as_str(),
                answer.header("retry-after")
            ),
            (503, "no_worker_ready", Some("1")),
            "{path}"
        );
    }
    let ready = client::call(router.admin_address, "GET", "/readyz", &[], "").await;
    assert_eq!(ready.status, 503);
    let models = client::call(router.address, "GET", "/v1/models", &[], "").await;
    assert_eq!(
        (
            models.status.as_u16(),
            models.json()["data"].as_array().unwrap().len()
        ),
        (200, 0)
    );
    at_rest(&router).await;
}

/// Elsewhere, workers that were not ready kept getting traffic: <https://github.com/vllm-project/router/issues/279>,
/// <https://github.com/sgl-project/sglang/issues/32322>, <https://github.com/smg-project/smg/issues/1531>.
#[tokio::test]
async fn a_worker_that_fails_probes_gets_no_new_turns_and_finishes_its_own() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], probe_often).await;
    let body = ask("hello", json!({ "stream": true })).to_string();
    let request = client::open(router.address, "POST", CHAT, &[], body.clone());
    let respond = async {
        let mut exchange = upstream.next().await;
        exchange.begin_events().await;
        exchange
    };
    let (answer, mut exchange) = tokio::join!(request, respond);
    upstream.set_well(false);
    until("it is out of rotation", || {
        !router.parts().state.routing.fleet.any_ready()
    })
    .await;
    assert_eq!(
        client::call(router.address, "POST", CHAT, &[], body.clone())
            .await
            .status,
        503
    );
    exchange.chunk(b"data: [DONE]\n\n").await;
    exchange.end().await;
    let answer = answer.unwrap().whole().await;
    assert!(answer.clean && answer.body == "data: [DONE]\n\n");
    upstream.set_well(true);
    until("it is back", || router.parts().state.routing.fleet.any_ready()).await;
    at_rest(&router).await;
}

#[tokio::test]
async fn beyond_the_limit_of_requests_in_flight_the_router_sheds_and_recovers() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |config| {
        config.limits.max_in_flight = 2.try_into().unwrap();
    })
    .await;
    let body = ask("hello", json!({ "stream": true }));
    let first = fleet.open(&[], &body).await;
    let second = fleet.open(&[], &body).await;
    for _ in 0..3 {
        let shed = fleet.chat(&[], &body).await;
        assert_eq!(
            (
                shed.status.as_u16(),
                shed.error_code().as_str(),
                shed.header("retry-after")
            ),
            (503, "overloaded", Some("1"))
        );
    }
    drop(first);
    until("a place is free", || fleet.router.parts().proxy.in_flight() == 1).await;
    let third = fleet.open(&[], &body).await;
    assert_eq!(third.status, 200);
    drop((second, third));
    fleet.at_rest().await;
}

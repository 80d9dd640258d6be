//! Random actions of clients and workers in any order: each request ends, none is lost, and no resources are held
//! afterwards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use sim_engine::{EngineConfig, Fault};
use tailroute_e2e::client::{self, Answer, CHAT, code_of};
use tailroute_e2e::fleet::{Fleet, permits_are_back, probe_often, quick};
use tailroute_e2e::raw::{Wire, request};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::{until, within};
use tokio::task::JoinSet;

const ENGINES: usize = 3;
const MAX_IN_FLIGHT: usize = 32;
const SHORT: Duration = Duration::from_millis(60);

#[derive(Clone, Debug)]
enum Step {
    Request(Ask),
    Fault(usize, Fault),
    /// Yield this number of times.
    Pause(usize),
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Whole,
    Stream,
    /// Disconnect after yielding this number of times, answered or not.
    LeaveEarly(usize),
    /// Disconnect after this number of chunks.
    LeaveStream(usize),
    /// Disconnect within the body.
    LeaveSending,
    NoJson,
    UnknownModel,
    Passed,
    Models,
}

fn asks() -> impl Strategy<Value = Ask> {
    prop_oneof![
        4 => Just(Ask::Whole),
        4 => Just(Ask::Stream),
        2 => (0_usize..200).prop_map(Ask::LeaveEarly),
        2 => (0_usize..6).prop_map(Ask::LeaveStream),
        1 => Just(Ask::LeaveSending),
        1 => Just(Ask::NoJson),
        1 => Just(Ask::UnknownModel),
        1 => Just(Ask::Passed),
        1 => Just(Ask::Models),
    ]
}

fn faults() -> impl Strategy<Value = Fault> {
    let none = Fault::default;
    let kinds = prop_oneof![
        3 => Just(none()),
        1 => Just(Fault { status: Some(500), ..none() }),
        1 => Just(Fault { status: Some(503), ..none() }),
        1 => Just(Fault { reset_before_first_byte: true, ..none() }),
        1 => (1_u32..8).prop_map(move |tokens| Fault { reset_after_tokens: Some(tokens), ..none() }),
        1 => Just(Fault { hang: true, ..none() }),
        1 => Just(Fault { die: true, ..none() }),
        1 => Just(Fault { slow: 30.0, ..none() }),
        1 => Just(Fault { clear_cache: true, ..none() }),
        1 => Just(Fault { refuse_health: true, ..none() }),
    ];
    (kinds, prop_oneof![Just(0.5), Just(1.0)]).prop_map(|(fault, share)| Fault { share, ..fault })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => asks().prop_map(Step::Request),
        2 => (0..ENGINES, faults()).prop_map(|(engine, fault)| Step::Fault(engine, fault)),
        2 => (0_usize..300).prop_map(Step::Pause),
    ];
    prop::collection::vec(step, 20..80)
}

async fn pause(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

fn body(seed: u64, extra: Value) -> String {
    // Few system prompts, so that prefixes are shared.
    let text = format!("{}{}", words(seed % 3, 100), words(seed, 30));
    tailroute_e2e::talk::with(ask(&text, json!({ "max_tokens": 12 })), extra).to_string()
}

/// Checks the response of a client that stays to the end: an unstreamed response, an error in OpenAI's format, or a
/// stream that reports how it broke off.
fn check(what: Ask, answer: &client::Whole) {
    let status = answer.status.as_u16();
    match what {
        Ask::NoJson => assert!(status == 400 || status == 503, "{answer:?}"),
        Ask::UnknownModel => assert!(status == 404 || status == 503, "{answer:?}"),
        _ => assert!(matches!(status, 200 | 500 | 502 | 503 | 504), "{answer:?}"),
    }
    if status != 200 {
        assert!(answer.clean, "{answer:?}");
        assert!(answer.json()["error"]["message"].is_string(), "{answer:?}");
        return;
    }
    match what {
        Ask::Stream => {
            let events = answer.events();
            let last = events.last().expect("an event");
            if answer.clean {
                assert_eq!(last, "[DONE]");
            } else {
                assert!(["worker_failed", "worker_timeout"].contains(&code_of(last).as_str()));
            }
        }
        Ask::Whole => assert!(!answer.clean || answer.json()["usage"].is_object()),
        _ => {}
    }
}

async fn post(address: SocketAddr, seed: u64, extra: Value) -> Answer {
    client::open(address, "POST", CHAT, &[], body(seed, extra))
        .await
        .expect("an answer, whatever happens")
}

async fn act(address: SocketAddr, what: Ask, seed: u64) {
    let streamed = json!({ "stream": true });
    match what {
        Ask::Whole => check(what, &post(address, seed, json!({})).await.whole().await),
        Ask::Stream => check(what, &post(address, seed, streamed).await.whole().await),
        Ask::LeaveEarly(turns) => {
            tokio::select! {
                biased;
                () = pause(turns) => {}
                answer = post(address, seed, streamed) => drop(answer),
            }
        }
        Ask::LeaveStream(chunks) => {
            let mut answer = post(address, seed, streamed).await;
            for _ in 0..chunks {
                if !matches!(answer.chunk().await, Some(Ok(_))) {
                    break;
                }
            }
        }
        Ask::LeaveSending => {
            let mut wire = Wire::connect(address).await;
            wire.write(&request(
                &format!("POST {CHAT}"),
                &["content-length: 500"],
                "{\"model\":",
            ))
            .await;
        }
        Ask::NoJson => check(what, &client::call(address, "POST", CHAT, &[], "{").await),
        Ask::UnknownModel => {
            let model = json!({ "model": "unheard-of" });
            check(what, &post(address, seed, model).await.whole().await);
        }
        Ask::Passed => {
            let body = "{\"prompt\":\"one two\"}";
            check(what, &client::call(address, "POST", "/tokenize", &[], body).await);
        }
        Ask::Models => check(what, &client::call(address, "GET", "/v1/models", &[], "").await),
    }
}

async fn play(steps: Vec<Step>) {
    let engine = EngineConfig {
        time_scale: 100.0,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine; ENGINES], |config| {
        probe_often(config);
        // So that probes of a hung engine end as well.
        config.health.timeout = Duration::from_millis(500);
        config.limits.first_byte_timeout = SHORT;
        config.limits.idle_timeout = SHORT;
        config.limits.max_in_flight = MAX_IN_FLIGHT.try_into().unwrap();
    })
    .await;
    let mut running = JoinSet::new();
    for (seed, step) in (0..).zip(steps) {
        match step {
            Step::Request(what) => {
                running.spawn(act(fleet.address(), what, seed));
            }
            Step::Fault(engine, fault) => fleet.engines[engine].set_fault(fault),
            Step::Pause(turns) => pause(turns).await,
        }
    }
    within(async {
        while let Some(ended) = running.join_next().await {
            ended.expect("each request ends as it should");
        }
    })
    .await;
    fleet.at_rest().await;

    for engine in &fleet.engines {
        engine.set_fault(Fault::default());
        within(engine.stats_when(|stats| stats.running + stats.waiting == 0)).await;
    }
    let parts = fleet.router.parts();
    until("all are back", || parts.state.routing.fleet.are_all_ready()).await;
    permits_are_back(&fleet.router, MAX_IN_FLIGHT).await;
    for seed in 0..ENGINES as u64 {
        // On a busy machine, a request may exceed these short limits.
        within(async { while post(fleet.address(), seed, json!({})).await.status != 200 {} }).await;
    }
    let parts = Arc::clone(parts);
    assert_eq!(within(fleet.router.drain()).await, 0);
    assert_eq!(parts.proxy.in_flight(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        // A script does not determine how threads interleave, so shrinking would chase a race that is gone.
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_ends_and_leaks_nothing_under_random_actions(steps in steps()) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(play(steps));
    }
}

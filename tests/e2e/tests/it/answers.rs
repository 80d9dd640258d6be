//! What workers' answers mean: refusals for lack of room, and errors in the body of a response of 200.
//!
//! The doc comments name public issues in which users of other routers met the failure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use config::{Config, PolicyName};
use fleet::breaker::BreakerState;
use policy::units::Millis;
use serde_json::json;
use tailroute::serve::Server;
use tailroute_e2e::client::{self, CHAT, Whole};
use tailroute_e2e::fleet::{at_rest, metrics, route};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::{Exchange, Upstream};

const BUSY: &str = r#"{"error":{"message":"The engine has reached its prefill token backlog limit. Please try again later or on a different instance.","type":"ServiceUnavailableError","param":null,"code":503}}"#;
const DEAD: &str = r#"{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}"#;
const INVALID: &str =
    r#"{"error":{"message":"The prompt is too long.","type":"BadRequestError","param":null,"code":400}}"#;
const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
const TOKEN: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}"#;
const LAST: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const GOOD: &str =
    r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;

/// A worker whose every answer a function writes.
struct Scripted {
    address: SocketAddr,
    received: Arc<AtomicUsize>,
}

impl Scripted {
    async fn start<F>(answer: impl Fn(Exchange) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut upstream = Upstream::start().await;
        let (address, received) = (upstream.address, Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&received);
        tokio::spawn(async move {
            loop {
                let exchange = upstream.next().await;
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer(exchange));
            }
        });
        Self { address, received }
    }

    fn received(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }
}

fn is_stream(exchange: &Exchange) -> bool {
    String::from_utf8_lossy(&exchange.body).contains("\"stream\":true")
}

async fn events(mut exchange: Exchange, events: &[&str]) {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    exchange.begin_events().await;
    exchange.chunk(body.as_bytes()).await;
    exchange.end().await;
}

/// Answers as an engine that works.
async fn serve(exchange: Exchange) {
    if is_stream(&exchange) {
        events(exchange, &[ROLE, TOKEN, LAST, "[DONE]"]).await;
    } else {
        exchange.answer("200 OK", GOOD).await;
    }
}

fn in_turn(config: &mut Config) {
    config.routing.policy = PolicyName::RoundRobin;
    // Forever, for the duration of a test.
    config.failure.breaker_pause = Millis(1e9);
    config.failure.breaker_longest_pause = Millis(1e9);
}

async fn chat(router: &Server, text: &str, stream: bool) -> Whole {
    let body = ask(text, json!({ "stream": stream })).to_string();
    client::call(router.address, "POST", CHAT, &[], body).await
}

async fn outcomes(router: &Server, outcome: &str) -> f64 {
    metrics(router)
        .await
        .sum("tailroute_requests_total", &[("outcome", outcome)])
}

async fn opened(router: &Server) -> f64 {
    metrics(router).await.sum("tailroute_breaker_opened_total", &[])
}

/// An engine that refuses for lack of room is healthy: <https://github.com/sgl-project/sglang/issues/39464>.
#[tokio::test]
async fn a_refused_request_is_sent_elsewhere_and_no_breaker_counts_it() {
    for (status, stream) in [
        ("503 x", false),
        ("429 x", false),
        ("200 OK", true),
        ("200 OK", false),
    ] {
        let full = Scripted::start(move |exchange| async move {
            if stream {
                events(exchange, &[BUSY, "[DONE]"]).await;
            } else {
                exchange.answer(status, BUSY).await;
            }
        })
        .await;
        let free = Scripted::start(serve).await;
        let router = route(&[full.address, free.address], in_turn).await;
        for seed in 0..12 {
            let answer = chat(&router, &words(seed, 9), stream).await;
            assert_eq!(answer.status, 200, "{status} {answer:?}");
            assert!(!answer.text().contains("error"), "{answer:?}");
        }
        assert!(full.received() >= 1, "{status}");
        assert_eq!(
            (opened(&router).await, outcomes(&router, "ok").await),
            (0.0, 12.0)
        );
        at_rest(&router).await;
    }
}

#[tokio::test]
async fn a_request_that_all_workers_refuse_is_answered_with_retry_after() {
    for (status, stream, code) in [
        ("503 x", false, 503),
        ("429 x", false, 429),
        ("200 OK", true, 503),
    ] {
        let full = move |exchange: Exchange| async move {
            if stream {
                events(exchange, &[BUSY, "[DONE]"]).await;
            } else {
                exchange.answer(status, BUSY).await;
            }
        };
        let workers = [Scripted::start(full).await, Scripted::start(full).await];
        let router = route(&[workers[0].address, workers[1].address], in_turn).await;
        for seed in 0..20 {
            let answer = chat(&router, &words(seed, 9), stream).await;
            assert_eq!(
                (answer.status.as_u16(), answer.header("retry-after")),
                (code, Some("1")),
                "{answer:?}"
            );
        }
        assert!(
            workers.iter().all(|worker| worker.received() >= 4),
            "none is given up"
        );
        assert_eq!(
            (opened(&router).await, outcomes(&router, "declined").await),
            (0.0, 20.0)
        );
        at_rest(&router).await;
    }
}

#[tokio::test]
async fn a_worker_that_refused_gets_fewer_requests_and_is_used_again_when_it_has_room() {
    let is_full = Arc::new(AtomicBool::new(true));
    let fullness = Arc::clone(&is_full);
    let worker = Scripted::start(move |exchange| {
        let is_full = fullness.load(Ordering::SeqCst);
        async move {
            if is_full {
                exchange.answer("503 x", BUSY).await;
            } else {
                serve(exchange).await;
            }
        }
    })
    .await;
    let other = Scripted::start(serve).await;
    let router = route(&[worker.address, other.address], in_turn).await;
    for seed in 0..100 {
        assert_eq!(chat(&router, &words(seed, 9), false).await.status, 200);
    }
    assert!(worker.received() < 50, "{} of 100", worker.received());
    is_full.store(false, Ordering::SeqCst);
    let before = worker.received();
    tokio::time::timeout(tailroute_e2e::wait::PATIENCE, async {
        while worker.received() == before {
            assert_eq!(chat(&router, &words(1_000, 9), false).await.status, 200);
        }
    })
    .await
    .expect("it is used again");
    at_rest(&router).await;
}

/// An engine that is dead and answers with errors at once looks like the fastest worker:
/// <https://github.com/sgl-project/sglang/issues/38737>.
#[tokio::test]
async fn a_dead_engine_that_answers_first_fails_few_turns_whatever_the_form() {
    for (form, healthy_turns) in [
        ("status", 0),
        ("event", 0),
        ("event", 100),
        ("event after the role", 0),
        ("whole", 100),
    ] {
        let left = Arc::new(AtomicUsize::new(healthy_turns));
        let is_dead = move || {
            let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |turns| turns.checked_sub(1));
            before.is_err()
        };
        let dead = Scripted::start(move |exchange| {
            let form = if is_dead() { form } else { "healthy" };
            async move {
                match form {
                    "healthy" => serve(exchange).await,
                    "status" => exchange.answer("500 x", DEAD).await,
                    "event" => events(exchange, &[DEAD, "[DONE]"]).await,
                    "whole" => exchange.answer("200 OK", DEAD).await,
                    _ => events(exchange, &[ROLE, DEAD, "[DONE]"]).await,
                }
            }
        })
        .await;
        let slow = |exchange| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            serve(exchange).await;
        };
        let [one, two] = [Scripted::start(slow).await, Scripted::start(slow).await];
        let router = route(&[dead.address, one.address, two.address], |_| {}).await;
        let mut failed = 0;
        let mut seed = 1_000;
        while dead.received() < healthy_turns {
            assert_eq!(chat(&router, &words(seed, 9), form != "whole").await.status, 200);
            seed += 1;
        }
        for seed in 0..400 {
            let answer = chat(&router, &words(seed, 9), form != "whole").await;
            failed += usize::from(answer.status != 200 || answer.text().contains("error"));
        }
        assert!(
            failed <= 20,
            "{form} after {healthy_turns}: {failed} of 400 failed"
        );
        let outcome = if form == "status" {
            "worker_error"
        } else {
            "error_in_body"
        };
        assert_eq!(outcomes(&router, outcome).await, failed as f64, "{form}");
        assert!(opened(&router).await >= 1.0, "{form}");
        at_rest(&router).await;
    }
}

#[tokio::test]
async fn an_error_in_a_stream_is_the_last_one_and_is_judged_by_its_code() {
    for (error, outcome, charged) in [(DEAD, "error_in_body", true), (INVALID, "client_error", false)] {
        for before in [&[ROLE][..], &[ROLE, TOKEN]] {
            for is_cut in [false, true] {
                let sent = [before, &[error]].concat();
                let worker = Scripted::start(move |mut exchange| {
                    let body: String = sent.iter().map(|event| format!("data: {event}\n\n")).collect();
                    async move {
                        exchange.begin_events().await;
                        exchange.chunk(body.as_bytes()).await;
                        if !is_cut {
                            exchange.end().await;
                        }
                    }
                })
                .await;
                let router = route(&[worker.address], |config| {
                    in_turn(config);
                    config.failure.breaker_failures = 1;
                })
                .await;
                let answer = chat(&router, "hello", true).await;
                let errors = answer.text().matches("\"error\"").count();
                assert_eq!(errors, 1, "{answer:?}");
                at_rest(&router).await;
                assert_eq!(
                    outcomes(&router, outcome).await,
                    1.0,
                    "{outcome} {before:?} {is_cut}"
                );
                let page = metrics(&router).await;
                let taught = page.sum("tailroute_time_to_first_token_seconds_count", &[]);
                assert!(taught == 0.0 || before.contains(&TOKEN), "{taught}");
                assert_eq!(opened(&router).await, f64::from(u8::from(charged)), "{outcome}");
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_after_tokens_says_so() {
    let worker = Scripted::start(|mut exchange| async move {
        exchange.begin_events().await;
        exchange.chunk(format!("data: {TOKEN}\n\n").as_bytes()).await;
    })
    .await;
    let router = route(&[worker.address], |_| {}).await;
    let answer = chat(&router, "hello", true).await;
    let events = answer.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], "worker_failed");
    assert!(
        error["message"].as_str().unwrap().contains("incomplete"),
        "{error}"
    );
    at_rest(&router).await;
}

/// One client's requests that fail everywhere are no worker's fault:
/// <https://github.com/sgl-project/sglang/issues/22980>.
#[tokio::test]
async fn requests_that_fail_wherever_they_are_sent_open_no_breaker() {
    let picky = |exchange: Exchange| async move {
        if String::from_utf8_lossy(&exchange.body).contains("poison") {
            exchange.answer("500 x", DEAD).await;
        } else {
            serve(exchange).await;
        }
    };
    let workers = [Scripted::start(picky).await, Scripted::start(picky).await];
    // The same body, again and again, and nothing else.
    let router = route(&[workers[0].address, workers[1].address], in_turn).await;
    for _ in 0..40 {
        assert_eq!(chat(&router, "poison", false).await.status, 500);
    }
    assert!(
        workers.iter().all(|worker| worker.received() >= 10),
        "it is tried on both"
    );
    assert_eq!(opened(&router).await, 0.0);
    // Different bodies beside other requests: four of five fail on both workers.
    for seed in 0..200 {
        assert_eq!(chat(&router, &words(seed, 9), false).await.status, 200);
        for part in 0..4 {
            let text = format!("poison {}", words(seed * 4 + part + 10_000, 9));
            chat(&router, &text, false).await;
        }
    }
    assert_eq!(opened(&router).await, 0.0);
    at_rest(&router).await;
}

/// A request that failed on a dead worker is sent to another one when it is repeated.
#[tokio::test]
async fn a_repeated_request_goes_to_a_worker_that_has_not_failed_it() {
    let dead = Scripted::start(|exchange| async move { exchange.answer("500 x", DEAD).await }).await;
    let free = Scripted::start(serve).await;
    let router = route(&[dead.address, free.address], |config| {
        in_turn(config);
        // The breaker leaves the worker in use.
        config.failure.breaker_failures = 1_000;
    })
    .await;
    let mut failed = 0;
    for _ in 0..20 {
        failed += usize::from(chat(&router, "hello", false).await.status != 200);
    }
    assert!(failed <= 1, "{failed}");
    let states = router.parts().state.routing.fleet.workers();
    let now = router.parts().state.routing.clock.now();
    assert_eq!(states[0].condition(now).breaker, BreakerState::Closed);
    at_rest(&router).await;
}

/// A request that is relayed unparsed is judged alike.
#[tokio::test]
async fn a_refusal_of_a_relayed_request_is_sent_elsewhere_and_no_breaker_counts_it() {
    let full = Scripted::start(|exchange| async move { exchange.answer("503 x", BUSY).await }).await;
    let free = Scripted::start(|exchange| async move { exchange.answer("200 OK", "{}").await }).await;
    let router = route(&[full.address, free.address], in_turn).await;
    for _ in 0..12 {
        let answer = client::call(router.address, "GET", "/v1/something", &[], Bytes::new()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert!(full.received() >= 1);
    assert_eq!(opened(&router).await, 0.0);
    at_rest(&router).await;
}

//! Authentication, limits per key, and queueing.

use std::time::Duration;

use config::{Config, Key, Rate};
use http::HeaderMap;
use operator::secret::hash;
use policy::units::Millis;
use serde_json::{Value, json};
use tailroute_e2e::client::{self, CHAT, Whole};
use tailroute_e2e::fleet::{Fleet, metrics, quick, route, stuck_in_decode};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::upstream::Upstream;
use tailroute_e2e::wait::{until, until_at_gate, within};

/// A key without limits.
pub(crate) fn key(name: &str) -> Key {
    Key {
        name: name.to_owned(),
        digest: hash(secret(name).as_bytes()),
        tenant: name.to_owned(),
        weight: 1.0,
        priority: 0,
        requests: None,
        tokens: None,
        explain: false,
    }
}

pub(crate) fn secret(name: &str) -> String {
    format!("tr-secret-of-{name}")
}

pub(crate) fn bearer(name: &str) -> String {
    format!("Bearer {}", secret(name))
}

/// Returns headers and bodies of the turns that reached the first engine, in order.
pub(crate) fn turns_seen(fleet: &Fleet) -> Vec<(HeaderMap, Value)> {
    let captured = fleet.engines[0].captured().into_iter();
    let turns = captured.filter(|seen| seen.uri.path() == CHAT);
    turns
        .map(|seen| (seen.headers, serde_json::from_slice(&seen.body).unwrap()))
        .collect()
}

async fn say(fleet: &Fleet, name: &str, body: &Value) -> Whole {
    fleet.chat(&[("authorization", &bearer(name))], body).await
}

fn one_at_a_time(config: &mut Config) {
    config.admission.max_concurrent_per_worker = std::num::NonZeroU32::new(1);
    config.health.queue_interval = None;
}

#[tokio::test]
async fn without_keys_all_requests_are_admitted_and_credentials_forwarded() {
    let fleet = Fleet::of(1).await;
    let answer = fleet
        .chat(&[("authorization", "Bearer mine")], &ask("hi", json!({})))
        .await;
    assert_eq!(answer.status, 200);
    let seen = turns_seen(&fleet).pop().unwrap();
    assert_eq!(seen.0["authorization"], "Bearer mine");
    assert!(seen.1.get("cache_salt").is_none());
}

#[tokio::test]
async fn a_missing_key_is_rejected_before_the_body_is_read() {
    let fleet = Fleet::start(vec![quick()], |config| config.keys = vec![key("a")]).await;
    let body = ask("hi", json!({}));
    let (unknown, missing) = ("Bearer error=\"invalid_token\"", "Bearer");
    for (wrong, code, challenge) in [
        ("Bearer nope", "invalid_api_key", unknown),
        ("Bearer tr-secret-of-b", "invalid_api_key", unknown),
        ("Basic dHI=", "missing_api_key", missing),
        ("tr-secret-of-a", "missing_api_key", missing),
    ] {
        let answer = fleet.chat(&[("authorization", wrong)], &body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (401, code),
            "{wrong}"
        );
        assert_eq!(answer.header("www-authenticate"), Some(challenge));
        assert!(!answer.text().contains("nope"));
    }
    for path in ["/v1/models", "/v1/embeddings", "/nowhere"] {
        let answer = client::call(fleet.address(), "GET", path, &[], "").await;
        assert_eq!(answer.status, 401, "{path}");
    }
    assert_eq!(say(&fleet, "a", &body).await.status, 200);
    let by_header = fleet.chat(&[("x-api-key", &secret("a"))], &body).await;
    assert_eq!(by_header.status, 200, "as Anthropic's clients send it");
    for (headers, _) in turns_seen(&fleet) {
        assert!(!headers.contains_key("authorization") && !headers.contains_key("x-api-key"));
    }
    let page = fleet.metrics().await;
    let count = |key: &str, outcome: &str| {
        page.sum(
            "tailroute_admission_requests_total",
            &[("key", key), ("outcome", outcome)],
        )
    };
    assert_eq!((count("a", "admitted"), count("", "unauthorized")), (2.0, 7.0));
}

#[tokio::test]
async fn requests_and_control_calls_use_the_workers_own_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "engine-key\n").unwrap();
    let engine = sim_engine::Engine::start(quick()).await.unwrap();
    let text = format!(
        "[[workers]]\nurl = \"http://{}\"\napi_key_file = {:?}\n",
        engine.addr(),
        file.display().to_string()
    );
    let config = config::load(&config::Sources {
        file: Some(("t.toml", &text)),
        ..config::Sources::default()
    });
    let worker = config.unwrap().workers.remove(0);
    assert!(!format!("{worker:?}").contains("engine-key"));
    let router = route(&[engine.addr()], |config| config.workers = vec![worker]).await;
    let body = ask("hi", json!({})).to_string();
    let own = [("authorization", "Bearer mine"), ("x-api-key", "mine")];
    let answer = client::call(router.address, "POST", CHAT, &own, body).await;
    assert_eq!(answer.status, 200);
    let captured = engine.captured();
    assert!(captured.len() > 1 || captured[0].uri.path() == CHAT);
    for seen in captured {
        assert_eq!(seen.headers["authorization"], "Bearer engine-key", "{}", seen.uri);
        assert!(!seen.headers.contains_key("x-api-key"));
    }
}

#[tokio::test]
async fn an_empty_file_of_keys_admits_no_request() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.admission.keys_file = Some("/run/keys.toml".into());
    })
    .await;
    assert_eq!(fleet.chat(&[], &ask("hi", json!({}))).await.status, 401);
}

#[tokio::test]
async fn an_exhausted_key_gets_a_retry_after_and_delays_no_other() {
    let fleet = Fleet::start(vec![quick()], |config| {
        let requests = Some(Rate {
            per_s: 0.001,
            burst: 2.0,
        });
        config.keys = vec![Key { requests, ..key("a") }, key("b")];
    })
    .await;
    let body = ask("hi", json!({}));
    for left in ["1", "0"] {
        let answer = say(&fleet, "a", &body).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some(left));
        assert!(
            answer
                .header("x-ratelimit-reset-requests")
                .unwrap()
                .ends_with('s')
        );
    }
    let refused = say(&fleet, "a", &body).await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code().as_str()),
        (429, "rate_limit_exceeded")
    );
    let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((900..=1000).contains(&after), "{after}");
    assert!(refused.text().contains("limit of requests"));
    let other = say(&fleet, "b", &body).await;
    assert_eq!(other.status, 200);
    assert!(other.header("x-ratelimit-limit-requests").is_none());
}

#[tokio::test]
async fn tokens_are_charged_by_estimate_and_corrected_by_usage() {
    let fleet = Fleet::start(vec![quick()], |config| {
        let tokens = Some(Rate {
            per_s: 1e-6,
            burst: 1_000.0,
        });
        config.keys = vec![Key { tokens, ..key("a") }];
    })
    .await;
    let remaining = |answer: &Whole| -> i64 {
        let left = answer.header("x-ratelimit-remaining-tokens").unwrap();
        left.parse().unwrap()
    };
    let first = say(&fleet, "a", &ask(&words(1, 100), json!({ "max_tokens": 50 }))).await;
    let used = &first.json()["usage"]["total_tokens"];
    let used = used.as_i64().unwrap();
    fleet.at_rest().await;
    let second = say(&fleet, "a", &ask("x", json!({ "max_tokens": 1 }))).await;
    // The second request's own charge is small.
    let left = remaining(&second);
    assert!(
        (1_000 - used - 100..=1_000 - used).contains(&left),
        "{left} of 1000 after {used}"
    );
    let long = say(&fleet, "a", &ask(&words(2, 900), json!({}))).await;
    assert_eq!(
        (long.status.as_u16(), long.error_code().as_str()),
        (429, "rate_limit_exceeded")
    );
    assert!(long.text().contains("limit of tokens"));
    assert!(
        remaining(&long) <= left,
        "a refusal costs nothing, and gives nothing"
    );
    assert_eq!(
        say(&fleet, "a", &ask("x", json!({ "max_tokens": 1 })))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn requests_that_fail_at_the_worker_are_not_charged() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        let tokens = Some(Rate {
            per_s: 1e-6,
            burst: 1_000.0,
        });
        config.keys = vec![Key { tokens, ..key("a") }];
    })
    .await;
    let headers = [("authorization", bearer("a"))];
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let body = ask(&words(1, 200), json!({})).to_string();
    let respond = async {
        let exchange = upstream.next().await;
        exchange.answer("500 Internal Server Error", "{}").await;
    };
    let (answer, ()) = tokio::join!(
        client::open(router.address, "POST", CHAT, &headers, body),
        respond
    );
    let answer = answer.unwrap().whole().await;
    assert_eq!(answer.status, 500);
    let models = client::call(router.address, "GET", "/v1/models", &headers, "").await;
    assert_eq!(models.header("x-ratelimit-remaining-tokens"), Some("1000"));
}

#[tokio::test]
async fn beyond_the_engines_limit_requests_queue_fairly_by_key() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        one_at_a_time(config);
        config.keys = vec![
            key("crowd"),
            key("guest"),
            Key {
                priority: 1,
                ..key("boss")
            },
        ];
    })
    .await;
    let (address, parts) = (router.address, router.parts().clone());
    let send = |name: &'static str, text: String| {
        tokio::spawn(async move {
            let bearer = bearer(name);
            let body = ask(&text, json!({})).to_string();
            client::open(address, "POST", CHAT, &[("authorization", &bearer)], body)
                .await
                .unwrap()
                .whole()
                .await
        })
    };
    let first = send("crowd", "crowd 0".to_owned());
    let mut exchange = upstream.next().await;
    let mut sent = vec![first];
    let arrivals = [
        ("crowd", "crowd 1"),
        ("crowd", "crowd 2"),
        ("guest", "guest 1"),
        ("boss", "boss 1"),
    ];
    for (at, (name, text)) in arrivals.into_iter().enumerate() {
        sent.push(send(name, text.to_owned()));
        until("it waits", || {
            parts.proxy.admission.gate.counts()
                == metrics::AdmissionGauges {
                    waiting: at + 1,
                    admitted: 1,
                }
        })
        .await;
    }
    let mut order = Vec::new();
    for _ in 0..arrivals.len() {
        exchange.answer("200 OK", "{}").await;
        exchange = upstream.next().await;
        let body: Value = serde_json::from_slice(&exchange.body).unwrap();
        order.push(body["messages"][0]["content"].as_str().unwrap().to_owned());
    }
    exchange.answer("200 OK", "{}").await;
    assert_eq!(order, ["boss 1", "crowd 1", "guest 1", "crowd 2"]);
    for answer in sent {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    until_at_gate(&parts.proxy.admission.gate, 0, 0).await;
    let page = metrics(&router).await;
    assert_eq!(
        page.sum("tailroute_admission_requests_total", &[("outcome", "admitted")]),
        5.0
    );
}

#[tokio::test]
async fn a_disconnect_in_the_queue_leaks_nothing_and_a_long_wait_is_an_error() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        one_at_a_time(config);
        config.admission.max_queue = std::num::NonZeroUsize::new(1).unwrap();
        config.admission.queue_timeout = Duration::from_millis(50);
    })
    .await;
    let (address, parts) = (router.address, router.parts().clone());
    let body = ask("hi", json!({})).to_string();
    let send = |body: String| async move { client::open(address, "POST", CHAT, &[], body).await };
    let first = tokio::spawn(send(body.clone()));
    let exchange = upstream.next().await;
    let late = send(body.clone()).await.unwrap().whole().await;
    assert_eq!(
        (late.status.as_u16(), late.error_code().as_str()),
        (503, "queue_timeout")
    );
    assert_eq!(late.header("retry-after"), Some("1"));
    let mut settings = (**parts.proxy.admission.settings()).clone();
    settings.queue_timeout = Duration::from_secs(3600);
    let mut config = (*parts.state.config).clone();
    config.admission = settings;
    parts
        .proxy
        .admission
        .reload(&config, parts.state.routing.clock.now());
    let leaver = tokio::spawn(send(body.clone()));
    until_at_gate(&parts.proxy.admission.gate, 1, 1).await;
    let full = send(body.clone()).await.unwrap().whole().await;
    assert_eq!(
        (full.status.as_u16(), full.error_code().as_str()),
        (503, "queue_full")
    );
    leaver.abort();
    until_at_gate(&parts.proxy.admission.gate, 0, 1).await;
    exchange.answer("200 OK", "{}").await;
    assert_eq!(first.await.unwrap().unwrap().whole().await.status, 200);
    until_at_gate(&parts.proxy.admission.gate, 0, 0).await;
}

/// Shedding of requests that cannot meet their objective:
/// <https://github.com/kubernetes-sigs/gateway-api-inference-extension/issues/1922>.
#[tokio::test]
async fn a_turn_predicted_late_is_shed_only_if_configured() {
    for shed in [false, true] {
        let fleet = Fleet::start(vec![stuck_in_decode()], |config| {
            config.admission.shed = shed;
            config.objective.ttft = Millis(100.0);
            config.learning.costs = false;
        })
        .await;
        let stream = json!({ "stream": true });
        // 20 ms and 0.1 ms per token: 4000 tokens take longer than the objective, 100 do not. This request stays, so
        // that the worker is not idle.
        let mut held = fleet.open(&[], &ask(&words(1, 100), stream.clone())).await;
        assert_eq!(held.status, 200);
        assert!(held.chunk().await.is_some());
        let long = fleet.open(&[], &ask(&words(2, 4000), stream.clone())).await;
        if shed {
            assert_eq!(
                (long.status.as_u16(), long.header("retry-after")),
                (429, Some("1"))
            );
            assert_eq!(long.whole().await.error_code(), "objective_out_of_reach");
        } else {
            assert_eq!(long.status, 200);
        }
        let patient = ask(&words(3, 4000), stream);
        let patient = fleet.open(&[("x-slo-ttft-ms", "10000")], &patient).await;
        assert_eq!(patient.status, 200, "a turn's own objective is what counts");
    }
}

#[tokio::test]
async fn overestimated_costs_do_not_shed_requests_forever() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.admission.shed = true;
        config.objective.ttft = Millis(100.0);
    })
    .await;
    let parts = fleet.router.parts();
    let slow = policy::cost::PrefillCost::linear(0.1, 5_000.0);
    // A request was just admitted, so the next one is rejected by the learned cost.
    assert_eq!(fleet.chat(&[], &ask(&words(0, 10), json!({}))).await.status, 200);
    let mut shed = 0;
    within(async {
        // Only a response can correct the cost.
        parts.state.routing.fleet.workers()[0].set_cost(slow);
        while fleet.chat(&[], &ask(&words(1, 10), json!({}))).await.status != 200 {
            shed += 1;
        }
    })
    .await;
    let page = fleet.metrics().await;
    let counted = page.sum("tailroute_admission_requests_total", &[("outcome", "shed")]);
    assert_eq!(counted, f64::from(shed));
}

#[tokio::test]
async fn turns_queue_while_the_least_busy_worker_would_queue_them() {
    let mut upstream = Upstream::start().await;
    let router = route(&[upstream.address], |config| {
        config.admission.max_wait = Some(Millis(5.0));
        config.health.queue_interval = None;
        config.learning.costs = false;
    })
    .await;
    let (address, parts) = (router.address, router.parts().clone());
    let send = |text: String| {
        tokio::spawn(async move {
            let body = ask(&text, json!({ "stream": true })).to_string();
            client::open(address, "POST", CHAT, &[], body)
                .await
                .unwrap()
                .whole()
                .await
        })
    };
    // At least 20 ms of prefill, so the next request waits until the first token, or for that long.
    let first = send(words(1, 20_000));
    let mut exchange = upstream.next().await;
    let second = send(words(2, 10));
    until_at_gate(&parts.proxy.admission.gate, 1, 1).await;
    exchange.begin_events().await;
    exchange
        .chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
        .await;
    let mut other = upstream.next().await;
    other.begin_events().await;
    for mut exchange in [exchange, other] {
        exchange.chunk(b"data: [DONE]\n\n").await;
        exchange.end().await;
    }
    assert!(first.await.unwrap().clean && second.await.unwrap().clean);
    until_at_gate(&parts.proxy.admission.gate, 0, 0).await;
}

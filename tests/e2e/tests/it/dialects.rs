//! Fields added for each worker: only those it is known to accept.

use std::time::Duration;

use config::Dialect as Spoken;
use policy::route::PolicyName;
use serde_json::{Value, json};
use sim_engine::{Dialect, EngineConfig};
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, quick, route};
use tailroute_e2e::talk::{Conversation, ask, words};
use tailroute_e2e::upstream::{Exchange, Upstream};
use tailroute_e2e::wait::until;

/// The report of the vLLM plugin.
const VLLM: (&str, &str) = (
    "/v1/tailroute",
    r#"{"dialect":"tailroute","version":1,"engine":"vllm","engine_version":"0.32.0","objective":true,
        "hints":["trim","ended","protect"],"evict_first_header":null,
        "evict_first_xarg":"tailroute_evict_first_tokens","block_size":32,"capacity_tokens":3168}"#,
);
const OBJECTIVE: (&str, &str) = ("/v1/tailroute/objective", r#"{"applied":true}"#);
/// The report of an SGLang with T-LRU.
const SGLANG: (&str, &str) = (
    "/server_info",
    r#"{"version":"0.5.23","radix_eviction_policy":"tlru",
        "radix_eviction_policy_config":"{\"threshold\":4000,\"next_prompt_estimate\":500}"}"#,
);

/// Returns the request that a scripted worker receives for this body, sent as a conversation's last turn, all of
/// which may be evicted first.
async fn arrives(says: &[(&'static str, &'static str)], spoken: Spoken, body: &str) -> Exchange {
    let mut worker = Upstream::saying(says).await;
    let router = route(&[worker.address], |config| config.workers[0].dialect = spoken).await;
    let address = router.address;
    let sent = body.to_owned();
    let turn =
        tokio::spawn(
            async move { client::call(address, "POST", CHAT, &[("x-session-end", "1")], sent).await },
        );
    let request = worker.next().await;
    turn.abort();
    request
}

fn turn(more: Value) -> String {
    ask(&words(1, 300), more).to_string()
}

#[tokio::test]
async fn a_strict_worker_gets_no_unknown_fields() {
    for dialect in [Dialect::None, Dialect::Tailroute] {
        let strict = EngineConfig {
            strict: true,
            dialect,
            ..quick()
        };
        let generous = EngineConfig {
            strict: false,
            ..quick()
        };
        let fleet = Fleet::start(vec![strict, generous], |config| {
            config.routing.policy = PolicyName::RoundRobin;
        })
        .await;
        let mut talk = Conversation::new(&words(1, 400));
        for at in 0..6 {
            fleet.turn(&mut talk, &[], &words(10 + at, 40)).await;
        }
        let seen = fleet.engines[0].captured();
        assert!(seen.iter().any(|request| !request.body.is_empty()));
        for request in seen {
            let told = request.headers.contains_key("x-tailroute-evict-first-tokens");
            assert!(
                dialect == Dialect::Tailroute || !told,
                "a header of a dialect that it lacks"
            );
        }
    }
}

#[tokio::test]
async fn vllm_gets_hints_in_its_xargs_and_the_rest_unchanged() {
    let body = turn(json!({ "max_tokens": 3, "temperature": 0.50 }));
    let request = arrives(&[VLLM, OBJECTIVE], Spoken::Auto, &body).await;
    let hint = r#","vllm_xargs":{"tailroute_evict_first_tokens":1000000000}}"#;
    assert_eq!(
        String::from_utf8(request.body.clone()).unwrap(),
        format!("{}{hint}", &body[..body.len() - 1])
    );
    assert!(
        !request.head.contains("x-tailroute-evict-first-tokens"),
        "{}",
        request.head
    );
    assert!(request.head.contains("x-session-id"), "{}", request.head);
}

#[tokio::test]
async fn a_failed_capability_probe_is_repeated() {
    let mut worker = Upstream::saying(&[("/v1/tailroute", ""), OBJECTIVE]).await;
    let address = [worker.address];
    let router = route(&address, |config| {
        config.health.interval = Duration::from_millis(5);
        config.health.timeout = Duration::from_millis(200);
    });
    let asked = async {
        // Delayed until the router gives up, then rejected temporarily.
        let mut first = worker.next().await;
        assert!(first.head.contains("/v1/tailroute"), "{}", first.head);
        first.hung_up().await;
        worker.next().await.answer("503 Service Unavailable", "{}").await;
        worker
    };
    let (router, mut worker) = tokio::join!(router, asked);
    let workers = router.parts().state.routing.fleet.workers();
    loop {
        tokio::select! {
            exchange = worker.next() => exchange.answer("200 OK", VLLM.1).await,
            () = until("its dialect", || workers[0].dialect().name() == "tailroute (xargs)") => break,
        }
    }
}

#[tokio::test]
async fn the_clients_own_xargs_are_kept() {
    let body = turn(json!({ "vllm_xargs": { "mine": 1 } }));
    for spoken in [Spoken::Auto, Spoken::VllmXargs] {
        let request = arrives(&[VLLM, OBJECTIVE], spoken, &body).await;
        let read: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(
            read["vllm_xargs"],
            json!({ "mine": 1, "tailroute_evict_first_tokens": 1000000000 })
        );
    }
}

#[tokio::test]
async fn an_sglang_with_its_own_trimming_gets_no_hints() {
    let body = turn(json!({}));
    let request = arrives(&[SGLANG], Spoken::Auto, &body).await;
    assert_eq!(String::from_utf8(request.body.clone()).unwrap(), body);
}

#[tokio::test]
async fn dialects_without_a_probe_are_used_if_configured() {
    let body = turn(json!({}));
    for (spoken, field) in [
        (Spoken::KvHints, Some("kv_hints")),
        (Spoken::TensorrtLlm, Some("kv_cache_retention_config")),
        (Spoken::None, None),
        (Spoken::Auto, None),
    ] {
        let request = arrives(&[], spoken, &body).await;
        let mut read: Value = serde_json::from_slice(&request.body).unwrap();
        if let Some(field) = field {
            assert!(read.as_object_mut().unwrap().remove(field).is_some(), "{field}");
        }
        assert_eq!(read, serde_json::from_str::<Value>(&body).unwrap());
    }
}

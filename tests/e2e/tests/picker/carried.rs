//! A request carried by a gateway reaches the worker as if the router had forwarded it.

use std::io::Write as _;

use config::Priority;
use operator::secret::hash;
use picker::wire::BodyMode;
use serde_json::{Value, json};
use tailroute_e2e::fleet::quick;
use tailroute_e2e::talk::ask;

use crate::start;

#[tokio::test]
async fn the_gateway_gets_the_request_as_rewritten_for_the_worker() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "engine-key").unwrap();
    let (fleet, gateway) = start(vec![quick()], |config| {
        config.keys = vec![config::Key {
            name: "a".to_owned(),
            digest: hash(b"tr-secret-of-a"),
            tenant: "a".to_owned(),
            weight: 1.0,
            priority: 0,
            requests: None,
            tokens: None,
            explain: true,
        }];
    })
    .await;
    let given = ask("hi", json!({}));
    let fields = [
        ("authorization", "Bearer tr-secret-of-a"),
        ("x-tailroute-policy", "mine"),
        ("x-tailroute-explain", "1"),
        ("content-length", "1"),
        ("x-other", "stays"),
    ];
    for mode in [BodyMode::FullDuplexStreamed, BodyMode::Buffered] {
        let gateway = gateway.sending(mode, BodyMode::Streamed);
        let carried = gateway.carry(&fields, &given).await;
        assert_eq!(carried.status, 200);
        let named = &carried.named;
        let body: Value = serde_json::from_slice(&named.body).unwrap();
        assert_eq!(body["messages"], given["messages"]);
        assert_eq!(body["cache_salt"].as_str().unwrap().len(), 64);
        let mut removed = named.removed.clone();
        removed.sort();
        assert_eq!(
            removed,
            ["authorization", "x-tailroute-explain", "x-tailroute-policy"]
        );
        assert!(!named.set.contains_key("x-other"), "what stays is not said again");
        assert!(!named.set.contains_key("via") && !named.set.contains_key("x-forwarded-for"));
        // Envoy removes the length of a body that it streams.
        let length = named
            .set
            .get("content-length")
            .map(|length| length.parse().unwrap());
        let expected = (mode == BodyMode::Buffered).then_some(named.body.len());
        assert_eq!(length, expected);
        assert_eq!(
            carried.marks["x-tailroute-worker"],
            fleet.engines[0].addr().to_string()
        );
        assert!(carried.marks["x-tailroute-explain"].contains("predicted_ttft_ms"));
        assert!(carried.marks.contains_key("x-tailroute-decision"));
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn an_unchanged_buffered_body_is_not_returned() {
    let (fleet, gateway) = start(vec![quick(); 2], |config| {
        config.hints.rule = config::HintRule::Off
    })
    .await;
    let gateway = gateway.sending(BodyMode::Buffered, BodyMode::None);
    let (_stream, named) = gateway.name(&ask("hi", json!({})), None).await;
    assert!(named.body.is_empty());
    assert!(!named.set.contains_key("content-length"));
    drop(fleet);
}

#[tokio::test]
async fn fallback_endpoints_take_the_identical_request() {
    let (fleet, gateway) = start(vec![quick(); 4], |config| {
        config.workers[1].priority = Priority::LowestFirst;
        config.workers[3].priority = Priority::LowestFirst;
    })
    .await;
    let groups = [[0, 2], [1, 3]].map(|group| group.map(|at| fleet.engines[at].addr()));
    for seed in 0..6 {
        let body = ask(&tailroute_e2e::talk::words(seed, 30), json!({}));
        let (_stream, named) = gateway.name(&body, None).await;
        assert_eq!(named.endpoints.len(), 2);
        let group = groups
            .iter()
            .find(|group| group.contains(&named.endpoints[0]))
            .unwrap();
        assert!(group.contains(&named.endpoints[1]), "{named:?}");
    }
}

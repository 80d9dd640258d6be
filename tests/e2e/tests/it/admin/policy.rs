//! The policy: changed during traffic, validated as a whole, and reverted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use policy::units::Millis;
use serde_json::{Value, json};
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::wait::until;

use super::{POLICY, ask, change_policy, get, problem};

#[tokio::test]
async fn a_change_requires_the_current_revision() {
    let fleet = Fleet::of(1).await;
    let shown = ask(&fleet, ("GET", POLICY), &[], None).await;
    let tag = shown.header("etag").unwrap().to_owned();
    let shown = shown.json();
    assert_eq!((&shown["revision"], &shown["etag"]), (&json!(1), &json!(tag)));
    assert_eq!(shown["as_configured"], true);
    let mut settings = shown["settings"].clone();
    settings["weights"]["slo"] = json!(0.25);
    let body = json!({ "settings": settings, "reason": "try it" });
    let unnamed = ask(&fleet, ("PUT", POLICY), &[], Some(&body)).await;
    assert_eq!(
        (unnamed.status.as_u16(), problem(&unnamed).as_str()),
        (428, "precondition-required")
    );
    let first = ask(&fleet, ("PUT", POLICY), &[("if-match", &tag)], Some(&body)).await;
    assert_eq!(first.status, 200, "{}", first.text());
    let changed = first.json();
    assert_eq!(
        (&changed["revision"], &changed["as_configured"]),
        (&json!(2), &json!(false))
    );
    assert_eq!(
        (&changed["by"], &changed["reason"]),
        (&json!("loopback"), &json!("try it"))
    );
    // A change based on the previous revision is rejected.
    let second = ask(&fleet, ("PUT", POLICY), &[("if-match", &tag)], Some(&body)).await;
    assert_eq!(
        (second.status.as_u16(), problem(&second).as_str()),
        (412, "precondition-failed")
    );
    let history = get(&fleet, "/admin/v1/policy/history").await;
    let revisions: Vec<u64> = history["revisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|revision| revision["revision"].as_u64().unwrap())
        .collect();
    assert_eq!(revisions, [2, 1]);
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_policy_revision", &[]), 2.0);
}

#[tokio::test]
async fn an_invalid_change_is_rejected_with_every_wrong_field() {
    let fleet = Fleet::of(1).await;
    let before = get(&fleet, POLICY).await;
    let good = before["settings"].clone();
    let with = |path: &str, value: Value| {
        let mut settings = good.clone();
        *settings.pointer_mut(path).unwrap() = value;
        settings
    };
    let mut misspelt = good.clone();
    misspelt["weights"]["localty"] = json!(1.0);
    let mut two = with("/weights/load", json!("much"));
    two["kappa_max"] = json!(0.5);
    let mut partial = good.clone();
    partial["weights"].as_object_mut().unwrap().remove("home");
    for (settings, fields) in [
        (
            with("/weights/locality", json!(-0.5)),
            vec!["settings.weights.locality"],
        ),
        (with("/policy", json!("tial")), vec!["settings.policy"]),
        (misspelt, vec!["settings.weights.localty"]),
        (
            with("/cache_aware/imbalance_abs", json!(5_000_000_000_u64)),
            vec!["settings.cache_aware.imbalance_abs"],
        ),
        (
            with("/weights/spread_ms", json!(1e300)),
            vec!["settings.weights.spread_ms"],
        ),
        (two, vec!["settings.kappa_max", "settings.weights.load"]),
        // The document must be complete, so that no setting changes implicitly.
        (partial, vec!["settings.weights.home"]),
    ] {
        let body = json!({ "settings": settings, "reason": "a slip" });
        let refused = ask(&fleet, ("PUT", POLICY), &[("if-match", "*")], Some(&body)).await;
        assert_eq!(
            (refused.status.as_u16(), problem(&refused).as_str()),
            (422, "invalid"),
            "{fields:?}"
        );
        let errors = refused.json()["errors"].clone();
        let named: Vec<&str> = errors
            .as_array()
            .unwrap()
            .iter()
            .map(|error| error["field"].as_str().unwrap())
            .collect();
        assert_eq!(named, fields, "{errors}");
    }
    let hint = json!({ "settings": with("/policy", json!("tial")), "reason": "a slip" });
    let hint = ask(&fleet, ("PUT", POLICY), &[("if-match", "*")], Some(&hint)).await;
    assert!(hint.text().contains("did you mean `tail`?"), "{}", hint.text());
    let unexplained = json!({ "settings": good });
    let unexplained = ask(&fleet, ("PUT", POLICY), &[("if-match", "*")], Some(&unexplained)).await;
    assert_eq!(unexplained.json()["errors"][0]["field"], "reason");
    assert_eq!(get(&fleet, POLICY).await, before, "nothing has changed");
}

#[tokio::test]
async fn a_temporary_change_is_reverted_and_audited() {
    let fleet = Fleet::of(1).await;
    let changed = change_policy(
        &fleet,
        json!({ "policy": "random" }),
        json!({ "revert_after_s": 0.2 }),
    )
    .await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(changed.json()["reverts"]["keys"]["/policy"]["to"], "tail");
    let parts = fleet.router.parts();
    until("the policy is back", || {
        parts.state.routing.policy.load().revision == 3
    })
    .await;
    let shown = get(&fleet, POLICY).await;
    assert_eq!(
        (&shown["settings"]["policy"], &shown["source"]),
        (&json!("tail"), &json!("revert"))
    );
    until("it is written down", || {
        parts.state.operations.operator.audit.newest(1)[0].action == "policy.revert"
    })
    .await;
    assert_eq!(
        parts.state.operations.operator.audit.newest(1)[0].who.name,
        "router"
    );
}

#[tokio::test]
async fn a_temporary_weight_returns_although_another_was_changed_meanwhile() {
    let fleet = Fleet::of(1).await;
    let weights = |locality: f64, load: f64| json!({ "weights": { "locality": locality, "load": load } });
    let before = get(&fleet, POLICY).await["settings"]["weights"]["locality"]
        .as_f64()
        .unwrap();
    change_policy(&fleet, weights(2.5, 1.0), json!({ "revert_after_s": 1 })).await;
    let second = change_policy(&fleet, weights(2.5, 3.0), json!({})).await;
    let keys = second.json()["reverts"]["keys"].as_object().unwrap().clone();
    assert_eq!(keys.keys().collect::<Vec<_>>(), ["/weights/locality"]);
    let parts = fleet.router.parts();
    until("the weight is back", || {
        parts.state.routing.policy.load().revision == 4
    })
    .await;
    let shown = get(&fleet, POLICY).await;
    let now = &shown["settings"]["weights"];
    assert_eq!(
        (now["locality"].as_f64(), now["load"].as_f64()),
        (Some(before), Some(3.0))
    );
    assert!(
        shown["reverts"].is_null() && shown["source"] == "revert",
        "{shown}"
    );
    let history = get(&fleet, &format!("{POLICY}/history")).await;
    let temporary = |at: usize| {
        history["revisions"][at]["temporary_keys"]
            .get("/weights/locality")
            .is_some()
    };
    assert_eq!([0, 1, 2].map(temporary), [false, true, true], "{history}");
}

#[tokio::test]
async fn a_rollback_skips_temporary_changes_and_names_the_restored_revision() {
    let fleet = Fleet::of(1).await;
    change_policy(
        &fleet,
        json!({ "weights": { "locality": 2.0 } }),
        json!({ "revert_after_s": 600 }),
    )
    .await;
    change_policy(&fleet, json!({ "weights": { "load": 3.0 } }), json!({})).await;
    let shown = get(&fleet, POLICY).await;
    assert_eq!(shown["configured"]["weights"]["load"], 1.0);
    let body = json!({ "reason": "a test" });
    let path = format!("{POLICY}/rollback");
    let back = ask(&fleet, ("POST", &path), &[], Some(&body)).await.json();
    assert_eq!(
        (
            &back["restored_revision"],
            &back["revision"],
            &back["as_configured"]
        ),
        (&json!(1), &json!(4), &json!(true))
    );
    assert!(back["configured"].is_null(), "{back}");
    let history = get(&fleet, &format!("{POLICY}/history")).await;
    let temporary: Vec<bool> = history["revisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|revision| revision["temporary"] == true)
        .collect();
    assert_eq!(temporary, [false, false, true, false]);
}

#[tokio::test]
async fn a_reload_without_routing_changes_keeps_a_live_change() {
    let fleet = Fleet::of(1).await;
    let parts = fleet.router.parts();
    change_policy(&fleet, json!({ "weights": { "locality": 3.0 } }), json!({})).await;
    let mut config = (*parts.state.config).clone();
    config.limits.retries = 7;
    tailroute::reload::reconfigure(parts, &config).unwrap();
    assert_eq!(parts.state.routing.policy.load().settings.weights.locality, 3.0);
    config.routing.weights.locality = 4.0;
    tailroute::reload::reconfigure(parts, &config).unwrap();
    assert_eq!(parts.state.routing.policy.load().settings.weights.locality, 4.0);
    assert_eq!(get(&fleet, POLICY).await["source"], "reload");
}

/// Clients that repeat one conversation and check that the chosen worker fits the policy in force.
struct Load {
    stop: AtomicBool,
    /// Even: any worker may answer. Odd: only the conversation's own.
    epoch: AtomicU64,
    asked: AtomicU64,
    /// Responses checked against a policy that was in force for the whole request.
    checked: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn under_load_a_change_applies_to_the_next_request_of_every_thread() {
    const CLIENTS: usize = 16;
    // For a moment at the end of the slow starts, a worker that has started holds back one that has not.
    let fleet = Fleet::start(vec![quick(); 4], |config| {
        config.failure.slow_start = Millis::ZERO
    })
    .await;
    let fleet = Arc::new(fleet);
    let keyed = change_policy(&fleet, json!({ "policy": "consistent_hash" }), json!({})).await;
    assert_eq!(keyed.status, 200);
    let asks = |address, stream: bool| async move {
        let body =
            json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2, "stream": stream });
        client::call(
            address,
            "POST",
            CHAT,
            &[("x-session-id", "one")],
            body.to_string(),
        )
        .await
    };
    let address = fleet.address();
    let home = asks(address, false).await.worker();
    let load = Arc::new(Load {
        stop: AtomicBool::new(false),
        epoch: AtomicU64::new(1),
        asked: AtomicU64::new(0),
        checked: AtomicU64::new(0),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (load, home) = (Arc::clone(&load), home.clone());
            tokio::spawn(async move {
                while !load.stop.load(Ordering::SeqCst) {
                    let epoch = load.epoch.load(Ordering::SeqCst);
                    let answer = asks(address, client % 2 == 0).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    assert!(answer.clean);
                    load.asked.fetch_add(1, Ordering::SeqCst);
                    if epoch % 2 == 1 && load.epoch.load(Ordering::SeqCst) == epoch {
                        assert_eq!(answer.worker(), home, "asked under consistent_hash");
                        load.checked.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    let progress = |counter: &'static str, at_least: u64| {
        let load = Arc::clone(&load);
        async move {
            let read = || match counter {
                "asked" => load.asked.load(Ordering::SeqCst),
                _ => load.checked.load(Ordering::SeqCst),
            };
            let from = read();
            until("clients go on", || read() >= from + at_least).await;
        }
    };
    let exact = fleet.router.parts().state.routing.policy.load().settings.clone();
    for _ in 0..10 {
        progress("checked", 2 * CLIENTS as u64).await;
        // From here on any worker may answer; after the revert, only the conversation's own.
        load.epoch.fetch_add(1, Ordering::SeqCst);
        let set = [
            "policy",
            "set",
            "policy=random",
            "weights.locality=0.30000000000000004",
            "--reason",
            "try",
        ];
        super::ctl::well(&fleet, &set).await;
        progress("asked", CLIENTS as u64).await;
        super::ctl::well(&fleet, &["policy", "rollback", "--reason", "enough"]).await;
        load.epoch.fetch_add(1, Ordering::SeqCst);
        let restored = fleet.router.parts().state.routing.policy.load().settings.clone();
        assert_eq!(format!("{restored:?}"), format!("{exact:?}"));
        assert_eq!(
            restored.weights.locality.to_bits(),
            exact.weights.locality.to_bits(),
            "bit for bit"
        );
    }
    load.stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(fleet.router.parts().state.routing.policy.load().revision, 22);
}

#[tokio::test]
async fn concurrent_changes_are_answered_with_their_own_revisions() {
    let fleet = Fleet::of(1).await;
    let change = |at: u32| {
        let locality = 1.0 + f64::from(at) / 64.0;
        let fleet = &fleet;
        async move {
            let answer =
                change_policy(fleet, json!({ "weights": { "locality": locality } }), json!({})).await;
            let shown = answer.json();
            assert_eq!(shown["settings"]["weights"]["locality"], locality, "{shown}");
            assert_eq!(answer.header("etag"), shown["etag"].as_str());
            shown["revision"].as_u64().unwrap()
        }
    };
    let mut revisions = futures_util::future::join_all((0..32).map(change)).await;
    revisions.sort_unstable();
    assert_eq!(revisions, (2..34).collect::<Vec<u64>>());
}

//! A policy tried on captured turns before it is put in force.

use serde_json::json;
use tailroute_e2e::fleet::Fleet;
use tailroute_e2e::talk::Conversation;

use super::{ask, change_policy, get, problem};

const PREVIEW: &str = "/admin/v1/policy/preview";
const SHADOW: &str = "/admin/v1/policy/shadow";

async fn settings(fleet: &Fleet, policy: &str) -> serde_json::Value {
    let mut settings = get(fleet, super::POLICY).await["settings"].clone();
    settings["policy"] = json!(policy);
    settings
}

async fn talk(fleet: &Fleet, conversations: usize, turns: usize) {
    let mut all: Vec<_> = (0..conversations)
        .map(|at| Conversation::new(&tailroute_e2e::talk::words(at as u64, 200)))
        .collect();
    for turn in 0..turns {
        for talk in &mut all {
            fleet.turn(talk, &[], &format!("and then {turn}?")).await;
        }
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn a_preview_replays_captured_turns_under_both_policies() {
    let fleet = Fleet::of(3).await;
    let body = json!({ "settings": settings(&fleet, "random").await });
    let early = ask(&fleet, ("POST", PREVIEW), &[], Some(&body)).await;
    assert_eq!(
        (early.status.as_u16(), problem(&early).as_str()),
        (409, "conflict")
    );
    assert!(early.text().contains("capture start"), "{}", early.text());
    let why = json!({ "reason": "a test" });
    let started = ask(&fleet, ("POST", "/admin/v1/capture/start"), &[], Some(&why)).await;
    assert_eq!(
        (started.status.as_u16(), &started.json()["running"]),
        (200, &json!(true))
    );
    talk(&fleet, 6, 8).await;
    // At a thousand times the speed, what is measured is this machine.
    let body = json!({ "settings": settings(&fleet, "random").await, "anyway": true });
    let answer = ask(&fleet, ("POST", PREVIEW), &[], Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let report = answer.json();
    assert!(
        report["check"]["turns"].as_u64().unwrap() >= 20,
        "{}",
        report["check"]
    );
    assert!(
        report["costs"].as_str().unwrap().starts_with("from the router"),
        "{}",
        report["costs"]
    );
    assert_eq!(report["proposed"]["settings"]["policy"], "random");
    assert_eq!(report["workers"].as_array().unwrap().len(), 3);
    assert!(report["turns"].as_u64().unwrap() >= 30, "{}", report["turns"]);
    for side in ["baseline", "proposed"] {
        let (p50, p99) = (&report[side]["p50_ms"], &report[side]["p99_ms"]);
        assert!(
            p50.as_f64().unwrap() > 0.0 && p50.as_f64() <= p99.as_f64(),
            "{side}"
        );
    }
    assert!(report["changes"].as_array().unwrap().len() <= 10);
    assert!(
        report["baseline"]["hit_ratio"].as_f64() > report["proposed"]["hit_ratio"].as_f64(),
        "conversations that go anywhere find less of what they said"
    );
    let unhinted = json!({ "hint_rule": "off", "anyway": true });
    let answer = ask(&fleet, ("POST", PREVIEW), &[], Some(&unhinted)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let caches = ["baseline", "proposed"].map(|side| answer.json()[side]["cache"].clone());
    assert_eq!(caches, ["tail", "lru"]);
    let unknown = json!({ "hint_rule": "mru" });
    let answer = ask(&fleet, ("POST", PREVIEW), &[], Some(&unknown)).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(get(&fleet, super::POLICY).await["revision"], 1);
    // The captured turns, as a trace for `tailroute replay`.
    let stopped = ask(&fleet, ("POST", "/admin/v1/capture/stop"), &[], Some(&why))
        .await
        .json();
    assert_eq!(
        (&stopped["running"], &stopped["turns"]),
        (&json!(false), &json!(48))
    );
    let turns = ask(&fleet, ("GET", "/admin/v1/capture/turns"), &[], None).await;
    // The version, the fleet, and the turns.
    assert_eq!(turns.text().lines().count(), 2 + 48);
    talk(&fleet, 1, 1).await;
    assert_eq!(get(&fleet, "/admin/v1/capture").await["turns"], 48);
}

#[tokio::test]
async fn one_preview_at_a_time() {
    let fleet = Fleet::of(1).await;
    let _other = fleet
        .router
        .parts()
        .state
        .operations
        .operator
        .preview_permit
        .try_acquire()
        .unwrap();
    let body = json!({ "settings": settings(&fleet, "random").await });
    let busy = ask(&fleet, ("POST", PREVIEW), &[], Some(&body)).await;
    assert_eq!((busy.status.as_u16(), problem(&busy).as_str()), (429, "busy"));
    assert_eq!(busy.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_shadow_policy_is_evaluated_for_every_turn_and_routes_none() {
    let fleet = Fleet::of(3).await;
    change_policy(&fleet, json!({ "policy": "consistent_hash" }), json!({})).await;
    let body = json!({ "settings": settings(&fleet, "round_robin").await, "reason": "a test" });
    let followed = ask(&fleet, ("PUT", SHADOW), &[], Some(&body)).await;
    assert_eq!(followed.status, 200, "{}", followed.text());
    let mut talk = Conversation::new("hello");
    let headers = [("x-session-id", "one")];
    let mut workers = std::collections::BTreeSet::new();
    for turn in 0..9 {
        workers.insert(fleet.turn(&mut talk, &headers, &format!("{turn}")).await.worker);
    }
    assert_eq!(workers.len(), 1, "the policy in force rules");
    let shadow = get(&fleet, SHADOW).await;
    assert_eq!(
        (&shadow["running"], &shadow["tally"]["turns"]),
        (&json!(true), &json!(9))
    );
    assert_eq!(
        shadow["tally"]["elsewhere"], 6,
        "a third of a rotation goes where the other goes"
    );
    let stop = json!({ "reason": "seen enough" });
    let path = "/admin/v1/policy/shadow/stop";
    assert_eq!(ask(&fleet, ("POST", path), &[], Some(&stop)).await.status, 200);
    assert_eq!(ask(&fleet, ("POST", path), &[], Some(&stop)).await.status, 409);
}

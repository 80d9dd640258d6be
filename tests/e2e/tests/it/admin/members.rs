//! Workers added to and removed from the fleet while it serves.

use config::PolicyName;
use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use tailroute_e2e::client::Whole;
use tailroute_e2e::fleet::{Fleet, probe_often, quick};
use tailroute_e2e::talk::{self, words};
use tailroute_e2e::wait::until;

use super::{ask, get, problem};

const WORKERS: &str = "/admin/v1/workers";

async fn add(fleet: &Fleet, worker: Value) -> Whole {
    let body = json!({ "worker": worker, "reason": "more work" });
    ask(fleet, ("POST", WORKERS), &[], Some(&body)).await
}

async fn remove(fleet: &Fleet, name: &str) -> Whole {
    let body = json!({ "reason": "less work" });
    ask(
        fleet,
        ("POST", &format!("{WORKERS}/{name}/remove")),
        &[],
        Some(&body),
    )
    .await
}

async fn remove_last(fleet: &Fleet, name: &str) -> Whole {
    let body = json!({ "reason": "less work", "force": true });
    ask(
        fleet,
        ("POST", &format!("{WORKERS}/{name}/remove")),
        &[],
        Some(&body),
    )
    .await
}

async fn names(fleet: &Fleet) -> Vec<String> {
    let list = get(fleet, WORKERS).await;
    let workers = list["workers"].as_array().unwrap().iter();
    workers
        .map(|worker| worker["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A fleet of one worker with round-robin routing.
async fn one() -> Fleet {
    Fleet::start(vec![quick()], |config| {
        probe_often(config);
        config.routing.policy = PolicyName::RoundRobin;
    })
    .await
}

async fn ready(fleet: &Fleet, name: &str) {
    let parts = fleet.router.parts();
    until("it to be ready", || {
        parts
            .state
            .routing
            .fleet
            .find(name)
            .is_some_and(|worker| worker.is_ready())
    })
    .await;
}

fn ask_for(text: &str) -> Value {
    talk::ask(text, json!({}))
}

async fn until_gone(fleet: &Fleet, name: &str) {
    let parts = fleet.router.parts();
    until("it to be gone", || parts.state.routing.fleet.find(name).is_none()).await;
}

#[tokio::test]
async fn an_added_worker_gets_turns_and_its_cache_is_tracked() {
    let mut fleet = one().await;
    let late = Engine::start(quick()).await.unwrap();
    let answer = add(
        &fleet,
        json!({ "name": "late", "url": format!("http://{}", late.addr()), "alpha_ms_per_token": 0.1, "beta_ms": 20 }),
    )
    .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    fleet.engines.push(late);
    ready(&fleet, "late").await;
    let parts = fleet.router.parts().clone();
    let worker = parts.state.routing.fleet.find("late").unwrap();
    // Of two turns, one goes to it.
    for seed in 0..2 {
        let answer = fleet.chat(&[], &ask_for(&words(seed, 300))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(
        parts.state.routing.knowledge.held(worker.id).0 >= 256,
        "its mirror is of its own slot"
    );
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_worker_ready", &[("worker", "late")]), 1.0);
    let audited = get(&fleet, "/admin/v1/audit").await;
    assert_eq!(
        (&audited["entries"][0]["action"], &audited["entries"][0]["target"]),
        (&json!("workers.add"), &json!("late"))
    );
    let url = fleet.engines.last().map(|late| format!("http://{}", late.addr()));
    assert_eq!(
        audited["entries"][0]["after"],
        json!({ "url": url, "alpha_ms_per_token": 0.1 }),
        "a capacity that is only assumed is left out"
    );
}

#[tokio::test]
async fn a_removed_worker_finishes_its_requests_and_is_forgotten() {
    // A thousand tokens take a second.
    let slow = EngineConfig {
        tpot_ms: 1000.0,
        ..quick()
    };
    let fleet = Fleet::start(vec![quick(), slow], |config| {
        probe_often(config);
        config.routing.policy = PolicyName::RoundRobin;
        config.workers[0].name = "stays".to_owned();
        config.workers[1].name = "leaves".to_owned();
    })
    .await;
    let parts = fleet.router.parts();
    let worker = parts.state.routing.fleet.find("leaves").unwrap();
    let ask_it = ask_for(&words(1, 300));
    for _ in 0..4 {
        fleet.chat(&[], &ask_it).await;
    }
    assert!(
        parts.state.routing.knowledge.held(worker.id).0 > 0,
        "it holds what it served"
    );
    // A slow stream is in progress on it.
    let slow = talk::ask("hi", json!({ "stream": true, "max_tokens": 1000 }));
    let mut answer = fleet.open(&[], &slow).await;
    while answer.worker() != "leaves" {
        answer = fleet.open(&[], &slow).await;
    }
    let removed = remove(&fleet, "leaves").await;
    assert_eq!(
        (removed.status.as_u16(), &removed.json()["state"]),
        (200, &json!("leaving"))
    );
    for _ in 0..4 {
        assert_eq!(fleet.chat(&[], &ask_it).await.worker(), "stays");
    }
    let whole = answer.whole().await;
    assert!(
        whole.text().ends_with("data: [DONE]\n\n"),
        "what was under way ends whole"
    );
    until_gone(&fleet, "leaves").await;
    assert_eq!(parts.state.routing.knowledge.held(worker.id).0, 0);
    assert_eq!(names(&fleet).await, ["stays"]);
    let again = remove(&fleet, "leaves").await;
    assert_eq!(
        (again.status.as_u16(), problem(&again).as_str()),
        (404, "not-found")
    );
    let page = fleet.metrics().await;
    let left = page
        .samples()
        .iter()
        .filter(|sample| sample.labels.values().any(|value| value == "leaves"));
    assert_eq!(left.count(), 0, "it has no series any more");
    assert_eq!(fleet.chat(&[], &ask_it).await.worker(), "stays");
    let decisions = get(&fleet, "/admin/v1/decisions?limit=1").await;
    let terms = decisions["decisions"][0]["terms"].as_array().unwrap();
    assert_eq!((terms.len(), &terms[0]["worker"]), (1, &json!("stays")));
}

#[tokio::test]
async fn a_removed_worker_stays_away_but_its_name_can_be_reused() {
    let fleet = one().await;
    let late = Engine::start(quick()).await.unwrap();
    let spec = json!({ "name": "late", "url": format!("http://{}", late.addr()) });
    for _ in 0..3 {
        assert_eq!(add(&fleet, spec.clone()).await.status, 200);
        let twice = add(&fleet, spec.clone()).await;
        assert_eq!(
            (twice.status.as_u16(), problem(&twice).as_str()),
            (409, "conflict")
        );
        ready(&fleet, "late").await;
        let worker = fleet.worker("late");
        assert_eq!(remove(&fleet, "late").await.status, 200);
        assert!(
            worker
                .set_admin_state(fleet::overrides::AdminState::None)
                .is_none()
        );
        until_gone(&fleet, "late").await;
    }
    // Only the configured worker remains; without it, none is ready.
    let first = names(&fleet).await.remove(0);
    assert_eq!(remove(&fleet, &first).await.status, 409);
    assert_eq!(remove_last(&fleet, &first).await.status, 200);
    until_gone(&fleet, &first).await;
    let nobody = fleet.chat(&[], &ask_for("hi")).await;
    assert_eq!(nobody.status, 503);
    assert_eq!(add(&fleet, spec).await.status, 200);
    ready(&fleet, "late").await;
    let answer = fleet.open(&[], &ask_for("hi")).await;
    assert_eq!((answer.status.as_u16(), answer.worker().as_str()), (200, "late"));
}

#[tokio::test]
async fn an_invalid_worker_is_rejected_with_every_wrong_key() {
    let fleet = one().await;
    for (worker, fields) in [
        (json!({ "url": "ftp://a" }), vec!["worker.url"]),
        (
            json!({ "name": "a b", "url": "http://a:1", "capacity_tokens": 1 }),
            vec!["worker.name", "worker.capacity_tokens"],
        ),
        (
            json!({ "url": "http://a:1", "api_key_file": "/etc/passwd" }),
            vec!["worker.api_key_file"],
        ),
        (
            json!({ "url": "http://a:1", "calibration": "/etc/passwd" }),
            vec!["worker.calibration"],
        ),
        (json!({ "url": "http://a:1", "ranks": 2 }), vec!["worker.ranks"]),
        (json!({}), vec!["worker.url"]),
    ] {
        let answer = add(&fleet, worker.clone()).await;
        assert_eq!(
            (answer.status.as_u16(), problem(&answer).as_str()),
            (422, "invalid"),
            "{worker}"
        );
        let errors = answer.json()["errors"].as_array().unwrap().clone();
        let named: Vec<&str> = errors
            .iter()
            .map(|error| error["field"].as_str().unwrap())
            .collect();
        assert_eq!(named, fields, "{}", answer.text());
    }
    assert_eq!(names(&fleet).await.len(), 1);
}

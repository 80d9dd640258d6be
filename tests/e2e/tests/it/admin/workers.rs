//! Workers drained and restored, and overrides of α.

use serde_json::{Value, json};
use tailroute_e2e::client::Whole;
use tailroute_e2e::fleet::{Fleet, quick, stuck_in_decode};
use tailroute_e2e::talk;
use tailroute_e2e::wait::until;

use super::{ask, get, problem};

const WORKERS: &str = "/admin/v1/workers";

async fn post(fleet: &Fleet, worker: &str, action: &str) -> Whole {
    let path = format!("{WORKERS}/{worker}/{action}");
    ask(fleet, ("POST", &path), &[], Some(&json!({ "reason": "a test" }))).await
}

async fn force(fleet: &Fleet, worker: &str, action: &str) -> Whole {
    let path = format!("{WORKERS}/{worker}/{action}");
    let body = json!({ "reason": "a test", "force": true });
    ask(fleet, ("POST", &path), &[], Some(&body)).await
}

fn name(fleet: &Fleet, engine: usize) -> String {
    fleet.engines[engine].addr().to_string()
}

async fn serves(fleet: &Fleet) -> Whole {
    fleet.chat(&[], &talk::ask("hi", json!({}))).await
}

#[tokio::test]
async fn the_list_has_the_state_of_each_worker() {
    let fleet = Fleet::of(3).await;
    serves(&fleet).await;
    let list = get(&fleet, WORKERS).await;
    assert_eq!(
        (&list["total"], list["workers"].as_array().unwrap().len()),
        (&json!(3), 3)
    );
    let first = &list["workers"][0];
    assert_eq!(
        (&first["name"], &first["state"]),
        (&json!(name(&fleet, 0)), &json!("ready"))
    );
    assert_eq!(
        (&first["breaker"], &first["cost"]["alpha_ms_per_token"]),
        (&json!("closed"), &json!(0.1))
    );
    assert!(first["xi_tokens"].as_f64().unwrap() > 0.0 && first["capacity_tokens"].as_u64().unwrap() > 0);
    let part = get(&fleet, "/admin/v1/workers?limit=1&offset=2").await;
    assert_eq!(part["workers"][0]["name"], name(&fleet, 2));
    assert_eq!(part["workers"].as_array().unwrap().len(), 1);
    let nobody = ask(&fleet, ("GET", "/admin/v1/workers/nobody"), &[], None).await;
    assert_eq!(
        (nobody.status.as_u16(), problem(&nobody).as_str()),
        (404, "not-found")
    );
    assert!(
        nobody.text().contains(&name(&fleet, 0)),
        "it says which there are: {}",
        nobody.text()
    );
}

#[tokio::test]
async fn a_cordoned_worker_gets_nothing_new_and_an_uncordoned_one_does() {
    let fleet = Fleet::of(2).await;
    let cordoned = post(&fleet, &name(&fleet, 0), "cordon").await;
    assert_eq!(
        (cordoned.status.as_u16(), &cordoned.json()["state"]),
        (200, &json!("cordoned"))
    );
    for _ in 0..6 {
        assert_eq!(serves(&fleet).await.worker(), name(&fleet, 1));
    }
    for action in ["cordon", "drain", "remove"] {
        let refused = post(&fleet, &name(&fleet, 1), action).await;
        assert_eq!(
            (refused.status.as_u16(), problem(&refused).as_str()),
            (409, "last-worker"),
            "{action}"
        );
        assert!(
            refused.text().contains("is the last ready worker"),
            "{}",
            refused.text()
        );
    }
    // A worker that is not ready anyway is not the last one.
    assert_eq!(post(&fleet, &name(&fleet, 0), "cordon").await.status, 200);
    assert_eq!(force(&fleet, &name(&fleet, 1), "cordon").await.status, 200);
    let nobody = serves(&fleet).await;
    assert_eq!(
        (nobody.status.as_u16(), nobody.error_code().as_str()),
        (503, "no_worker_ready")
    );
    assert!(
        nobody.text().contains("currently out of service for maintenance"),
        "{}",
        nobody.text()
    );
    let back = post(&fleet, &name(&fleet, 0), "uncordon").await;
    assert_eq!(back.json()["state"], "ready");
    assert_eq!(serves(&fleet).await.worker(), name(&fleet, 0));
    let log = get(&fleet, "/admin/v1/audit").await;
    let last = &log["entries"][0];
    assert_eq!(
        (&last["action"], &last["target"]),
        (&json!("workers.uncordon"), &json!(name(&fleet, 0)))
    );
    assert_eq!(
        (&last["before"], &last["after"]),
        (&json!("cordoned"), &json!("none"))
    );
}

#[tokio::test]
async fn a_worker_is_drained_once_its_requests_have_finished() {
    let fleet = Fleet::start(vec![stuck_in_decode()], |_| {}).await;
    let body = talk::ask("hi", json!({ "stream": true, "max_tokens": 9 }));
    let mut answer = fleet.open(&[], &body).await;
    answer.chunk().await.unwrap().unwrap();
    let draining = force(&fleet, &name(&fleet, 0), "drain").await;
    assert_eq!(draining.json()["state"], "draining");
    drop(answer);
    let worker = fleet.worker(&name(&fleet, 0));
    until("nothing is left", || worker.with_load(|load| load.in_flight == 0)).await;
    let drained = get(&fleet, &format!("{WORKERS}/{}", name(&fleet, 0))).await;
    assert_eq!(
        (&drained["state"], &drained["well"]),
        (&json!("drained"), &json!(true))
    );
}

#[tokio::test]
async fn a_process_that_hands_over_refuses_changes_and_still_answers_questions() {
    let fleet = Fleet::of(2).await;
    let state = &fleet.router.parts().state;
    state.operations.set_handed_over(true);
    let refused = post(&fleet, &name(&fleet, 0), "cordon").await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(
        refused.text().contains("nothing was changed"),
        "{}",
        refused.text()
    );
    let worker = get(&fleet, &format!("{WORKERS}/{}", name(&fleet, 0))).await;
    assert_eq!(worker["state"], "ready");
    state.operations.set_handed_over(false);
    assert_eq!(post(&fleet, &name(&fleet, 0), "cordon").await.status, 200);
}

#[tokio::test]
async fn an_alpha_override_holds_until_it_is_reverted() {
    let fleet = Fleet::of(1).await;
    let worker = fleet.worker(&name(&fleet, 0));
    let path = format!("{WORKERS}/{}/alpha", name(&fleet, 0));
    let set = async |more: Value| {
        let mut body = json!({ "alpha_ms_per_token": 0.7, "reason": "half of it is off" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        ask(&fleet, ("PUT", &path), &[], Some(&body)).await
    };
    let answer = set(json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["cost"]["alpha_ms_per_token"], 0.7);
    assert_eq!(answer.json()["alpha_set"]["learned_alpha_ms_per_token"], 0.1);
    let mut learned = worker.cost();
    learned.alpha_ms_per_token = 0.2;
    worker.set_cost(learned);
    assert_eq!(
        worker.cost().alpha_ms_per_token,
        0.7,
        "learning goes on beside it"
    );
    let back = post(&fleet, &name(&fleet, 0), "alpha/revert").await;
    assert_eq!(back.json()["cost"]["alpha_ms_per_token"], 0.2);
    assert_eq!(post(&fleet, &name(&fleet, 0), "alpha/revert").await.status, 409);
    set(json!({ "revert_after_s": 0.1 })).await;
    until("it ends by itself", || worker.pinned_alpha().is_none()).await;
    let bad = set(json!({ "alpha_ms_per_token": -1 })).await;
    assert_eq!(
        (bad.status.as_u16(), &bad.json()["errors"][0]["field"]),
        (422, &json!("alpha_ms_per_token"))
    );
}

#[tokio::test]
async fn learning_restarts_from_a_calibration() {
    let fleet = Fleet::of(2).await;
    let worker = fleet.worker(&name(&fleet, 0));
    until("it is known what it serves", || {
        worker.serves("another") == fleet::facts::Serves::No
    })
    .await;
    let path = format!("{WORKERS}/{}/calibration", name(&fleet, 0));
    let measured = json!({
        "alpha_ms_per_token": 0.35, "beta_ms": 7.5, "gamma_ms_per_token2": 2e-6, "model": "sim",
        "measured_at_unix_s": 1_700_000_000, "r_squared": 0.99, "reason": "a new driver",
    });
    let put = async |change: Value| {
        let mut body = measured.clone();
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        ask(&fleet, ("PUT", &path), &[], Some(&body)).await
    };
    let answer = put(json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["calibrated"]["alpha_ms_per_token"], 0.35);
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() / expected - 1.0).abs() < 1e-9;
    assert!(
        near(&answer.json()["cost"]["alpha_ms_per_token"], 0.35),
        "{}",
        answer.text()
    );
    let parts = fleet.router.parts();
    let state = parts
        .state
        .routing
        .feedback
        .costs
        .lock()
        .state(policy::ids::WorkerId(0))
        .unwrap();
    assert!(
        (state.cost.beta_ms / 7.5 - 1.0).abs() < 1e-9 && state.answers == 0,
        "{state:?}"
    );
    let entry = get(&fleet, "/admin/v1/audit").await["entries"][0].clone();
    assert_eq!(
        (&entry["action"], &entry["why"]),
        (&json!("workers.calibrate"), &json!("a new driver"))
    );
    assert_eq!(entry["after"]["beta_ms"], 7.5);
    // The other worker is unchanged, and invalid values change nothing.
    let other = get(&fleet, &format!("{WORKERS}/{}", name(&fleet, 1))).await;
    assert_eq!(other["calibrated"], Value::Null);
    let negative = put(json!({ "gamma_ms_per_token2": -1.0 })).await;
    assert_eq!(
        (negative.status.as_u16(), &negative.json()["errors"][0]["field"]),
        (422, &json!("gamma_ms_per_token2"))
    );
    let foreign = put(json!({ "model": "another" })).await;
    assert_eq!(foreign.status, 409, "{}", foreign.text());
    assert!((parts.state.routing.fleet.workers()[0].cost().alpha_ms_per_token / 0.35 - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn subscribers_are_notified_of_changes() {
    let fleet = Fleet::start(vec![quick(); 2], |_| {}).await;
    let address = fleet.router.admin_address;
    let host = address.to_string();
    let fields = [("host", host.as_str())];
    let mut events = tailroute_e2e::client::open(address, "GET", "/admin/v1/events", &fields, "")
        .await
        .unwrap();
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    let mut text = String::new();
    while !text.contains("listening") {
        text.push_str(std::str::from_utf8(&events.chunk().await.unwrap().unwrap()).unwrap());
    }
    super::change_policy(&fleet, json!({ "policy": "random" }), json!({})).await;
    post(&fleet, &name(&fleet, 1), "cordon").await;
    while !text.contains("event: worker") || !text.ends_with("\n\n") {
        text.push_str(std::str::from_utf8(&events.chunk().await.unwrap().unwrap()).unwrap());
    }
    let policy = text.find("event: policy").expect("the policy's change is told");
    assert!(policy < text.find("event: worker").unwrap(), "in order");
    assert!(
        text.contains("\"revision\":2") && text.contains("\"hold\":\"cordoned\""),
        "{text}"
    );
}

#[tokio::test]
async fn a_reason_with_control_characters_is_refused_and_audited_escaped() {
    let fleet = Fleet::of(2).await;
    let path = format!("{WORKERS}/{}/cordon", name(&fleet, 0));
    let forged = json!({ "reason": "tidy\n2026-11-27 23:59:59Z  admin\u{1b}[2K\u{202e}" });
    let refused = ask(&fleet, ("POST", &path), &[], Some(&forged)).await;
    assert_eq!(refused.status.as_u16(), 422);
    assert_eq!(refused.json()["errors"][0]["field"], "reason");
    assert_eq!(get(&fleet, WORKERS).await["workers"][0]["state"], "ready");
    let entry = get(&fleet, "/admin/v1/audit?limit=1").await["entries"][0].clone();
    assert_eq!(
        (&entry["outcome"], &entry["why"]),
        (
            &json!("refused"),
            &json!(r"tidy\n2026-11-27 23:59:59Z  admin\u001b[2K\u202e")
        )
    );
    // A name in the path reaches the log, too.
    let path = format!("{WORKERS}/%1b%5d0%3bowned%07/drain");
    ask(&fleet, ("POST", &path), &[], Some(&json!({ "reason": "r" }))).await;
    let entry = get(&fleet, "/admin/v1/audit?limit=1").await["entries"][0].clone();
    assert_eq!(entry["target"], r"\u001b]0;owned\u0007");
}

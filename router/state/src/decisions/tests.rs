use std::collections::BTreeSet;
use std::sync::Arc;

use config::{Config, Overrides};
use fleet::overrides::{AdminState, Measured, PinnedAlpha};
use fleet::source::WorkerSource;
use operator::revisions::{Change, RevisionSource};
use policy::cost::PrefillCost;
use policy::units::Millis;
use serde_json::json;

use super::*;

fn config() -> Config {
    let overrides = Overrides {
        workers: vec!["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()],
        ..Overrides::default()
    };
    let mut config = config::load_file(None, BTreeMap::new(), overrides).unwrap();
    for (worker, name) in config.workers.iter_mut().zip(["one", "two"]) {
        name.clone_into(&mut worker.name);
    }
    config
}

fn state(config: &Config) -> Arc<State> {
    State::new(config.clone()).unwrap()
}

fn spec(name: &str, url: &str) -> config::Worker {
    let document = json!({ "name": name, "url": url, "capacity_tokens": 480_000 });
    let document: config::WorkerDocument = config::read_document(&document).unwrap();
    document.check().unwrap()
}

fn locality(of: &State, value: f64, seconds: Option<f64>) {
    let mut settings = of.routing.policy.load().settings.clone();
    settings.weights.locality = value;
    let change = Change {
        settings,
        by: "ann".to_owned(),
        reason: None,
        source: RevisionSource::Put,
        revert_after: seconds.map(|seconds| Millis(seconds * 1e3)),
        sets: BTreeSet::new(),
    };
    of.change_policy(change, None).unwrap();
}

/// Returns the state of a router with a decision of every kind.
fn decided() -> Arc<State> {
    let state = state(&config());
    locality(&state, 3.0, Some(600.0));
    let one = state.routing.fleet.find("one").unwrap();
    one.set_admin_state(AdminState::Cordoned);
    one.pin_alpha(Some(PinnedAlpha {
        alpha_ms_per_token: 0.5,
        until: Some(state.routing.clock.now() + Millis(600_000.0)),
    }));
    let measured = Measured {
        cost: PrefillCost::linear(0.2, 5.0),
        at_unix_s: 7,
        r_squared: 0.9,
    };
    state.calibrate(&one, measured);
    let two = state.routing.fleet.find("two").unwrap();
    state.leave(&two);
    state.forget_if_done(&two);
    let three = state.join(spec("three", "http://127.0.0.1:3")).unwrap();
    three.set_admin_state(AdminState::Draining);
    let settings = policy::route::Settings {
        kappa_max: 7.0,
        ..policy::route::Settings::default()
    };
    state.routing.shadow.store(Some(Shadow::new(settings).into()));
    state
}

/// Returns each worker of a router with its source and hold.
fn workers(state: &State) -> Vec<(String, WorkerSource, AdminState)> {
    let present = state.routing.fleet.present();
    let shown = |worker: &Arc<fleet::Worker>| (worker.name().to_owned(), worker.source, worker.admin_state());
    present.iter().map(shown).collect()
}

fn restarted(config: &Config, document: &[u8]) -> Arc<State> {
    let state = state(config);
    restore(&state, document);
    state
}

#[tokio::test]
async fn everything_that_was_decided_is_in_force_after_a_restart() {
    let before = decided();
    let after = restarted(&config(), &taken(&before));
    assert_eq!(
        workers(&after),
        [
            (
                "one".to_owned(),
                WorkerSource::Configuration,
                AdminState::Cordoned
            ),
            ("three".to_owned(), WorkerSource::Operator, AdminState::Draining),
        ]
    );
    assert_eq!(
        after.routing.policy.load().settings,
        before.routing.policy.load().settings
    );
    assert_eq!(after.routing.policy.history().len(), 2);
    assert_eq!(
        after.routing.policy.now().1.keys().collect::<Vec<_>>(),
        ["/weights/locality"]
    );
    let one = after.routing.fleet.find("one").unwrap();
    assert_eq!(one.pinned_alpha().unwrap().alpha_ms_per_token, 0.5);
    assert_eq!(
        one.calibration(),
        before.routing.fleet.find("one").unwrap().calibration()
    );
    let three = after.routing.fleet.find("three").unwrap();
    assert_eq!(three.spec, before.routing.fleet.find("three").unwrap().spec);
    let shadow = after.routing.shadow.load();
    assert_eq!(shadow.as_ref().unwrap().settings.kappa_max, 7.0);
    // A second restart has it as well.
    let again = restarted(&config(), &taken(&after));
    assert_eq!(workers(&again), workers(&after));
    assert_eq!(
        again.routing.policy.now().0.revision,
        before.routing.policy.now().0.revision
    );
    let words = before.decided();
    for named in [
        "policy revision 2 by ann",
        "added three",
        "removed two",
        "one cordoned, α set, calibrated",
    ] {
        assert!(words.iter().any(|word| word == named), "{named}: {words:?}");
    }
}

#[tokio::test]
async fn nothing_decided_restores_nothing() {
    let before = state(&config());
    assert!(before.decided().is_empty());
    let after = restarted(&config(), &taken(&before));
    assert_eq!(workers(&after), workers(&before));
    assert_eq!(after.routing.policy.history().len(), 1);
}

#[tokio::test]
async fn an_entry_that_was_changed_in_the_file_since_has_the_last_word() {
    let document = taken(&decided());
    // The removed worker's entry has changed: its author wants it.
    let mut changed = config();
    changed.workers[1].capacity = policy::units::Tokens(1_000_000);
    changed.workers[1].capacity_is_known = true;
    let after = restarted(&changed, &document);
    assert!(after.routing.fleet.find("two").is_some());
    // The added worker is in the file now, under its name or another one.
    for name in ["three", "blue"] {
        let mut taken_over = config();
        taken_over.workers.push(spec(name, "http://127.0.0.1:3"));
        let after = restarted(&taken_over, &document);
        let found = after.routing.fleet.find(name).unwrap();
        assert_eq!(found.source, WorkerSource::Configuration);
        let hold = if name == "three" {
            AdminState::Draining
        } else {
            AdminState::None
        };
        assert_eq!(found.admin_state(), hold, "a hold follows the name");
        assert!(after.routing.fleet.find("two").is_none());
    }
    // Another address is another machine.
    let mut moved = config();
    moved.workers[0].url = "http://127.0.0.1:9".parse().unwrap();
    let after = restarted(&moved, &document);
    let one = after.routing.fleet.find("one").unwrap();
    assert_eq!(one.admin_state(), AdminState::Cordoned);
    assert!(one.pinned_alpha().is_none() && one.calibration().is_none());
    // A worker that left the file is forgotten.
    let mut without = config();
    without.workers.remove(1);
    assert_eq!(restarted(&without, &document).routing.fleet.present().len(), 2);
}

#[tokio::test]
async fn a_worker_that_was_replaced_under_its_name_stays_replaced() {
    let before = state(&config());
    let two = before.routing.fleet.find("two").unwrap();
    before.leave(&two);
    before.forget_if_done(&two);
    before.join(spec("two", "http://127.0.0.1:7")).unwrap();
    let after = restarted(&config(), &taken(&before));
    let two = after.routing.fleet.find("two").unwrap();
    assert_eq!(
        (two.source, two.spec.url.to_string()),
        (WorkerSource::Operator, "http://127.0.0.1:7/".to_owned())
    );
}

#[tokio::test]
async fn a_time_that_passed_in_between_has_ended() {
    let before = decided();
    let mut document: Value = serde_json::from_slice(&taken(&before)).unwrap();
    document["policy"]["timers"][0]["due_unix_ms"] = json!(1);
    document["workers"]["one"]["alpha"]["until_unix_ms"] = json!(1);
    let after = restarted(&config(), document.to_string().as_bytes());
    let (_, reverted) = after.revert_policy().expect("it is due");
    assert_eq!(reverted.settings, policy::route::Settings::default());
    let one = after.routing.fleet.find("one").unwrap();
    assert!(one.unpin_due(after.routing.clock.now()).is_some());
}

#[tokio::test]
async fn kept_state_of_a_worker_waits_until_discovery_has_found_it() {
    let before = decided();
    before
        .join_named(spec("pod", "http://127.0.0.1:5"), WorkerSource::Kubernetes, true)
        .unwrap();
    before
        .routing
        .fleet
        .find("pod")
        .unwrap()
        .set_admin_state(AdminState::Cordoned);
    let after = restarted(&config(), &taken(&before));
    assert!(after.routing.fleet.find("pod").is_none(), "discovery adds it");
    // A snapshot in the meantime has it, too.
    let after = restarted(&config(), &taken(&after));
    let pod = after
        .join_named(spec("pod", "http://127.0.0.1:5"), WorkerSource::Kubernetes, true)
        .unwrap();
    assert_eq!(pod.admin_state(), AdminState::Cordoned);
    after.drop_pending();
    assert!(kept(&after).contains_key("pod"));
    let unfound = restarted(&config(), &taken(&before));
    unfound.drop_pending();
    assert!(!kept(&unfound).contains_key("pod"));
}

fn kept(state: &State) -> BTreeMap<String, KeptWorker> {
    workers::kept(state)
}

#[tokio::test]
async fn each_member_is_checked_and_a_wrong_one_leaves_the_others() {
    let whole: Value = serde_json::from_slice(&taken(&decided())).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut document = whole.clone();
        *document.pointer_mut(pointer).unwrap() = value;
        restarted(&config(), document.to_string().as_bytes())
    };
    let names = |state: &State| {
        workers(state)
            .into_iter()
            .map(|(name, ..)| name)
            .collect::<Vec<_>>()
    };
    for (pointer, value) in [
        ("/policy", json!(7)),
        ("/policy/revisions/1/settings/weights/locality", json!(-1)),
        ("/shadow", json!([])),
        ("/shadow/settings", json!({ "kappa_max": 0 })),
    ] {
        assert_eq!(names(&with(pointer, value)), ["one", "three"], "{pointer}");
    }
    for (pointer, value) in [
        ("/added", json!({})),
        ("/added/0", json!(7)),
        ("/added/0/url", json!("ftp://x")),
        ("/added/0/url", json!("http://u:p@x")),
        ("/added/0/name", json!("a b")),
        (
            "/added/0",
            json!({ "url": "http://127.0.0.1:3", "api_key_file": "/etc/passwd" }),
        ),
        (
            "/added/0",
            json!({ "url": "http://127.0.0.1:3", "calibration": "/etc/passwd" }),
        ),
        ("/added/0", json!({ "url": "http://127.0.0.1:3", "ranks": 4 })),
        (
            "/added/0",
            json!({ "url": "http://127.0.0.1:3", "alpha_ms_per_token": -1 }),
        ),
    ] {
        let after = with(pointer, value.clone());
        assert_eq!(names(&after), ["one"], "{value}");
        assert_eq!(after.routing.policy.now().0.revision, 2, "{value}");
    }
    for (pointer, value) in [
        ("/workers", json!([])),
        ("/workers/one", json!({ "hold": "gone" })),
        ("/workers/one/hold", json!(7)),
    ] {
        let after = with(pointer, value);
        assert_eq!(
            after.routing.fleet.find("one").unwrap().admin_state(),
            AdminState::None,
            "{pointer}"
        );
        assert_eq!(names(&after), ["one", "three"]);
    }
    let after = with("/workers/one/alpha/alpha_ms_per_token", json!(-1));
    assert!(after.routing.fleet.find("one").unwrap().pinned_alpha().is_none());
    let after = with("/workers/one/measured/cost/alpha_ms_per_token", json!(1e300));
    assert!(after.routing.fleet.find("one").unwrap().calibration().is_none());
    for document in [&b""[..], b"7", b"[]", b"{}", b"{\"added\":[[[[", b"\xff"] {
        assert_eq!(names(&restarted(&config(), document)), ["one", "two"]);
    }
}

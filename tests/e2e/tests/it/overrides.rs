//! Turns routed with other weights than the rest: by class, or by request.

use config::{Config, WeightName};
use policy::units::Millis;
use serde_json::{Value, json};
use tailroute_e2e::client::{self, Fields};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{ask, words};

use crate::admin::{self, POLICY, change_policy, get, problem};

const ASK: &str = "x-tailroute-policy";

/// Configures a class `batch`.
fn with_batch(config: &mut Config) {
    config.objective.classes = vec![config::Class {
        name: "batch".to_owned(),
        ttft: Millis(30_000.0),
        models: Vec::new(),
    }];
}

async fn two(tweak: impl FnOnce(&mut Config)) -> Fleet {
    Fleet::start(vec![quick(); 2], |config| {
        with_batch(config);
        tweak(config);
    })
    .await
}

/// Returns the decision record of a turn with these headers.
async fn recorded(fleet: &Fleet, headers: Fields<'_>) -> Value {
    let answer = fleet.chat(headers, &ask(&words(1, 20), json!({}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let number = answer.header("x-tailroute-decision").unwrap().to_owned();
    let page = get(fleet, &format!("/admin/v1/decisions?decision={number}")).await;
    page["decisions"][0].clone()
}

/// Returns the policy of a turn with these headers, and the source of the override.
async fn placed(fleet: &Fleet, headers: Fields<'_>) -> (String, Value) {
    let found = recorded(fleet, headers).await;
    (
        found["policy"].as_str().unwrap().to_owned(),
        found["overridden"].clone(),
    )
}

/// Returns whether any request that reached an engine contains the header.
fn leaked(fleet: &Fleet) -> bool {
    let captured = fleet.engines.iter().flat_map(|engine| engine.captured());
    captured
        .into_iter()
        .any(|request| request.headers.contains_key(ASK))
}

#[tokio::test]
async fn turns_of_a_class_use_its_own_settings_and_record_that() {
    let fleet = two(|config| config.learning.costs = false).await;
    let change = json!({ "classes": { "batch": { "policy": "round_robin" }, "header": { "weights": { "slo": 4.0 } } } });
    let changed = change_policy(&fleet, change, json!({})).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    let batch = [("x-slo-class", "batch")];
    assert_eq!(placed(&fleet, &[]).await, ("tail".to_owned(), Value::Null));
    assert_eq!(
        placed(&fleet, &batch).await,
        (
            "round_robin".to_owned(),
            json!({ "class": "batch", "request": null })
        )
    );
    // β alone takes 20 ms: the time predicted beyond the objective of 1 ms is charged four times.
    let own = recorded(&fleet, &[("x-slo-ttft-ms", "1")]).await;
    assert_eq!(own["overridden"]["class"], "header");
    let terms = &own["terms"][0];
    let over = terms["predicted_ttft_ms"].as_f64().unwrap() - 1.0;
    assert!(over > 19.0);
    assert!(
        (terms["slo_ms"].as_f64().unwrap() - 4.0 * over).abs() < 0.01,
        "{terms}"
    );
    // The rollback restores the earlier behaviour.
    let back = json!({ "reason": "enough" });
    let path = ("POST", "/admin/v1/policy/rollback");
    assert_eq!(admin::ask(&fleet, path, &[], Some(&back)).await.status, 200);
    assert_eq!(placed(&fleet, &batch).await, ("tail".to_owned(), Value::Null));
    let entry = &get(&fleet, "/admin/v1/audit?limit=1").await["entries"][0];
    let policies = ["before", "after"].map(|side| entry[side]["settings"]["classes"].clone());
    assert_eq!(policies[0]["batch"], json!({ "policy": "round_robin" }));
    assert_eq!(policies[1], json!({}));
}

#[tokio::test]
async fn a_turn_may_request_listed_overrides_and_the_engine_does_not_see_the_header() {
    let fleet = two(|config| {
        config.routing.requests = config::Requests {
            named: true,
            weights: vec![WeightName::Slo, WeightName::Locality],
        };
        config.learning.costs = false;
        config.explain.in_answers = true;
    })
    .await;
    let change = json!({
        "classes": { "batch": { "policy": "least_ttft" } },
        "named": { "turns": { "policy": "round_robin" } },
    });
    assert_eq!(change_policy(&fleet, change, json!({})).await.status, 200);
    assert_eq!(
        placed(&fleet, &[(ASK, "turns")]).await,
        (
            "round_robin".to_owned(),
            json!({ "class": null, "request": "turns" })
        )
    );
    // The request's override takes precedence over its class's.
    assert_eq!(
        placed(&fleet, &[(ASK, "turns"), ("x-slo-class", "batch")]).await,
        (
            "round_robin".to_owned(),
            json!({ "class": "batch", "request": "turns" })
        )
    );
    let found = recorded(&fleet, &[(ASK, "slo=3, locality=0"), ("x-slo-ttft-ms", "1")]).await;
    assert_eq!(found["overridden"]["request"], "slo=3, locality=0");
    let terms = &found["terms"][0];
    let over = terms["predicted_ttft_ms"].as_f64().unwrap() - 1.0;
    assert!(
        (terms["slo_ms"].as_f64().unwrap() - 3.0 * over).abs() < 0.01,
        "{terms}"
    );
    assert_eq!(terms["kappa"], 1.0);
    let explained = fleet
        .chat(
            &[(ASK, "turns"), ("x-tailroute-explain", "1")],
            &ask("hi", json!({})),
        )
        .await;
    let why: Value = serde_json::from_str(explained.header("x-tailroute-explain").unwrap()).unwrap();
    assert_eq!(why["overridden"], json!({ "class": false, "request": true }));
    assert_eq!(why["policy"], "round_robin");
    assert!(!leaked(&fleet), "the header ends at the router");
}

/// Only named and listed overrides are accepted, exactly: a client that measures a policy must not measure another one.
#[tokio::test]
async fn forbidden_overrides_are_rejected_by_header_and_field() {
    let fleet = two(|config| {
        config.routing.requests.named = true;
        config.routing.requests.weights = vec![WeightName::Slo];
    })
    .await;
    let change = json!({ "named": { "turns": { "policy": "round_robin" } } });
    assert_eq!(change_policy(&fleet, change, json!({})).await.status, 200);
    let body = ask("hi", json!({}));
    for (value, field) in [
        ("", "found \"\""),
        ("tail", "found \"tail\"; there are: turns"),
        ("turns,slo=1", "found \"turns\""),
        ("locality=1", "\"locality\""),
        ("slo=1,slo=1", "`slo` twice"),
        ("slo=many", "`slo`: expected a number"),
        (
            "slo=-1",
            "`slo`: expected a number of at least 0 and at most 1000000",
        ),
        ("slo=NaN", "`slo`: expected a number"),
        ("slo=1;kappa_max=3", "`slo`: expected a number"),
    ] {
        let refused = fleet.chat(&[(ASK, value)], &body).await;
        assert_eq!(refused.status, 400, "{value}");
        assert_eq!(refused.error_code(), "invalid_policy_header");
        let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(said.contains(ASK) && said.contains(field), "{value}: {said}");
    }
    let twice = fleet.chat(&[(ASK, "turns"), (ASK, "turns")], &body).await;
    assert_eq!(twice.status, 400);
    assert!(twice.text().contains("2 times"), "{}", twice.text());
    assert_eq!(fleet.received(), [0, 0], "no engine was troubled");
}

#[tokio::test]
async fn the_override_header_is_ignored_unless_allowed() {
    let fleet = two(|_| {}).await;
    let change = json!({ "named": { "turns": { "policy": "round_robin" } } });
    assert_eq!(change_policy(&fleet, change, json!({})).await.status, 200);
    for value in ["turns", "slo=3", "slo=rubbish", ""] {
        assert_eq!(
            placed(&fleet, &[(ASK, value)]).await,
            ("tail".to_owned(), Value::Null),
            "{value}"
        );
    }
    // Nor is the header forwarded on routes without a choice.
    let path = "/v1/embeddings";
    let body = json!({ "input": "hi" }).to_string();
    client::call(fleet.address(), "POST", path, &[(ASK, "turns")], body).await;
    assert!(!leaked(&fleet));
    // The operator allows it while the router serves.
    let parts = fleet.router.parts();
    let mut config = (*parts.state.config).clone();
    config.routing.requests.named = true;
    tailroute::reload::reconfigure(parts, &config).unwrap();
    assert_eq!(placed(&fleet, &[(ASK, "turns")]).await.0, "round_robin");
    assert!(
        parts
            .state
            .operations
            .operator
            .reloads
            .lock()
            .needs_restart
            .is_empty()
    );
}

#[tokio::test]
async fn overrides_of_unknown_classes_or_out_of_range_are_rejected_by_field() {
    let fleet = two(|_| {}).await;
    let before = get(&fleet, POLICY).await;
    for (change, field, hint) in [
        (
            json!({ "classes": { "bach": {} } }),
            "settings.classes.bach",
            "did you mean `batch`?",
        ),
        (
            json!({ "classes": { "batch": { "policy": "tial" } } }),
            "settings.classes.batch.policy",
            "did you mean `tail`?",
        ),
        (
            json!({ "classes": { "batch": { "weights": { "slo": -1 } } } }),
            "settings.classes.batch.weights.slo",
            "",
        ),
        (
            json!({ "classes": { "batch": { "weights": { "sol": 1 } } } }),
            "settings.classes.batch.weights.sol",
            "did you mean `slo`?",
        ),
        (
            json!({ "classes": { "batch": { "kappa_max": 0.5 } } }),
            "settings.classes.batch.kappa_max",
            "",
        ),
        (json!({ "named": { "slo=1": {} } }), "settings.named.slo=1", ""),
        (
            json!({ "named": (0..65).map(|at| (at.to_string(), json!({}))).collect::<serde_json::Map<_, _>>() }),
            "settings.named",
            "",
        ),
    ] {
        let refused = change_policy(&fleet, change, json!({})).await;
        assert_eq!(
            (refused.status.as_u16(), problem(&refused).as_str()),
            (422, "invalid")
        );
        let errors = refused.json()["errors"].clone();
        assert_eq!(errors[0]["field"], field, "{errors}");
        assert_eq!(errors[0]["hint"].as_str().unwrap_or_default(), hint, "{errors}");
    }
    assert_eq!(get(&fleet, POLICY).await, before, "nothing has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_are_set_and_removed_with_ctl() {
    let fleet = two(|_| {}).await;
    let classes = || async { get(&fleet, POLICY).await["settings"]["classes"].clone() };
    let set = [
        "policy",
        "set",
        "classes.batch.weights.slo=2",
        "classes.batch.policy=least_ttft",
        "--reason",
        "nights",
    ];
    admin::well(&fleet, &set).await;
    assert_eq!(
        classes().await,
        json!({ "batch": { "policy": "least_ttft", "weights": { "slo": 2.0 } } })
    );
    admin::well(&fleet, &["policy", "show"]).await;
    admin::well(
        &fleet,
        &["policy", "set", "classes.batch.policy=null", "--reason", "less"],
    )
    .await;
    assert_eq!(classes().await, json!({ "batch": { "weights": { "slo": 2.0 } } }));
    admin::well(
        &fleet,
        &["policy", "set", "classes.batch=null", "--reason", "none"],
    )
    .await;
    assert_eq!(classes().await, json!({}));
}

#[tokio::test]
async fn previews_and_shadows_use_the_settings_of_classes() {
    let fleet = two(|_| {}).await;
    let why = json!({ "reason": "a test" });
    admin::ask(&fleet, ("POST", "/admin/v1/capture/start"), &[], Some(&why)).await;
    let with = |class: &str| {
        let mut settings = json!(policy::route::Settings::default());
        settings["classes"][class] = json!({ "policy": "round_robin" });
        json!({ "settings": settings, "reason": "a test" })
    };
    let shadow = admin::ask(
        &fleet,
        ("PUT", "/admin/v1/policy/shadow"),
        &[],
        Some(&with("batch")),
    )
    .await;
    assert_eq!(shadow.status, 200, "{}", shadow.text());
    let mut talk = tailroute_e2e::talk::Conversation::new(&words(1, 400));
    for turn in 0..40 {
        let class: Fields<'_> = &[("x-slo-class", "batch")];
        fleet.turn(&mut talk, class, &words(turn, 5)).await;
    }
    fleet.at_rest().await;
    let preview = |class: &'static str| {
        let mut body = with(class);
        body.as_object_mut().unwrap().remove("reason");
        let fleet = &fleet;
        async move {
            let path = ("POST", "/admin/v1/policy/preview");
            let answer = admin::ask(fleet, path, &[], Some(&body)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()["moved"].as_u64().unwrap()
        }
    };
    assert!(preview("batch").await > 5, "every other turn leaves its prefix");
    assert_eq!(preview("header").await, 0, "no turn is of that class");
    let seen = get(&fleet, "/admin/v1/policy/shadow").await;
    assert_eq!(seen["tally"]["turns"], 40);
    assert_eq!(seen["tally"]["elsewhere"], 20);
}

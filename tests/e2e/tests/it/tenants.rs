//! A prefix of one tenant neither speeds up nor reveals another's.

use std::collections::HashSet;

use serde_json::{Value, json};
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::talk::{Conversation, ask, words};

use crate::admission::{bearer, key, turns_seen};

mod endpoints;

fn two_tenants(config: &mut config::Config) {
    let shared = config::Key {
        tenant: "a".to_owned(),
        ..key("a2")
    };
    config.keys = vec![key("a"), shared, key("b")];
}

/// Returns the predicted cached tokens.
async fn predicted(fleet: &Fleet) -> f64 {
    let page = fleet.metrics().await;
    page.sum("tailroute_prompt_tokens_total", &[("kind", "predicted_cached")])
}

#[tokio::test]
async fn an_identical_prompt_of_another_tenant_gives_no_cache_hit() {
    let fleet = Fleet::start(vec![quick()], two_tenants).await;
    let mut talk = Conversation::new(&words(1, 400));
    let (a, a2, b) = (bearer("a"), bearer("a2"), bearer("b"));
    let first = fleet.turn(&mut talk, &[("authorization", &a)], "hello").await;
    assert_eq!(first.cached, 0);
    fleet.at_rest().await;
    for (who, secret, shares) in [("b", &b, false), ("a2", &a2, true), ("a", &a, true)] {
        let before = predicted(&fleet).await;
        let mut same = talk.clone();
        let turned = fleet
            .turn(&mut same, &[("authorization", secret)], "and then?")
            .await;
        fleet.at_rest().await;
        let foreseen = predicted(&fleet).await - before;
        assert_eq!(turned.cached > 300, shares, "{who}: {turned:?}");
        assert_eq!(foreseen > 300.0, shares, "{who}: {foreseen} predicted");
        if !shares {
            assert_eq!((turned.cached, foreseen), (0, 0.0), "{who}: not even a block");
        }
    }
}

#[tokio::test]
async fn a_client_cannot_name_another_tenants_salt_or_conversation() {
    let fleet = Fleet::start(vec![quick()], two_tenants).await;
    let (a, b) = (bearer("a"), bearer("b"));
    let mut talk = Conversation::new(&words(1, 400));
    let session = [("authorization", a.as_str()), ("x-session-id", "shared-name")];
    fleet.turn(&mut talk, &session, "hello").await;
    fleet.at_rest().await;
    let (headers, body) = turns_seen(&fleet).pop().unwrap();
    let (name, others) = (headers["x-session-id"].clone(), body["cache_salt"].clone());
    let others = others.as_str().unwrap();
    assert_ne!(name, "shared-name");
    let (mut bodies, mut salts) = (Vec::new(), HashSet::new());
    for own in [
        json!(others),
        json!("1:a:"),
        json!(""),
        json!(null),
        json!(7),
        json!([others]),
    ] {
        bodies.push(talk.body(json!({ "cache_salt": own })).to_string());
    }
    // The field twice, and once with an escaped name.
    let plain = talk.body(json!({})).to_string();
    let rest = plain.strip_prefix('{').unwrap();
    bodies.push(format!(r#"{{"cache_salt":"x","cache_salt":"{others}",{rest}"#));
    bodies.push(format!(r#"{{"cache\u005fsalt":"{others}",{rest}"#));
    for body in bodies {
        let headers = [("authorization", b.as_str()), ("x-session-id", "shared-name")];
        let answer = client::open(fleet.address(), "POST", CHAT, &headers, body.clone())
            .await
            .unwrap()
            .whole()
            .await;
        let (headers, seen) = turns_seen(&fleet).pop().unwrap();
        let salt = seen["cache_salt"].as_str().unwrap().to_owned();
        assert_ne!(salt, others);
        assert_ne!(headers["x-session-id"], "shared-name");
        assert_ne!(headers["x-session-id"], name);
        if answer.status == 400 {
            // This engine rejects duplicate fields. Others take the last one, which is the router's.
            assert!(
                body.contains("u005f") || body.matches("cache_salt").count() > 1,
                "{body}"
            );
            continue;
        }
        assert_eq!(answer.status, 200, "{body}");
        let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
        let cached = cached.as_u64().unwrap();
        let again = !salts.insert(salt);
        assert!(cached == 0 || again, "{body}: {cached}");
    }
}

#[tokio::test]
async fn a_client_can_end_only_its_own_tenants_conversation() {
    let fleet = Fleet::start(vec![quick(), quick()], two_tenants).await;
    let (a, b) = (bearer("a"), bearer("b"));
    let mut talk = Conversation::new(&words(1, 400));
    let mine = [("authorization", a.as_str()), ("x-session-id", "s")];
    let home = fleet.turn(&mut talk, &mine, "hello").await.engine;
    fleet.at_rest().await;
    let theirs = [
        ("authorization", b.as_str()),
        ("x-session-id", "s"),
        ("x-session-end", "1"),
    ];
    let mut other = Conversation::new(&words(9, 50));
    fleet.turn(&mut other, &theirs, "over").await;
    fleet.at_rest().await;
    let again = fleet.turn(&mut talk, &mine, "still here?").await;
    assert_eq!(again.engine, home);
    assert!(again.cached > 300, "{again:?}");
}

#[tokio::test]
async fn without_salts_in_bodies_the_router_still_separates_tenants() {
    let fleet = Fleet::start(vec![quick()], |config| {
        two_tenants(config);
        config.admission.salt_requests = false;
    })
    .await;
    let mut talk = Conversation::new(&words(1, 400));
    let (a, b) = (bearer("a"), bearer("b"));
    fleet.turn(&mut talk, &[("authorization", &a)], "hello").await;
    fleet.at_rest().await;
    let before = predicted(&fleet).await;
    fleet
        .turn(&mut talk.clone(), &[("authorization", &b)], "hello")
        .await;
    fleet.at_rest().await;
    let after = predicted(&fleet).await;
    assert_eq!(after - before, 0.0);
    assert!(
        turns_seen(&fleet)
            .iter()
            .all(|(_, body)| body.get("cache_salt").is_none())
    );
}

/// Returns whether engines accept this as a salt: vLLM allows at most 128 characters, and not all of them.
fn is_salt(value: &Value) -> bool {
    let hex = |salt: &str| salt.len() == 64 && salt.bytes().all(|byte| byte.is_ascii_hexdigit());
    value.as_str().is_some_and(hex)
}

#[tokio::test]
async fn salts_are_valid_for_engines_whatever_the_names() {
    let fleet = Fleet::start(vec![quick()], |config| {
        config.keys = vec![key("team/a@corp"), key("b\\c")];
    })
    .await;
    let mut salts = HashSet::new();
    let own = ["", "x@y/z", &"long".repeat(100), "nul\0"];
    for (name, own) in ["team/a@corp", "b\\c"]
        .into_iter()
        .flat_map(|name| own.map(|own| (name, own)))
    {
        let body = ask("hi", json!({ "cache_salt": own }));
        let answer = fleet.chat(&[("authorization", &bearer(name))], &body).await;
        assert_eq!(answer.status, 200);
        let salt = turns_seen(&fleet).pop().unwrap().1["cache_salt"].clone();
        assert!(is_salt(&salt), "{salt}");
        salts.insert(salt.to_string());
    }
    assert_eq!(salts.len(), 2 * own.len());
}

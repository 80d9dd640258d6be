//! The admin port: roles, and the audit log.

mod ctl;
mod document;
mod index;
mod members;
mod policy;
mod preview;
mod workers;

pub(crate) use ctl::well;

use std::path::Path;

use config::Role;
use operator::secret::hash;
use serde_json::{Value, json};
use tailroute_e2e::client::{self, Fields, Whole};
use tailroute_e2e::fleet::{Fleet, quick};

use crate::admission::{bearer, secret};

pub(crate) const POLICY: &str = "/admin/v1/policy";

/// Calls the admin port.
pub(crate) async fn ask(
    fleet: &Fleet,
    (method, path): (&str, &str),
    headers: Fields<'_>,
    body: Option<&Value>,
) -> Whole {
    client::admin(fleet.router.admin_address, method, path, headers, body).await
}

/// Sends a GET and returns the JSON.
pub(crate) async fn get(fleet: &Fleet, path: &str) -> Value {
    let answer = ask(fleet, ("GET", path), &[], None).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Changes the policy in force by `change`.
pub(crate) async fn change_policy(fleet: &Fleet, change: Value, more: Value) -> Whole {
    let mut settings = get(fleet, POLICY).await["settings"].clone();
    merge(&mut settings, change);
    let mut body = json!({ "settings": settings, "reason": "a test" });
    merge(&mut body, more);
    ask(fleet, ("PUT", POLICY), &[("if-match", "*")], Some(&body)).await
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A router with a token for each role: `reader`, `operator`, `boss`.
async fn guarded(audit: &Path) -> Fleet {
    let token = |name: &str, role| config::Token {
        name: name.to_owned(),
        digest: hash(secret(name).as_bytes()),
        role,
    };
    let tokens = vec![
        token("reader", Role::Read),
        token("operator", Role::Operate),
        token("boss", Role::Admin),
    ];
    Fleet::start(vec![quick()], |config| {
        config.admin.tokens_file = Some("/run/secrets/tokens.toml".into());
        config.admin.tokens = tokens;
        config.admin.audit = Some(config::Audit {
            path: audit.to_owned(),
            max_bytes: 1.try_into().unwrap(),
        });
    })
    .await
}

/// Checks that the response is a problem document and returns its code.
pub(crate) fn problem(answer: &Whole) -> String {
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let json = answer.json();
    assert_eq!(json["status"], answer.status.as_u16());
    assert!(json["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    let kind = json["type"].as_str().unwrap();
    kind.strip_prefix("urn:tailroute:problem:").unwrap().to_owned()
}

#[tokio::test]
async fn each_role_includes_the_lower_ones_and_unknown_tokens_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = guarded(&folder.path().join("audit.jsonl")).await;
    let settings = json!(defaults());
    let body = json!({ "settings": settings, "reason": "why not" });
    for (name, may_read, may_put) in [
        ("stranger", 401, 401),
        ("reader", 200, 403),
        ("operator", 200, 403),
        ("boss", 200, 200),
    ] {
        let token = bearer(name);
        let fields = [("authorization", token.as_str()), ("if-match", "*")];
        let read = ask(&fleet, ("GET", POLICY), &fields, None).await;
        assert_eq!(read.status, may_read, "{name}");
        let put = ask(&fleet, ("PUT", POLICY), &fields, Some(&body)).await;
        assert_eq!(put.status, may_put, "{name}: {}", put.text());
        if may_put == 403 {
            assert_eq!(problem(&put), "forbidden");
            assert!(put.text().contains("role admin"), "{}", put.text());
        }
        let page = ask(&fleet, ("GET", "/metrics"), &fields[..1], None).await;
        assert_eq!(page.status, may_read, "{name}");
    }
    // The entry of the unauthorised request.
    let boss = bearer("boss");
    let page = ask(
        &fleet,
        ("GET", "/metrics"),
        &[("authorization", boss.as_str())],
        None,
    )
    .await;
    let counted = r#"tailroute_admin_requests_total{operation="metrics",status="401"} 1"#;
    assert!(page.text().contains(counted), "{}", page.text());
    let nobody = ask(&fleet, ("GET", POLICY), &[], None).await;
    assert_eq!(
        (nobody.status.as_u16(), problem(&nobody).as_str()),
        (401, "unauthorized")
    );
    assert_eq!(nobody.header("www-authenticate"), Some("Bearer"));
    // Probes have no tokens.
    for path in ["/livez", "/readyz"] {
        assert_eq!(ask(&fleet, ("GET", path), &[], None).await.status, 200);
    }
}

fn defaults() -> ::policy::route::Settings {
    ::policy::route::Settings::default()
}

#[tokio::test]
async fn changes_and_rejections_are_audited_with_author_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let fleet = guarded(&file).await;
    let boss = bearer("boss");
    let fields = [("authorization", boss.as_str()), ("if-match", "*")];
    let mut settings = json!(defaults());
    settings["weights"]["locality"] = json!(2.5);
    let good = json!({ "settings": settings, "reason": "the fleet is bigger now" });
    settings["weights"]["locality"] = json!(-1);
    let bad = json!({ "settings": settings, "reason": "a slip" });
    assert_eq!(
        ask(&fleet, ("PUT", POLICY), &fields, Some(&good)).await.status,
        200
    );
    assert_eq!(
        ask(&fleet, ("PUT", POLICY), &fields, Some(&bad)).await.status,
        422
    );
    let reader = bearer("reader");
    let reader = [("authorization", reader.as_str()), ("if-match", "*")];
    assert_eq!(
        ask(&fleet, ("PUT", POLICY), &reader, Some(&good)).await.status,
        403
    );

    let log = ask(&fleet, ("GET", "/admin/v1/audit"), &reader[..1], None)
        .await
        .json();
    let [forbidden, refused, applied] = log["entries"].as_array().unwrap().as_slice() else {
        panic!("{log}");
    };
    assert_eq!(
        (&applied["who"]["name"], &applied["why"], &applied["outcome"]),
        (
            &json!("boss"),
            &json!("the fleet is bigger now"),
            &json!("applied")
        )
    );
    assert_eq!(applied["before"]["settings"]["weights"]["locality"], 0.8);
    assert_eq!(applied["after"]["settings"]["weights"]["locality"], 2.5);
    assert!(applied["at_unix_ms"].as_u64().unwrap() > 1_600_000_000_000);
    assert_eq!(
        (&refused["outcome"], &refused["why"]),
        (&json!("refused"), &json!("a slip"))
    );
    let why = refused["refused"].as_str().unwrap();
    assert!(why.contains("settings.weights.locality"), "{why}");
    assert_eq!(
        (&forbidden["who"]["name"], &forbidden["outcome"]),
        (&json!("reader"), &json!("refused"))
    );
    // The latest entry of each kind, because the files have their smallest size, and the one before it in the rotated
    // file.
    let line = |ending: &str| {
        let text = std::fs::read_to_string(folder.path().join(format!("audit.jsonl{ending}"))).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(&line(""), applied);
    assert_eq!(&line(".refused"), forbidden);
    assert_eq!(&line(".refused.1"), refused);
}

#[tokio::test]
async fn changed_tokens_are_reloaded_and_never_dropped_by_an_invalid_file() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = guarded(&folder.path().join("audit.jsonl")).await;
    let parts = fleet.router.parts();
    let mut config = (*parts.state.config).clone();
    config.admin.tokens.retain(|token| token.name != "boss");
    assert!(
        tailroute::reload::reconfigure(parts, &config)
            .unwrap()
            .needs_restart
            .is_empty()
    );
    let boss = bearer("boss");
    let fields = [("authorization", boss.as_str())];
    assert_eq!(ask(&fleet, ("GET", POLICY), &fields, None).await.status, 401);
    config.admin.tokens_file = None;
    let refused = tailroute::reload::reconfigure(parts, &config).unwrap_err();
    assert!(refused.to_string().contains("open the admin API"), "{refused}");
    assert_eq!(ask(&fleet, ("GET", POLICY), &[], None).await.status, 401);
}

#[tokio::test]
async fn without_tokens_cross_site_requests_of_browsers_are_rejected() {
    let fleet = Fleet::of(1).await;
    let rebound = [("host", "evil.example:9090")];
    let answer = ask(&fleet, ("GET", POLICY), &rebound, None).await;
    assert_eq!(
        (answer.status.as_u16(), problem(&answer).as_str()),
        (403, "forbidden")
    );
    let crossing = [("sec-fetch-site", "cross-site")];
    for path in [POLICY, "/metrics"] {
        assert_eq!(ask(&fleet, ("GET", path), &crossing, None).await.status, 403);
        assert_eq!(ask(&fleet, ("GET", path), &rebound, None).await.status, 403);
    }
    // A request that an HTML form can send without a CORS preflight.
    let form = [("host", "localhost:9090"), ("content-type", "text/plain")];
    let body = json!({ "reason": "x" }).to_string();
    let address = fleet.router.admin_address;
    let answer = client::call(address, "POST", "/admin/v1/policy/rollback", &form, body).await;
    assert_eq!(
        (answer.status.as_u16(), problem(&answer).as_str()),
        (415, "media-type")
    );
    assert_eq!(ask(&fleet, ("GET", POLICY), &form[..1], None).await.status, 200);
}

#[tokio::test]
async fn the_root_leads_to_the_console() {
    let fleet = Fleet::of(1).await;
    for (path, status) in [("/", 307), ("/console", 308)] {
        let answer = ask(&fleet, ("GET", path), &[], None).await;
        let to = answer.header("location").map(str::to_owned);
        assert_eq!(
            (answer.status.as_u16(), to.as_deref()),
            (status, Some("/console/"))
        );
    }
    let page = ask(&fleet, ("GET", "/console/"), &[], None).await;
    assert!(page.status == 200 && page.text().contains("<title>tailroute"));
}

#[tokio::test]
async fn unknown_paths_are_problem_documents() {
    let fleet = Fleet::of(1).await;
    let nowhere = ask(&fleet, ("GET", "/admin/v1/polcy"), &[], None).await;
    assert_eq!(
        (nowhere.status.as_u16(), problem(&nowhere).as_str()),
        (404, "not-found")
    );
    let method = ask(&fleet, ("DELETE", POLICY), &[], None).await;
    assert_eq!(
        (method.status.as_u16(), problem(&method).as_str()),
        (405, "method-not-allowed")
    );
    let allowed = method.header("allow").unwrap();
    assert!(allowed.contains("GET") && allowed.contains("PUT"), "{allowed}");
    let query = ask(&fleet, ("GET", "/admin/v1/audit?limit=0&nope=1"), &[], None).await;
    assert_eq!((query.status.as_u16(), problem(&query).as_str()), (400, "query"));
    assert!(!query.text().contains("nothing was changed"), "{}", query.text());
    let errors = query.json()["errors"].clone();
    assert_eq!(
        (&errors[0]["field"], &errors[1]["field"]),
        (&json!("limit"), &json!("nope"))
    );
    let unknown: serde_json::Map<_, _> = (0..10_000).map(|key| (format!("polcy{key}"), json!(1))).collect();
    let unknown = ask(&fleet, ("PUT", POLICY), &[], Some(&json!(unknown))).await;
    assert_eq!(unknown.status, 422);
    let errors = unknown.json()["errors"].as_array().unwrap().clone();
    assert_eq!(errors.len(), 33);
    // Missing fields are reported too.
    assert_eq!(errors[32]["detail"], "and 9970 more");
    let blank = json!({ "reason": " \t" });
    let blank = ask(&fleet, ("POST", "/admin/v1/policy/rollback"), &[], Some(&blank)).await;
    assert_eq!(
        (blank.status.as_u16(), &blank.json()["errors"][0]["field"]),
        (422, &json!("reason"))
    );
    let long = json!({ "reason": "x".repeat(300_000) });
    let long = ask(&fleet, ("PUT", POLICY), &[], Some(&long)).await;
    assert_eq!(
        (long.status.as_u16(), problem(&long).as_str()),
        (413, "too-large")
    );
}

//! `tailroute ctl`, against a running router.

use std::ffi::OsString;
use std::process::ExitCode;

use serde_json::json;
use tailroute_e2e::fleet::Fleet;

use super::get;

/// Runs `tailroute ctl` with these arguments on a thread of its own. Returns whether it succeeded.
async fn ctl(fleet: &Fleet, arguments: &[&str]) -> bool {
    let admin = format!("http://{}", fleet.router.admin_address);
    let line: Vec<OsString> = ["tailroute", "ctl", "--admin", &admin]
        .iter()
        .chain(arguments)
        .map(OsString::from)
        .collect();
    let code = tokio::task::spawn_blocking(move || tailroute::cli::run(line))
        .await
        .unwrap();
    code == ExitCode::SUCCESS
}

/// Runs it and checks that it succeeds.
pub(crate) async fn well(fleet: &Fleet, arguments: &[&str]) {
    assert!(ctl(fleet, arguments).await, "{arguments:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_action_is_a_command() {
    let fleet = Fleet::of(2).await;
    let name = fleet.engines[0].addr().to_string();
    let name = name.as_str();
    for arguments in [
        &["policy"][..],
        &["--json", "policy", "show"],
        &[
            "policy",
            "set",
            "policy=random",
            "weights.locality=1.5",
            "--reason",
            "try",
            "--for",
            "600",
        ],
        &["policy", "history"],
        &["policy", "rollback", "--to", "1", "--reason", "back"],
        &["policy", "shadow-set", "policy=round_robin", "--reason", "look"],
        &["policy", "shadow"],
        &["policy", "shadow-stop", "--reason", "seen"],
        &["index"],
        &["index", "--order", "shared", "--worker", name, "--limit", "5"],
        &["workers"],
        &["workers", "show", name],
        &[
            "workers",
            "add",
            "http://127.0.0.1:9",
            "--name",
            "late",
            "capacity_tokens=64000",
            "dialect=none",
            "--reason",
            "more work",
        ],
        &["workers", "remove", "late", "--reason", "less work", "--wait"],
        &["workers", "cordon", name, "--reason", "new driver", "--force"],
        &["workers", "drain", name, "--reason", "new driver", "--wait"],
        &["workers", "uncordon", name, "--reason", "done"],
        &[
            "workers",
            "alpha",
            name,
            "--ms-per-token",
            "0.2",
            "--reason",
            "slow",
        ],
        &["workers", "alpha-revert", name, "--reason", "fast"],
        &["capture", "start", "--reason", "weights"],
        &["keys"],
        &["capture", "status"],
        &["capture", "turns"],
        &["capture", "stop", "--reason", "enough"],
        &["audit", "--limit", "5"],
        &["decisions", "--late"],
        &[
            "decisions",
            "--late=false",
            "--worker",
            name,
            "--class",
            "default",
            "--limit",
            "5",
        ],
        &["trace", "0123456789abcdef0123456789abcdef"],
        &["slo"],
        &["config"],
        &["openapi"],
        &["completions", "bash"],
        &["generate", "man"],
    ] {
        assert!(ctl(&fleet, arguments).await, "{arguments:?}");
    }
    let history = get(&fleet, "/admin/v1/policy/history").await["revisions"].clone();
    assert_eq!(
        (&history[1]["settings"]["policy"], &history[1]["reason"]),
        (&json!("random"), &json!("try"))
    );
    assert_eq!(history[1]["settings"]["weights"]["locality"], 1.5);
    assert_eq!(
        (&history[0]["source"], &history[0]["settings"]),
        (&json!("rollback"), &history[2]["settings"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_explained_by_its_id_and_top_shows_the_fleet() {
    let fleet = Fleet::of(2).await;
    let body = tailroute_e2e::talk::ask("hi", json!({}));
    let answer = fleet.chat(&[("x-request-id", "a b/c")], &body).await;
    let id = answer.header("x-request-id").unwrap().to_owned();
    well(&fleet, &["explain", &id]).await;
    well(&fleet, &["explain", &id[..id.len() - 1]]).await;
    assert!(!ctl(&fleet, &["explain", "nobody-asked-this"]).await);
    let admin = format!("http://{}", fleet.router.admin_address);
    let line = ["tailroute", "top", "--once", "--admin", &admin].map(OsString::from);
    let code = tokio::task::spawn_blocking(move || tailroute::cli::run(line))
        .await
        .unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_or_unreachable_command_fails() {
    let fleet = Fleet::of(1).await;
    for arguments in [
        &["policy", "set", "weights.localty=1", "--reason", "a slip"][..],
        &["policy", "set", "weights.load=-1", "--reason", "a slip"],
        &["policy", "set", "locality=1", "--reason", "a slip"],
        &["trace", "no-trace"],
        &["policy", "rollback", "--reason", "nothing before"],
        &["workers", "cordon", "nobody", "--reason", "a slip"],
        &["keys", "reset", "nobody", "--reason", "a slip"],
        &["policy", "preview", "policy=random"],
        &["--token-file", "/nowhere/token", "policy"],
        &["--admin", "http://127.0.0.1:1", "policy"],
    ] {
        assert!(!ctl(&fleet, arguments).await, "{arguments:?}");
    }
    assert_eq!(get(&fleet, super::POLICY).await["revision"], 1);
}

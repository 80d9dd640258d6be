//! Discovery by a file that lists workers.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use tailroute_e2e::fleet::{at_rest, quick};
use tailroute_e2e::talk::{self, words};
use tailroute_e2e::wait::until;

use super::{Finding, engine};

/// Writes a file like a mounted ConfigMap: a symbolic link to a folder is swapped.
fn mount(folder: &Path, version: &str, text: &str) {
    let data = folder.join(version);
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("workers.toml"), text).unwrap();
    symlink(version, folder.join("..new")).unwrap();
    std::fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    let link = folder.join("workers.toml");
    if !link.exists() {
        symlink("..data/workers.toml", link).unwrap();
    }
}

fn worker(name: &str, at: std::net::SocketAddr) -> String {
    format!("[[workers]]\nname = {name:?}\nurl = \"http://{at}\"\n")
}

#[tokio::test]
async fn workers_follow_a_mounted_file_and_a_bad_one_changes_nothing() {
    let (a, b) = (engine(quick()).await, engine(quick()).await);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("workers.toml");
    let finding = Finding::start(&format!(
        "[discovery.file]\npath = {:?}\n",
        path.display().to_string()
    ))
    .await;
    let what = finding.until_failing().await;
    assert!(what.contains("workers.toml: cannot be read"), "{what}");
    mount(folder.path(), "1", &worker("a", a.addr()));
    finding.until_ready(&["a"]).await;
    assert_eq!(finding.source().await["failure"], Value::Null);
    mount(
        folder.path(),
        "2",
        &format!("{}{}", worker("a", a.addr()), worker("b", b.addr())),
    );
    finding.until_ready(&["a", "b"]).await;
    mount(
        folder.path(),
        "3",
        &format!("{}capacity_tokenz = 1\n", worker("b", b.addr())),
    );
    let what = finding.until_failing().await;
    assert!(
        what.contains("workers[0].capacity_tokenz: unknown key; did you mean `capacity_tokens`?"),
        "{what}"
    );
    assert_eq!(finding.names(), ["a", "b"]);
    assert_eq!(finding.chat().await.status, 200);
    let page = finding.metrics().await;
    assert_eq!(page.sum("tailroute_discovery_up", &[("source", "file")]), 0.0);
    assert!(page.sum("tailroute_discovery_failures_total", &[("source", "file")]) >= 2.0);
    mount(folder.path(), "4", &worker("b", b.addr()));
    finding.until_gone("a").await;
    finding.until_heard_again().await;
    assert_eq!(finding.admin("/admin/v1/workers/b").await["source"], "file");
    mount(folder.path(), "5", "workers = []\n");
    until("nobody to be left", || finding.names().is_empty()).await;
}

#[tokio::test]
async fn learned_state_of_discovered_workers_survives_a_restart() {
    let a = engine(quick()).await;
    let folder = tempfile::tempdir().unwrap();
    let (workers, snapshot) = (folder.path().join("workers.toml"), folder.path().join("snapshot"));
    std::fs::write(&workers, worker("a", a.addr())).unwrap();
    let text = format!(
        "[discovery.file]\npath = {:?}\n[index]\nsnapshot_path = {:?}\n",
        workers.display().to_string(),
        snapshot.display().to_string()
    );
    let finding = Finding::start(&text).await;
    finding.until_ready(&["a"]).await;
    let body = talk::ask(&words(1, 300), json!({}));
    assert_eq!(finding.open(&body).await.whole().await.status, 200);
    let held = |finding: &Finding| {
        finding
            .router
            .parts()
            .state
            .routing
            .knowledge
            .held(finding.find("a").unwrap().id)
            .0
    };
    until("it to be learned", || held(&finding) > 0).await;
    at_rest(&finding.router).await;
    let before = held(&finding);
    finding.router.drain().await;
    let finding = Finding::start(&text).await;
    finding.until_ready(&["a"]).await;
    until("it to be restored", || held(&finding) == before).await;
}

//! A router whose files are not regular files, or cannot grow.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tailroute_e2e::child::{Child, Surroundings, free_address, metrics};
use tailroute_e2e::client::{self, CHAT, call};
use tailroute_e2e::talk::{ask, words};

/// On a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < LONG, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_size_limit_drops_captured_turns_and_nothing_else() {
    let engine = Child::engine(free_address(), true, 0.0).await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tailroute.toml");
    let capture = folder.path().join("capture");
    let text = format!(
        "[[workers]]\nurl = \"http://{}\"\n[capture]\npath = \"{}\"\n[log]\nlevel = \"error\"\n",
        engine.address,
        capture.display()
    );
    std::fs::write(&config, text).unwrap();
    let found = Surroundings {
        stderr: Stdio::null(),
        shell: "ulimit -f 8".to_owned(),
    };
    let admin = free_address();
    let mut router = Child::router_in(free_address(), admin, &config, found).await;
    until("turns are left out", async || {
        for seed in 0..20 {
            let body = ask(&words(seed, 20), json!({ "max_tokens": 1 })).to_string();
            let answer = call(router.address, "POST", CHAT, &[], body).await;
            assert_eq!(answer.status, 200);
        }
        let page = metrics(admin).await;
        page.sum("tailroute_capture_turns_total", &[("outcome", "failed")]) > 0.0
    })
    .await;
    router.signal("TERM");
    let ended = tokio::time::timeout(LONG, router.ends()).await;
    assert!(ended.expect("it ends"));
    // While the router runs, a line that does not fit may be there until it is undone.
    let lines = std::fs::read_to_string(&capture).unwrap();
    assert!(lines.ends_with('\n'), "whole lines");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_pipes_are_rejected_without_blocking() {
    let engine = Child::engine(free_address(), true, 0.0).await;
    let folder = tempfile::tempdir().unwrap();
    let [config, workers, snapshot] =
        ["tailroute.toml", "workers.toml", "snapshot"].map(|name| folder.path().join(name));
    let text = format!(
        "[discovery.file]\npath = \"{}\"\n[index]\nsnapshot_path = \"{}\"\nsnapshot_interval_s = 1\n[log]\nlevel = \"error\"\n",
        workers.display(),
        snapshot.display()
    );
    std::fs::write(&config, text).unwrap();
    let listed = |name: &str| {
        let other = folder.path().join("other");
        let text = format!(
            "[[workers]]\nname = \"{name}\"\nurl = \"http://{}\"\n",
            engine.address
        );
        std::fs::write(&other, text).unwrap();
        std::fs::rename(other, &workers).unwrap();
    };
    listed("first");
    pipe(&snapshot);
    let admin = free_address();
    let found = Surroundings {
        stderr: Stdio::null(),
        ..Surroundings::default()
    };
    let mut router = Child::router_in(free_address(), admin, &config, found).await;
    std::fs::remove_file(&workers).unwrap();
    pipe(&workers);
    until("the pipe is told of", async || {
        let sources = client::admin(admin, "GET", "/admin/v1/discovery", &[], None).await;
        sources.text().contains("not a regular file")
    })
    .await;
    std::fs::remove_file(&workers).unwrap();
    listed("second");
    until("the file is read again", async || {
        let page = metrics(admin).await;
        page.sum("tailroute_worker_ready", &[("worker", "second")]) > 0.0
    })
    .await;
    router.signal("TERM");
    let ended = tokio::time::timeout(LONG, router.ends()).await;
    assert!(ended.expect("it ends"));
}

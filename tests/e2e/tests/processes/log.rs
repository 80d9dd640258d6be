//! A router whose standard error cannot be written to, or is not read.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use tailroute_e2e::child::{Child, Surroundings, free_address, metrics};
use tailroute_e2e::client::{CHAT, call};
use tailroute_e2e::talk::{ask, words};

/// On a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A router with this log level and a worker.
struct Serving {
    router: Child,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Serving {
    async fn start(engine: SocketAddr, level: &str, stderr: impl Into<Stdio>) -> Self {
        let (folder, admin) = (tempfile::tempdir().unwrap(), free_address());
        let config = folder.path().join("tailroute.toml");
        let text = format!(
            "[[workers]]\nurl = \"http://{engine}\"\n[health]\ninterval_ms = 1000\n[log]\nlevel = \"{level}\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let found = Surroundings {
            stderr: stderr.into(),
            ..Surroundings::default()
        };
        let router = Child::router_in(free_address(), admin, &config, found).await;
        Self {
            router,
            admin,
            _folder: folder,
        }
    }

    async fn turn(&self) -> u16 {
        let body = ask(&words(1, 20), json!({ "max_tokens": 1 })).to_string();
        call(self.router.address, "POST", CHAT, &[], body)
            .await
            .status
            .as_u16()
    }

    async fn dropped(&self, why: &str) -> f64 {
        let page = metrics(self.admin).await;
        page.sum("tailroute_log_lines_dropped_total", &[("why", why)])
    }

    /// Waits until lines are lost for this reason.
    async fn loses(&self, why: &str) {
        let begun = Instant::now();
        while self.dropped(why).await == 0.0 {
            assert!(begun.elapsed() < LONG, "no line was lost");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn is_ready(&self) -> bool {
        metrics(self.admin).await.sum("tailroute_worker_ready", &[]) > 0.0
    }

    async fn becomes(&self, ready: bool) {
        let begun = Instant::now();
        while self.is_ready().await != ready {
            assert!(begun.elapsed() < LONG, "the worker's readiness stays {}", !ready);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn ends_when_told(&mut self) {
        self.router.signal("TERM");
        let ended = tokio::time::timeout(LONG, self.router.ends()).await;
        assert!(ended.expect("it ends"), "it ends well");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unwritable_log_loses_only_its_lines() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, gone) = std::io::pipe().unwrap();
    drop(reader);
    for stderr in [Stdio::from(full), Stdio::from(gone)] {
        let address = free_address();
        let mut engine = Child::engine(address, true, 0.0).await;
        let mut serving = Serving::start(address, "debug", stderr).await;
        assert_eq!(serving.turn().await, 200);
        // The log lines of the probes cannot be written.
        engine.kill();
        serving.becomes(false).await;
        let _engine = Child::engine(address, true, 0.0).await;
        serving.becomes(true).await;
        for _ in 0..20 {
            assert_eq!(serving.turn().await, 200);
        }
        serving.loses("failed").await;
        let page = metrics(serving.admin).await;
        assert_eq!(page.sum("tailroute_task_restarts_total", &[]), 0.0);
        serving.ends_when_told().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_log_blocks_nothing_and_reports_lost_lines_later() {
    let engine = Child::engine(free_address(), true, 0.0).await;
    let (reader, writer) = std::io::pipe().unwrap();
    let mut serving = Serving::start(engine.address, "trace", writer).await;
    let begun = Instant::now();
    while serving.dropped("full").await == 0.0 {
        assert!(begun.elapsed() < LONG, "no line was lost");
        for _ in 0..50 {
            assert_eq!(serving.turn().await, 200);
        }
        let alive = call(serving.admin, "GET", "/livez", &[], "").await;
        assert_eq!(alive.status, 200);
    }
    let (tells, mut told) = tokio::sync::mpsc::unbounded_channel();
    let reading = std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map(Result::unwrap) {
            if line.contains("lines of the log were lost") {
                tells.send(line).unwrap();
            }
        }
    });
    while serving.dropped("full").await == 0.0 || serving.turn().await != 200 {}
    for _ in 0..50 {
        assert_eq!(serving.turn().await, 200);
    }
    // Before its end, at which the router waits only a second for a slow reader.
    let line = tokio::time::timeout(LONG, told.recv()).await;
    let line = line.expect("the log says how much was lost").unwrap();
    assert!(line.contains("WARN"), "{line}");
    serving.ends_when_told().await;
    drop(serving);
    reading.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_with_an_unread_log_exits_on_sigterm() {
    let engine = Child::engine(free_address(), true, 0.0).await;
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut serving = Serving::start(engine.address, "trace", writer).await;
    let begun = Instant::now();
    while serving.dropped("full").await == 0.0 {
        assert!(begun.elapsed() < LONG, "no line was lost");
        assert_eq!(serving.turn().await, 200);
    }
    serving.ends_when_told().await;
}

//! What every scenario stands on: engines, a router before them, and what the router holds.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use protocol::tenant::hex;
use serde_json::Value;
use tailroute::admission::keys::hash;
use tailroute_e2e::child::{Child, Usage, free_address, metrics, tailroute};
use tailroute_e2e::metrics::Page;

/// Milliseconds between the tokens of an honest engine.
const GAP_MS: f64 = 40.0;
/// The router returns to its state at rest within this time: connections to workers are kept idle for some seconds.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// Idle connections and tasks that the router may keep for each worker, beyond those at rest.
const KEPT_PER_WORKER: usize = 4;

/// Limits short enough for a test to see each of them expire, and small enough for a budget to be worth something.
const LIMITS: &str = "
[limits]
header_timeout_s = 2
body_timeout_s = 3
idle_timeout_s = 4
first_byte_timeout_s = 20
max_connections = 4000
max_in_flight = 2000
max_unread_bytes = 134217728
drain_timeout_s = 20
";
/// Hostile workers stay in rotation however often they fail, and an engine gets an honest request as its client wrote it.
const ALWAYS: &str = "
[failure]
breaker_failures = 1000000
[health]
interval_ms = 2000
timeout_ms = 2000
[admission]
salt_requests = false
[index]
max_bytes = 67108864
";
/// A stranger's connection without an answer under way is closed within this time: the longest of the limits above, and
/// the time in which a client may read its last answer.
pub(crate) const CLOSED_WITHIN: Duration = Duration::from_secs(12);

/// Who has a key.
pub(crate) const HONEST: &str = "honest";
pub(crate) const RUDE: &str = "rude";
/// Its key has an allowance of tokens.
pub(crate) const METERED: &str = "metered";

/// What the client of that key sends.
pub(crate) fn bearer(name: &str) -> String {
    format!("Bearer tr-secret-of-{name}")
}

/// A worker of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) address: SocketAddr,
    /// Further lines of its section.
    pub(crate) lines: String,
}

/// What a scenario asks for.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Honest engines.
    pub(crate) engines: usize,
    /// Workers of the scenario's own.
    pub(crate) workers: Vec<Worker>,
    /// Limits in place of those above, if any.
    pub(crate) limits: Option<String>,
    /// Further sections.
    pub(crate) more: String,
    /// Commands of the shell that starts the router.
    pub(crate) shell: String,
}

/// Engines and a router.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) engines: Vec<Child>,
    pub(crate) router: Child,
    pub(crate) admin: SocketAddr,
    _folder: tempfile::TempDir,
    config: PathBuf,
    workers: usize,
}

/// What the router held at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) usage: Usage,
    pub(crate) in_flight: f64,
    pub(crate) queued: f64,
    pub(crate) tasks: f64,
}

fn configuration(plan: &Plan, engines: &[Child]) -> String {
    let mut text = String::new();
    for engine in engines {
        let _ = writeln!(text, "[[workers]]\nurl = \"http://{}\"", engine.address);
    }
    for Worker { address, lines } in &plan.workers {
        let _ = writeln!(text, "[[workers]]\nurl = \"http://{address}\"\n{lines}");
    }
    for name in [HONEST, RUDE, METERED] {
        let digest = hex(&hash(bearer(name).trim_start_matches("Bearer ").as_bytes()).0);
        let _ = writeln!(text, "[[keys]]\nname = \"{name}\"\nsha256 = \"{digest}\"");
        if name == METERED {
            text.push_str("tokens_per_min = 100000\n");
        }
    }
    text.push_str(plan.limits.as_deref().unwrap_or(LIMITS));
    text.push_str(ALWAYS);
    text.push_str(&plan.more);
    if !plan.more.contains("[log]") {
        text.push_str("[log]\nlevel = \"off\"\n");
    }
    text
}

impl Stage {
    /// Starts what the plan asks for, and waits until every worker is ready.
    pub(crate) async fn start(plan: Plan) -> Self {
        let mut engines = Vec::new();
        for _ in 0..plan.engines {
            engines.push(Child::engine(free_address(), true, GAP_MS).await);
        }
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("tailroute.toml");
        std::fs::write(&config, configuration(&plan, &engines)).unwrap();
        let admin = free_address();
        let router = Child::router_under(&plan.shell, free_address(), admin, &config).await;
        let stage = Self {
            workers: engines.len() + plan.workers.len(),
            engines,
            router,
            admin,
            _folder: folder,
            config,
        };
        stage.all_ready().await;
        stage
    }

    /// Where clients connect.
    pub(crate) fn data(&self) -> SocketAddr {
        self.router.address
    }

    /// Waits until every worker is ready.
    pub(crate) async fn all_ready(&self) {
        let until = Instant::now() + SETTLED_WITHIN;
        while self.page().await.sum("tailroute_worker_ready", &[]) != self.workers as f64 {
            assert!(Instant::now() < until, "the workers are not ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The metrics page.
    pub(crate) async fn page(&self) -> Page {
        metrics(self.admin).await
    }

    /// What the router holds now.
    pub(crate) async fn sample(&self) -> Sample {
        let page = self.page().await;
        Sample {
            usage: self.router.usage(),
            in_flight: page.sum("tailroute_worker_in_flight", &[]),
            queued: page.sum("tailroute_admission_waiting", &[])
                + page.sum("tailroute_admission_inside", &[]),
            tasks: page.sum("tailroute_tasks", &[]),
        }
    }

    /// Waits until the router holds what it held at rest; returns what it holds when it does, or at last.
    pub(crate) async fn settled(&self, at_rest: Sample) -> Sample {
        let until = Instant::now() + SETTLED_WITHIN;
        loop {
            let now = self.sample().await;
            if Self::is_at_rest(now, at_rest, self.workers) || Instant::now() > until {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn is_at_rest(now: Sample, at_rest: Sample, workers: usize) -> bool {
        let kept = KEPT_PER_WORKER * workers;
        now.in_flight == 0.0
            && now.queued == 0.0
            && now.usage.fds <= at_rest.usage.fds + kept
            && now.tasks <= at_rest.tasks + (2 * kept) as f64
    }

    /// Descriptors that the router may hold after a scenario.
    pub(crate) fn most_fds(&self, at_rest: Sample) -> usize {
        at_rest.usage.fds + KEPT_PER_WORKER * self.workers
    }

    /// Tasks that may run in the router after a scenario.
    pub(crate) fn most_tasks(&self, at_rest: Sample) -> f64 {
        at_rest.tasks + (2 * KEPT_PER_WORKER * self.workers) as f64
    }

    /// The memory, in KiB, that strangers can make the router hold, as `tailroute check --json` says it.
    pub(crate) fn budget_kib(&self) -> u64 {
        let arguments = ["check", "--json", "--no-env"].map(str::to_owned);
        let file = self.config.display().to_string();
        let mut checking = tailroute(&[&arguments[..], &[file]].concat(), "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A part ends when its standard input does.
        let _held = checking.stdin.take();
        let output = checking.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let report = text.find('{').zip(text.rfind('}'));
        let (from, to) = report.expect("a report");
        let report: Value = serde_json::from_str(&text[from..=to]).unwrap();
        assert_eq!(report["ok"], true, "{report}");
        report["memory"]["bytes"].as_u64().expect("a budget") / 1024
    }
}

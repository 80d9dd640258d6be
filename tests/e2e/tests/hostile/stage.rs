//! The common setup of scenarios: engines, a router, and its resource usage.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use operator::secret::hash;
use protocol::tenant::hex;
use serde_json::Value;
use tailroute_e2e::child::{Child, Usage, free_address, metrics, tailroute};
use tailroute_e2e::metrics::Page;

/// Milliseconds between the tokens of an honest engine.
const GAP_MS: f64 = 40.0;
/// Time for the router to return to its idle state: idle connections to workers are kept for some seconds.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// Idle connections and tasks per worker beyond those of the idle state.
const KEPT_PER_WORKER: usize = 4;

/// Limits short enough to expire within a test, and small enough for a meaningful memory budget.
const LIMITS: &str = "
[limits]
header_timeout_s = 4
body_timeout_s = 3
client_idle_timeout_s = 4
idle_timeout_s = 4
first_byte_timeout_s = 20
max_connections = 4000
max_in_flight = 2000
max_unread_bytes = 134217728
drain_timeout_s = 20
";
/// Keeps hostile workers in rotation however often they fail, and honest requests unmodified.
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
/// Time within which a hostile connection without a pending response is closed: the longest of the limits above, and
/// the time for a client to read its last response; as much again on a slow machine.
pub(crate) const CLOSED_WITHIN: Duration = Duration::from_secs(18);

/// The names of the API keys.
pub(crate) const HONEST: &str = "honest";
pub(crate) const RUDE: &str = "rude";
/// A key with a token limit.
pub(crate) const METERED: &str = "metered";

/// Returns the authorisation header of that key.
pub(crate) fn bearer(name: &str) -> String {
    format!("Bearer tr-secret-of-{name}")
}

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) address: SocketAddr,
    /// Further lines of its section.
    pub(crate) lines: String,
}

/// The parameters of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Number of honest engines.
    pub(crate) engines: usize,
    /// The scenario's own workers.
    pub(crate) workers: Vec<Worker>,
    /// Limits in place of the default ones, if any.
    pub(crate) limits: Option<String>,
    /// Further sections of the configuration.
    pub(crate) more: String,
    /// Shell commands before the router.
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

/// The router's resource usage at one moment.
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
    /// Starts the processes, and waits until every worker is ready.
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

    /// Returns the address of the data port.
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

    /// Fetches the metrics page.
    pub(crate) async fn page(&self) -> Page {
        metrics(self.admin).await
    }

    /// Returns the current resource usage.
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

    /// Waits until the resource usage is as in the idle state, or a timeout. Returns it.
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

    /// Returns the most descriptors allowed after a scenario.
    pub(crate) fn most_fds(&self, at_rest: Sample) -> usize {
        at_rest.usage.fds + KEPT_PER_WORKER * self.workers
    }

    /// Returns the most tasks allowed after a scenario.
    pub(crate) fn most_tasks(&self, at_rest: Sample) -> f64 {
        at_rest.tasks + (2 * KEPT_PER_WORKER * self.workers) as f64
    }

    /// Returns the memory budget in KiB, from `tailroute check --json`.
    pub(crate) fn budget_kib(&self) -> u64 {
        let arguments = ["check", "--json", "--no-env"].map(str::to_owned);
        let file = self.config.display().to_string();
        let mut checking = tailroute(&[&arguments[..], &[file]].concat(), "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The child exits when its standard input is closed.
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

//! Processes: this test program started again as an engine or a router.
//!
//! A test program that starts processes has an ignored test called `part`, which only calls [`play`]. If
//! `TAILROUTE_BIN` names a binary, that is used as the router instead.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use sim_engine::{Engine, EngineConfig};

use crate::client;
use crate::metrics::Page;

/// The variable that selects a process's part.
const PART: &str = "TAILROUTE_TEST_PART";
/// The variable with the process's arguments, one per line.
const ARGUMENTS: &str = "TAILROUTE_TEST_ARGUMENTS";
/// The variable with the path of the router's binary.
const BINARY: &str = "TAILROUTE_BIN";
/// Time for a process to answer after its start, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(30);

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    /// Listen address.
    pub address: SocketAddr,
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The environment of a new process.
#[derive(Debug)]
pub struct Surroundings {
    /// Standard error of the process.
    pub stderr: Stdio,
    /// Shell commands to run before the process, such as `ulimit -f 16`; none if empty.
    pub shell: String,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            stderr: Stdio::inherit(),
            shell: String::new(),
        }
    }
}

impl Child {
    fn start(address: SocketAddr, mut command: Command) -> Self {
        // The child reads standard input, whose end when this process dies ends the child too.
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        Self { process, address }
    }

    /// Starts an engine, in fast mode or not, that takes `token_ms` milliseconds per token of a response.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn engine(address: SocketAddr, fast: bool, token_ms: f64) -> Self {
        let arguments = [address.to_string(), fast.to_string(), token_ms.to_string()];
        let child = Self::start(address, part("engine", &arguments, ""));
        child.answers("/health").await;
        if fast {
            let pace = serde_json::json!({ "gap_ms": token_ms }).to_string();
            let set = client::call(address, "PUT", "/sim/pace", &[], pace).await;
            assert_eq!(set.status, 200);
        }
        child
    }

    /// Starts `tailroute serve` with this configuration file.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn router(address: SocketAddr, admin: SocketAddr, config: &Path) -> Self {
        Self::router_under("", address, admin, config).await
    }

    /// Starts `tailroute serve` as [`Self::router`] does, after these shell commands, such as `ulimit` or a redirection
    /// of standard error.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn router_under(shell: &str, address: SocketAddr, admin: SocketAddr, config: &Path) -> Self {
        let found = Surroundings {
            shell: shell.to_owned(),
            ..Surroundings::default()
        };
        Self::router_in(address, admin, config, found).await
    }

    /// Starts `tailroute serve` with this configuration file in this environment.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn router_in(
        address: SocketAddr,
        admin: SocketAddr,
        config: &Path,
        found: Surroundings,
    ) -> Self {
        let config = ["--config".to_owned(), config.display().to_string()];
        Self::serve(address, admin, config, found).await
    }

    /// Starts `tailroute serve` with defaults and this worker.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn router_by_default(address: SocketAddr, admin: SocketAddr, worker: SocketAddr) -> Self {
        let worker = ["--worker".to_owned(), format!("http://{worker}")];
        Self::serve(address, admin, worker, Surroundings::default()).await
    }

    async fn serve(
        address: SocketAddr,
        admin: SocketAddr,
        workers: [String; 2],
        found: Surroundings,
    ) -> Self {
        let serve = [
            "serve",
            "--listen",
            &address.to_string(),
            "--admin",
            &admin.to_string(),
        ]
        .map(str::to_owned);
        let arguments = [&serve[..], &workers].concat();
        let mut command = tailroute(&arguments, &found.shell);
        command.stderr(found.stderr);
        let child = Self::start(address, command);
        let admin = Self::answers_at(admin, "/readyz").await;
        assert!(admin, "the router is not ready");
        child
    }

    /// Sends a signal, such as `TERM`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.process.id().to_string()])
            .status();
        assert!(sent.unwrap().success(), "{self:?} is gone");
    }

    /// Waits until the process exits by itself. Returns whether it was successful.
    ///
    /// # Panics
    /// If its status cannot be read.
    pub async fn ends(&mut self) -> bool {
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.success();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn answers(&self, path: &str) {
        assert!(Self::answers_at(self.address, path).await, "{self:?}");
    }

    async fn answers_at(address: SocketAddr, path: &str) -> bool {
        let answered = async {
            loop {
                if let Ok(answer) = client::open(address, "GET", path, &[], "").await
                    && answer.status == 200
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(STARTED_WITHIN, answered).await.is_ok()
    }

    /// Returns whether the process is running.
    ///
    /// # Panics
    /// If its status cannot be read.
    pub fn lives(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Kills the process as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have exited by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the resource usage of the process.
    ///
    /// # Panics
    /// If it is not running.
    pub fn usage(&self) -> Usage {
        let of = |what: &str| format!("/proc/{}/{what}", self.process.id());
        let status = std::fs::read_to_string(of("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Usage {
            rss_kib: field("VmRSS:"),
            peak_kib: field("VmHWM:"),
            threads: field("Threads:"),
            fds: std::fs::read_dir(of("fd")).unwrap().count(),
        }
    }

    /// Returns the voluntary context switches of each running thread, by thread id: the number of times that it has
    /// waited.
    ///
    /// # Panics
    /// If it is not running.
    pub fn waits(&self) -> BTreeMap<String, u64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let of_thread = |task: std::fs::DirEntry| {
            // A thread may have ended.
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            Some((
                task.file_name().to_string_lossy().into_owned(),
                line.trim().parse().ok()?,
            ))
        };
        tasks.filter_map(|task| of_thread(task.unwrap())).collect()
    }
}

/// The resource usage of a process.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Resident memory.
    pub rss_kib: u64,
    /// Peak resident memory.
    pub peak_kib: u64,
    /// Number of threads.
    pub threads: u64,
    /// Number of open files and sockets.
    pub fds: usize,
}

/// Returns a command that runs the router with these arguments, after these shell commands, if any.
///
/// # Panics
/// If the path of this program is unknown.
#[must_use]
pub fn tailroute(arguments: &[String], shell: &str) -> Command {
    match std::env::var_os(BINARY) {
        Some(binary) => {
            let mut command = under(shell, &binary);
            command.args(arguments);
            command
        }
        None => part("router", arguments, shell),
    }
}

fn part(part: &str, arguments: &[String], shell: &str) -> Command {
    let mut command = under(shell, std::env::current_exe().unwrap().as_os_str());
    command
        .args(["part", "--exact", "--ignored", "--nocapture"])
        .env(PART, part)
        .env(ARGUMENTS, arguments.join("\n"));
    command
}

fn under(shell: &str, program: &OsStr) -> Command {
    if shell.is_empty() {
        return Command::new(program);
    }
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell}\nexec \"$0\" \"$@\"")])
        .arg(program);
    command
}

/// Returns a free address, each time another one. Another process may take the port before it is used, which is
/// unlikely.
///
/// # Panics
/// If there is none.
pub fn free_address() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        if GIVEN.lock().insert(address) {
            return address;
        }
    }
}

/// Fetches a router's metrics page.
///
/// # Panics
/// If it cannot be fetched.
pub async fn metrics(admin: SocketAddr) -> Page {
    Page::read(client::admin(admin, "GET", "/metrics", &[], None).await.text())
}

/// Runs the part that this process was started for, if any.
///
/// # Panics
/// If the part fails.
#[expect(
    clippy::disallowed_methods,
    reason = "a part whose test is gone has nothing left to drain"
)]
pub fn play() {
    let Ok(part) = std::env::var(PART) else { return };
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    std::thread::spawn(|| {
        // Ends when the parent process has ended in any way.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    match part.as_str() {
        "engine" => play_engine(&arguments),
        "router" => {
            let arguments = std::iter::once("tailroute".to_owned()).chain(arguments);
            let ended = tailroute::cli::run(arguments.map(Into::into));
            assert_eq!(ended, std::process::ExitCode::SUCCESS);
        }
        other => panic!("no part is called {other}"),
    }
}

fn play_engine(arguments: &[String]) {
    let [listen, fast, token_ms] = arguments else {
        panic!("{arguments:?}");
    };
    let config = EngineConfig {
        listen: listen.parse().unwrap(),
        fast: fast.parse().unwrap(),
        tpot_ms: token_ms.parse().unwrap(),
        tpot_batch_ms: 0.0,
        prefill: policy::cost::PrefillCost::linear(0.01, 4.0),
        ..EngineConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let _engine = Engine::start(config).await.unwrap();
        std::future::pending::<()>().await;
    });
}

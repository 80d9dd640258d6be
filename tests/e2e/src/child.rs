//! Processes: this program, started again to play an engine or a router.
//!
//! A test's program that starts them has an ignored test called `part`, which does nothing but [`play`]. If `TAILROUTE_BIN`
//! names a binary, that is the router instead.

use std::ffi::OsStr;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sim_engine::{Engine, EngineConfig};

use crate::client;
use crate::metrics::Page;

/// Names the part that a process plays.
const PART: &str = "TAILROUTE_TEST_PART";
/// Its arguments, one a line.
const ARGUMENTS: &str = "TAILROUTE_TEST_ARGUMENTS";
/// Names the router's binary.
const BINARY: &str = "TAILROUTE_BIN";
/// For a process to answer after it was started, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(30);

/// A process. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a process finds when it starts.
#[derive(Debug)]
pub struct Surroundings {
    /// Its standard error.
    pub stderr: Stdio,
    /// What a shell does before it becomes the process, such as `ulimit -f 16`; nothing if it is empty.
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
        // What is read of standard input never ends while this process lives; then the part ends too.
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        Self { process, address }
    }

    /// An engine in fast mode, or one that computes, with this many milliseconds a token.
    ///
    /// # Panics
    /// If it does not come up.
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

    /// `tailroute serve` with this configuration file.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn router(address: SocketAddr, admin: SocketAddr, config: &Path) -> Self {
        Self::router_under("", address, admin, config).await
    }

    /// The same, started by a shell that runs these commands first: `ulimit`, or where standard error goes.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn router_under(shell: &str, address: SocketAddr, admin: SocketAddr, config: &Path) -> Self {
        let found = Surroundings {
            shell: shell.to_owned(),
            ..Surroundings::default()
        };
        Self::router_in(address, admin, config, found).await
    }

    /// `tailroute serve` with this configuration file, in these surroundings.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn router_in(
        address: SocketAddr,
        admin: SocketAddr,
        config: &Path,
        found: Surroundings,
    ) -> Self {
        let arguments = [
            "serve".to_owned(),
            "--config".to_owned(),
            config.display().to_string(),
            "--listen".to_owned(),
            address.to_string(),
            "--admin".to_owned(),
            admin.to_string(),
        ];
        let mut command = tailroute(&arguments, &found.shell);
        command.stderr(found.stderr);
        let child = Self::start(address, command);
        let admin = Self::answers_at(admin, "/readyz").await;
        assert!(admin, "the router is not ready");
        child
    }

    /// Sends it a signal, such as `TERM`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.process.id().to_string()])
            .status();
        assert!(sent.unwrap().success(), "{self:?} is gone");
    }

    /// Waits until it has ended by itself, and returns whether it says that all is well.
    ///
    /// # Panics
    /// If the kernel does not tell.
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

    /// Whether it is still there.
    ///
    /// # Panics
    /// If the kernel does not tell.
    pub fn lives(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What the kernel says of it.
    ///
    /// # Panics
    /// If it is gone.
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
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Resident memory.
    pub rss_kib: u64,
    /// The most of it since the process began.
    pub peak_kib: u64,
    /// Threads.
    pub threads: u64,
    /// Open files and sockets.
    pub fds: usize,
}

/// The router's command line with these arguments, started by a shell that runs these commands first, if there are any.
///
/// # Panics
/// If this program has no path.
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

/// This program, to play a part.
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

/// A port that is free now. Somebody else may take it before it is used; nobody does on purpose.
///
/// # Panics
/// If there is none.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A router's metrics page.
///
/// # Panics
/// If there is none.
pub async fn metrics(admin: SocketAddr) -> Page {
    Page::read(client::admin(admin, "GET", "/metrics", &[], None).await.text())
}

/// Plays the part that this process was started for, if any.
///
/// # Panics
/// If it does not end well.
#[expect(
    clippy::disallowed_methods,
    reason = "a part whose test is gone has nothing left to drain"
)]
pub fn play() {
    let Ok(part) = std::env::var(PART) else { return };
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let arguments: Vec<String> = arguments.lines().map(str::to_owned).collect();
    std::thread::spawn(|| {
        // Ends when who started it has ended, however that was.
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

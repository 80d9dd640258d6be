//! A real NATS server on a free port that can be killed and restarted.

use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// Time for a server to listen after its start, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(20);

/// A server and its data directory.
#[derive(Debug)]
pub(crate) struct Nats {
    pub(crate) address: SocketAddr,
    folder: TempDir,
    has_jetstream: bool,
    process: Option<Child>,
}

/// Returns the path of the server's program.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("NATS_SERVER") {
        return path.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut programs = folders.map(|folder| folder.join("nats-server"));
    let found = programs.find(|program| Path::exists(program));
    found.expect("nats-server is not installed: `scripts/replicas env` installs it, or NATS_SERVER names it")
}

/// Returns a port below the ephemeral range, so that no outgoing connection takes it while the server is down.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16;
    loop {
        let number = first
            .wrapping_mul(61)
            .wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 15_000 + number % 15_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Nats {
    /// Starts an empty server.
    pub(crate) async fn start() -> Self {
        Self::start_with(true).await
    }

    /// Starts an empty server, with JetStream or without.
    pub(crate) async fn start_with(has_jetstream: bool) -> Self {
        let mut nats = Self {
            address: SocketAddr::from(([127, 0, 0, 1], free_port())),
            folder: tempfile::tempdir().unwrap(),
            has_jetstream,
            process: None,
        };
        nats.revive().await;
        nats
    }

    /// Restarts the server with its data.
    pub(crate) async fn revive(&mut self) {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let process = Command::new(program())
            .args(["--addr", "127.0.0.1", "--port", &self.address.port().to_string()])
            .args(self.has_jetstream.then_some("--jetstream"))
            .arg("--debug")
            .arg("--store_dir")
            .arg(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let greets = async {
            while !greets(self.address).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let greets = tokio::time::timeout(STARTED_WITHIN, greets).await;
        assert!(greets.is_ok(), "nats-server does not start");
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("nats.log")
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }
}

/// Returns whether a NATS server greets a new connection.
async fn greets(address: SocketAddr) -> bool {
    let mut greeting = [0; 5];
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return false;
    };
    stream.read_exact(&mut greeting).await.is_ok() && greeting == *b"INFO "
}

impl Drop for Nats {
    /// Kills the server. If the test has failed, prints whether the server was still running, and its log.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let exit = self.process.as_mut().map(Child::try_wait);
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
            eprintln!("nats-server at {}: {exit:?}\n{log}", self.address);
        }
        self.kill();
    }
}

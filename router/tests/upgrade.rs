//! Tests of listening sockets with real processes: an upgrade under load without failed requests, and ports that
//! a service manager opens before the process starts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use sim_engine::{Engine, EngineConfig};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Timeout of a whole test.
const PATIENCE: Duration = Duration::from_secs(180);

fn start(config: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tailroute"))
        .args(["serve", "--config"])
        .arg(config)
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Clients that send requests in a loop, reusing each connection for as long as the router keeps it open.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<Result<(), String>>>,
}

impl Load {
    fn start(address: SocketAddr, clients: usize) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = |number: usize| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            tokio::spawn(async move {
                let mut connection = None;
                while !stop.load(Ordering::Relaxed) {
                    let sender = match connection.take() {
                        Some(sender) => sender,
                        None => connect(address).await?,
                    };
                    connection = ask(sender, number).await?;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        Self {
            clients: (0..clients).map(client).collect(),
            stop,
            answered,
        }
    }

    /// Waits until `count` further requests are answered.
    async fn more(&self, count: usize) {
        let wanted = self.answered.load(Ordering::Relaxed) + count;
        while self.answered.load(Ordering::Relaxed) < wanted {
            assert!(
                !self.clients.iter().all(|client| client.is_finished()),
                "every client failed"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        for client in self.clients {
            failures.extend(client.await.unwrap().err());
        }
        failures
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| format!("connect: {error}"))?;
    #[expect(clippy::disallowed_methods, reason = "the client of a test")]
    let (sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Sends a turn and reads the whole response. Returns the connection if it can be reused.
async fn ask(
    mut sender: SendRequest<Full<Bytes>>,
    number: usize,
) -> Result<Option<SendRequest<Full<Bytes>>>, String> {
    let body = format!(
        r#"{{"model":"sim","max_tokens":4,"stream":{},"messages":[{{"role":"user","content":"hi {number}"}}]}}"#,
        number.is_multiple_of(2)
    );
    let request = Request::post("/v1/chat/completions")
        .header("host", "router")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let answer = sender
        .send_request(request)
        .await
        .map_err(|error| format!("send: {error:?}"))?;
    let (status, last) = (answer.status(), answer.headers().get("connection").cloned());
    let body = answer
        .into_body()
        .collect()
        .await
        .map_err(|error| format!("body: {error:?}"))?;
    if status != 200 {
        return Err(format!("{status}: {:?}", body.to_bytes()));
    }
    Ok(Some(sender).filter(|_| last.is_none()))
}

/// Returns two ports that were free a moment ago.
fn free_ports() -> [u16; 2] {
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port())
}

async fn served_by_somebody(address: SocketAddr) {
    while TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binary_is_replaced_under_load_without_one_failed_request() {
    let engine = Engine::start(EngineConfig {
        time_scale: 1000.0,
        ..EngineConfig::default()
    });
    let engine = engine.await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("t.toml");
    let [data, admin] = free_ports();
    let handover = folder.path().join("handover");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{data}\"\nhandover = {:?}\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
         [health]\ninterval_ms = 50\ntimeout_ms = 50\nhealthy_after = 1\nunhealthy_after = 1000\n\
         # Nobody has to learn that it goes: the port stays.\n[limits]\ndrain_delay_s = 3600\ndrain_timeout_s = 3600\n\
         [[workers]]\nurl = \"http://{}\"\n",
        handover.display().to_string(),
        engine.addr()
    );
    std::fs::write(&config, text).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], data));

    let scenario = async {
        let mut running = start(&config);
        served_by_somebody(address).await;
        // Waits for the first probe of the worker.
        while ask(connect(address).await.unwrap(), 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let load = Load::start(address, 16);
        load.more(100).await;
        for _ in 0..2 {
            let next = start(&config);
            let ended = running.wait().await.unwrap();
            assert!(ended.success(), "the process before ends well: {ended}");
            running = next;
            load.more(200).await;
        }
        // A process that fails to start does not stop the running one.
        let broken = folder.path().join("broken.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(
            &broken,
            text.replace(
                "[health]",
                "[tls]\ncert_file = \"/nowhere\"\nkey_file = \"/nowhere\"\n[health]",
            ),
        )
        .unwrap();
        assert!(!start(&broken).wait().await.unwrap().success());
        load.more(200).await;
        assert!(running.try_wait().unwrap().is_none(), "it goes on serving");
        let failures = load.end().await;
        assert!(failures.is_empty(), "{failures:?}");
    };
    tokio::time::timeout(PATIENCE, scenario).await.unwrap();
}

/// Starts a process with these sockets as systemd passes them: descriptors from 3 on, with `LISTEN_FDS` and
/// `LISTEN_PID`. A shell sets them up, because its process becomes the router's.
fn start_with(config: &Path, data: TcpListener, admin: TcpListener) -> Child {
    let give = "exec 3<&0 4>&1 </dev/null >/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$@\"";
    Command::new("sh")
        .args([
            "-c",
            give,
            "sh",
            env!("CARGO_BIN_EXE_tailroute"),
            "serve",
            "--config",
        ])
        .arg(config)
        .stdin(OwnedFd::from(data))
        .stdout(OwnedFd::from(admin))
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_that_a_service_manager_opened_are_served_with_all_that_waits_in_them() {
    let engine = Engine::start(EngineConfig {
        time_scale: 1000.0,
        ..EngineConfig::default()
    });
    let engine = engine.await.unwrap();
    let (data, admin) = (
        TcpListener::bind("127.0.0.1:0").unwrap(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    let [at, admin_at] = [&data, &admin].map(|socket| socket.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("t.toml");
    let text = format!(
        "[server]\nlisten = \"{at}\"\n[admin]\nlisten = \"{admin_at}\"\n\
         [health]\ninterval_ms = 50\ntimeout_ms = 50\nhealthy_after = 1\nunhealthy_after = 1000\n[[workers]]\nurl = \"http://{}\"\n",
        engine.addr()
    );
    std::fs::write(&config, text).unwrap();
    let scenario = async {
        // A client that connects before the process starts waits in the backlog and is not refused.
        let waiting = connect(at).await.unwrap();
        let mut running = start_with(&config, data, admin);
        let mut answered = ask(waiting, 1).await.is_ok();
        while !answered {
            // Waits for the first probe of the worker.
            tokio::time::sleep(Duration::from_millis(20)).await;
            answered = ask(connect(at).await.unwrap(), 1).await.is_ok();
        }
        let mut sender = connect(admin_at).await.unwrap();
        let ready = Request::get("/livez")
            .header("host", "x")
            .body(Full::default())
            .unwrap();
        assert_eq!(
            sender.send_request(ready).await.unwrap().status(),
            200,
            "the admin port comes second"
        );
        assert!(running.try_wait().unwrap().is_none());
    };
    tokio::time::timeout(PATIENCE, scenario).await.unwrap();
}

//! SRV records of a real name server: dnsmasq.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::{until, within};
use tempfile::TempDir;

use super::{Finding, engine};

const NAME: &str = "_http._tcp.vllm.example";

/// A record: priority, host, port. Hosts are at 127.0.0.1 unless they say otherwise.
type Srv<'a> = (u16, &'a str, u16);

/// A dnsmasq that answers for [`NAME`] alone.
struct Dnsmasq {
    address: SocketAddr,
    folder: TempDir,
    process: Option<Child>,
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Dnsmasq {
    fn new() -> Self {
        // The same port has to be free for both.
        let address = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = udp.local_addr().unwrap();
            if TcpListener::bind(address).is_ok() {
                break address;
            }
        };
        Self {
            address,
            folder: tempfile::tempdir().unwrap(),
            process: None,
        }
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// From now on the server has these records, with this time to live in seconds.
    async fn serve(&mut self, records: &[Srv<'_>], ttl: u32) {
        self.stop();
        let program = std::env::var("DNSMASQ").unwrap_or_else(|_| "dnsmasq".to_owned());
        let mut command = Command::new(program);
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
        ]);
        command.args([
            "--bind-interfaces",
            "--listen-address=127.0.0.1",
            "--log-queries",
            "--pid-file=",
        ]);
        command.arg(format!(
            "--user={}",
            std::env::var("USER").unwrap_or_else(|_| "root".to_owned())
        ));
        command.arg(format!("--port={}", self.address.port()));
        command.arg(format!("--local-ttl={ttl}"));
        command.arg(format!("--log-facility={}", self.log().display()));
        command.arg("--local=/example/");
        for (number, (priority, host, port)) in records.iter().enumerate() {
            command.arg(format!("--srv-host={NAME},{host},{port},{priority},0"));
            // Numbered hosts have addresses of their own.
            let last = if host.starts_with("many-") { number + 2 } else { 1 };
            command.arg(format!("--host-record={host},127.0.0.{last}"));
        }
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(started.expect("dnsmasq: Debian's dnsmasq-base, or DNSMASQ=FILE"));
        let up = async {
            while tokio::net::TcpStream::connect(self.address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(up).await;
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    /// How often the SRV records were asked for.
    fn asked(&self) -> usize {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        log.matches(&format!("query[SRV] {NAME}")).count()
    }

    fn config(&self) -> String {
        format!(
            "[discovery.dns]\nsrv = [{NAME:?}]\nserver = \"{}\"\ninterval_s = 0.05\ntimeout_s = 1\n",
            self.address
        )
    }
}

#[tokio::test]
#[ignore = "needs dnsmasq: make test-discovery"]
async fn records_are_asked_for_when_their_time_to_live_has_passed() {
    let engines = [engine(quick()).await, engine(quick()).await];
    let [a, b] = [0, 1].map(|at: usize| engines[at].addr().port());
    let (name_a, name_b) = (format!("a.example:{a}"), format!("b.example:{b}"));
    let mut server = Dnsmasq::new();
    server
        .serve(&[(10, "a.example", a), (20, "b.example", b)], 6)
        .await;
    let finding = Finding::start(&server.config()).await;
    finding.until_ready(&[&name_a]).await;
    assert_eq!(
        finding.names(),
        [name_a.as_str()],
        "the other one has a higher priority"
    );
    let found = tokio::time::Instant::now();
    assert_eq!(server.asked(), 1);
    // The server has other records now. While the time to live lasts, nobody asks.
    server.serve(&[(10, "b.example", b)], 0).await;
    tokio::time::sleep_until(found + Duration::from_secs(2)).await;
    assert_eq!(server.asked(), 1);
    assert_eq!(finding.names(), [name_a.as_str()]);
    finding.until_gone(&name_a).await;
    finding.until_ready(&[&name_b]).await;
    // Without a time to live they are asked for every `interval_s`.
    let before = server.asked();
    until("it to be asked often", || server.asked() > before + 10).await;
    // A name without records has no workers.
    server.serve(&[], 0).await;
    finding.until_gone(&name_b).await;
    assert_eq!(finding.source().await["failure"], json!(null));
}

#[tokio::test]
#[ignore = "needs dnsmasq: make test-discovery"]
async fn an_answer_of_many_records_is_read_over_tcp_and_a_server_that_is_gone_takes_no_worker_away() {
    let hosts: Vec<String> = (0..60).map(|number| format!("many-{number}.example")).collect();
    let records: Vec<Srv<'_>> = hosts.iter().map(|host| (0, host.as_str(), 9)).collect();
    let mut server = Dnsmasq::new();
    server.serve(&records, 0).await;
    let finding = Finding::start(&server.config()).await;
    let all = async { while finding.source().await["named"] != 60 {} };
    within(all).await;
    server.stop();
    finding.until_failing().await;
    assert_eq!(finding.source().await["named"], 60);
    server.serve(&records[..2], 0).await;
    finding.until_heard_again().await;
    let fewer = async { while finding.source().await["named"] != 2 {} };
    within(fewer).await;
}

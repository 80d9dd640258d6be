//! Fewer file descriptors than hostile connections.

use std::time::Duration;

use tailroute_e2e::client;
use tokio::io::AsyncWriteExt as _;

use crate::honest::Honest;
use crate::livez::Livez;
use crate::report::Report;
use crate::stage::{HONEST, Plan, Stage, bearer};
use crate::strangers::Target;
use crate::{seconds, turn};

/// Most open descriptors of the router.
const MOST: u64 = 256;
/// Hostile connections.
const CONNECTIONS: usize = 400;
const LIMITS: &str = "
[limits]
header_timeout_s = 5
client_idle_timeout_s = 5
";

fn under(shell: String) -> Plan {
    Plan {
        engines: 1,
        limits: Some(LIMITS.to_owned()),
        shell,
        ..Plan::default()
    }
}

/// Sends half a request on each of many connections, and keeps them.
async fn half_requests(target: &Target) -> Vec<tokio::net::TcpStream> {
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        // Refused connections serve the purpose too.
        if let Ok(mut stream) = target.connect().await {
            let _ = stream.write_all(b"GET /v1/mo").await;
            held.push(stream);
        }
    }
    held
}

async fn is_served(stage: &Stage) -> bool {
    let bearer = bearer(HONEST);
    let fields = [("authorization", bearer.as_str())];
    let answer = client::open(stage.data(), "GET", "/v1/models", &fields, "");
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
    matches!(answer, Ok(Ok(answer)) if answer.status == 200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_free_descriptors_livez_answers_and_the_data_port_recovers() {
    let _turn = turn().await;
    let mut report = Report::new("connections for more descriptors than there are");
    let stage = Stage::start(under(format!("ulimit -n {MOST}"))).await;
    let target = Target::new(stage.data());
    let livez = Livez::start(stage.admin);
    let held = half_requests(&target).await;
    tokio::time::sleep(seconds()).await;
    let fds = stage.router.usage().fds as u64;
    report.add("descriptors", format!("<= {MOST}"), fds.to_string(), fds <= MOST);
    report.livez(&livez.end());
    drop(held);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let served = is_served(&stage).await;
    report.add(
        "a client is served afterwards",
        "yes",
        if served { "yes" } else { "no" },
        served,
    );
    let honest = Honest::start(&stage, 10).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    report.honest(&honest.end().await);
    report.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    let _turn = turn().await;
    let mut report = Report::new("a soft limit of descriptors");
    let stage = Stage::start(under(format!("ulimit -Sn {MOST}"))).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", stage.router.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let fields: Vec<&str> = line.unwrap().split_whitespace().collect();
    let [.., soft, hard, _] = fields[..] else {
        panic!("{fields:?}")
    };
    report.add("soft limit", hard, soft, soft == hard);
    report.close();
}

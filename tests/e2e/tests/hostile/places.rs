//! Resources held by hostile clients: connections of the data port and the admin port, and names that are kept.

use std::io;
use std::time::{Duration, Instant};

use tailroute_e2e::client;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::livez::Livez;
use crate::report::Report;
use crate::stage::{CLOSED_WITHIN, HONEST, Plan, RUDE, Stage, bearer};
use crate::strangers::{Life, Target, read_to_end};
use crate::workers::{Evil, Models};
use crate::{divided_by, http1, http2, seconds, turn};

const PLACES: usize = 50;
const LIMITS: &str = "
[limits]
max_connections = 50
header_timeout_s = 2
client_idle_timeout_s = 3
idle_timeout_s = 3
";
/// Silent connections to the admin port.
const SILENT: usize = 600;
/// Connections with half a head.
const HEADS: usize = 300;
/// Memory that each may make the router hold: a head of `max_header_bytes` (64 KiB), its growth, and a connection.
const OF_A_HEAD_KIB: u64 = 160;
/// Number of names of a megabyte.
const NAMES: usize = 20;
/// Memory that they may make the router hold, and the size of its metrics page.
const OF_NAMES_KIB: u64 = 64 * 1024;
const PAGE_BYTES: usize = 2 << 20;

fn with_limits() -> Plan {
    Plan {
        engines: 1,
        limits: Some(LIMITS.to_owned()),
        ..Plan::default()
    }
}

async fn is_served(stage: &Stage) -> Result<(), String> {
    let bearer = bearer(HONEST);
    let fields = [("authorization", bearer.as_str())];
    let answer = client::open(stage.data(), "GET", "/v1/models", &fields, "");
    match tokio::time::timeout(CLOSED_WITHIN, answer).await {
        Ok(Ok(answer)) if answer.status == 200 => Ok(()),
        Ok(Ok(answer)) => Err(answer.status.to_string()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err("no answer".to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http2_connections_do_not_take_every_slot() {
    let _turn = turn().await;
    let mut report = Report::new("every place is held by idle HTTP/2 connections");
    let stage = Stage::start(with_limits()).await;
    let target = Target::new(stage.data());
    let mut strangers = JoinSet::new();
    for _ in 0..PLACES {
        let raw = http2::refused(&target).await.unwrap();
        strangers.spawn(raw.until_closed(b"", CLOSED_WITHIN));
    }
    let asked = Instant::now();
    let served = is_served(&stage).await;
    report.add(
        "a newcomer is served",
        format!("<= {} s", CLOSED_WITHIN.as_secs()),
        match &served {
            Ok(()) => format!("{:.1} s", asked.elapsed().as_secs_f64()),
            Err(error) => error.clone(),
        },
        served.is_ok(),
    );
    report.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_clients_hold_no_slot() {
    let _turn = turn().await;
    let mut report = Report::new("every place was held by clients that have left");
    let evil = Evil::start(Models::One).await;
    let stage = Stage::start(Plan {
        workers: vec![evil.worker("")],
        limits: Some("[limits]\nmax_in_flight = 50\n".to_owned()),
        ..with_limits()
    })
    .await;
    let target = Target::new(stage.data());
    let mut leaving = JoinSet::new();
    for _ in 0..PLACES {
        let target = target.clone();
        leaving.spawn(async move { http1::leaves(target, b"\r\n").await });
    }
    while let Some(left) = leaving.join_next().await {
        left.unwrap().unwrap();
    }
    let left = Instant::now();
    let mut in_flight = stage.sample().await.in_flight;
    while in_flight > 0.0 && left.elapsed() < CLOSED_WITHIN {
        tokio::time::sleep(Duration::from_millis(10)).await;
        in_flight = stage.sample().await.in_flight;
    }
    report.add(
        "in flight afterwards",
        "0",
        format!("{in_flight} after {:.1} s", left.elapsed().as_secs_f64()),
        in_flight == 0.0,
    );
    report.close();
}

/// Measures the memory held for connections with half a head of 300 kB.
async fn half_heads(report: &mut Report, name: &str, life: fn(Target) -> Life) {
    let stage = Stage::start(Plan {
        engines: 1,
        ..Plan::default()
    })
    .await;
    let target = Target::new(stage.data());
    let before = stage.router.usage();
    let mut strangers = JoinSet::new();
    for _ in 0..HEADS {
        strangers.spawn(life(target.clone()));
    }
    tokio::time::sleep(CLOSED_WITHIN / 4).await;
    let (grown, most) = (
        stage.router.usage().peak_kib.saturating_sub(before.rss_kib),
        HEADS as u64 * OF_A_HEAD_KIB,
    );
    report.add(
        format!("memory for {HEADS} heads, {name}"),
        format!("<= {} MiB", most / 1024),
        format!("{} MiB", grown / 1024),
        grown <= most,
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_head_takes_little_more_memory_than_the_head_limit() {
    let _turn = turn().await;
    let mut report = Report::new("half heads of 300 kB");
    half_heads(&mut report, "HTTP/1.1", |target| {
        Box::pin(http1::half_a_head(target))
    })
    .await;
    half_heads(&mut report, "HTTP/2", |target| {
        Box::pin(http2::half_a_block(target))
    })
    .await;
    report.close();
}

/// Keeps a silent connection, and opens the next one when it is closed.
async fn silent(admin: std::net::SocketAddr) -> io::Result<()> {
    loop {
        let mut stream = TcpStream::connect(admin).await?;
        read_to_end(&mut stream).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_to_the_admin_port_starve_no_probe() {
    let _turn = turn().await;
    let mut report = Report::new("silent connections to the admin port");
    let stage = Stage::start(with_limits()).await;
    let mut strangers = JoinSet::new();
    for _ in 0..SILENT {
        strangers.spawn(silent(stage.admin));
    }
    let livez = Livez::start(stage.admin);
    tokio::time::sleep(seconds().max(Duration::from_secs(4))).await;
    report.livez(&livez.end());
    report.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_a_megabyte_are_not_metric_labels() {
    let _turn = turn().await;
    let mut report = Report::new("names of a megabyte");
    let evil = Evil::start(Models::Unsaid).await;
    let stage = Stage::start(Plan {
        workers: vec![evil.worker_of_any_model()],
        ..Plan::default()
    })
    .await;
    let bearer = bearer(RUDE);
    let before = stage.router.usage();
    for number in 0..NAMES.div_ceil(divided_by().min(2)) {
        let name = format!("{number}-{}", "m".repeat(1_000_000));
        let body = http1::QUESTION.replace("evil", &name);
        let fields = [("authorization", bearer.as_str())];
        // The response does not matter here, only the memory held.
        client::call(stage.data(), "POST", client::CHAT, &fields, body).await;
    }
    let page = client::admin(stage.admin, "GET", "/metrics", &[], None).await;
    let bytes = page.body.len();
    report.add(
        "metrics page",
        format!("<= {} KiB", PAGE_BYTES / 1024),
        format!("{} KiB", bytes / 1024),
        bytes <= PAGE_BYTES,
    );
    let grown = stage.router.usage().peak_kib.saturating_sub(before.rss_kib);
    report.add(
        "memory for names",
        format!("<= {} MiB", OF_NAMES_KIB / 1024),
        format!("{} MiB", grown / 1024),
        grown <= OF_NAMES_KIB,
    );
    report.close();
}

//! Many streams for a long time, while clients disconnect, workers are killed and restarted, and the configuration is
//! reloaded: memory stays flat, no resources are held afterwards, and every complete stream equals the engine's, byte
//! for byte.
//!
//! Engines run in fast mode at a pace, so a reply depends only on its request: one reference per shape of request is
//! fetched from an engine directly, and only the creation time may differ.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::replies::{body, reference, timeless};
use tokio::task::JoinSet;

use tailroute_e2e::child::{Child, Usage, free_address, metrics};
use tailroute_e2e::environment::setting;

const ENGINES: usize = 4;
/// Milliseconds between tokens.
const GAP_MS: f64 = 20.0;
/// Tokens of replies and words of questions: each pair is a shape.
const REPLIES: [u64; 3] = [5, 25, 60];
const QUESTIONS: [u64; 3] = [5, 200, 3_000];
/// Longer than idle connections to workers are kept.
const IDLE: Duration = Duration::from_secs(6);

/// The outcome of streams.
#[derive(Debug, Default)]
struct Tally {
    complete: AtomicU64,
    left: AtomicU64,
    broken: AtomicU64,
    refused: AtomicU64,
}

/// State shared by the clients.
struct Soak {
    router: SocketAddr,
    references: BTreeMap<(u64, u64), String>,
    tally: Tally,
    stop: AtomicBool,
}

/// Runs one stream: reads it to its end, or disconnects on the way.
async fn stream(soak: &Soak, number: u64) {
    // Multiplicative hashing spreads the numbers over all variants.
    let dice = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let pick = |from: [u64; 3], by: u64| from[(dice / by % 3) as usize];
    let (reply, question) = (pick(REPLIES, 7), pick(QUESTIONS, 31));
    let id = format!("soak-{number}");
    let headers = [("x-request-id", id.as_str())];
    let asking = client::open(soak.router, "POST", CHAT, &headers, body(reply, question));
    let leaves_after = match dice % 20 {
        0 => {
            // Usually before the head of the response.
            let early = Duration::from_micros(dice % 4_000);
            if let Ok(answer) = tokio::time::timeout(early, asking).await {
                drop(answer);
            }
            soak.tally.left.fetch_add(1, Ordering::Relaxed);
            return;
        }
        1..=3 => Some(dice / 100 % reply),
        _ => None,
    };
    let mut answer = asking.await.expect("the router answers");
    if let Some(chunks) = leaves_after {
        for _ in 0..chunks {
            if !matches!(answer.chunk().await, Some(Ok(_))) {
                break;
            }
        }
        soak.tally.left.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let whole = answer.whole().await;
    if whole.status != 200 {
        assert!([502, 503].contains(&whole.status.as_u16()), "{whole:?}");
        assert_ne!(whole.error_code(), "");
        soak.tally.refused.fetch_add(1, Ordering::Relaxed);
    } else if whole.clean {
        let seen = timeless(&whole.body, &id);
        assert!(
            seen == soak.references[&(reply, question)],
            "not what the engine says: {seen}"
        );
        soak.tally.complete.fetch_add(1, Ordering::Relaxed);
    } else {
        let text = String::from_utf8_lossy(&whole.body);
        assert!(
            !text.contains("[DONE]") && text.contains("worker_failed"),
            "{text}"
        );
        soak.tally.broken.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kills and restarts engines, and reloads the configuration, until stopped.
async fn disturb(soak: Arc<Soak>, mut engines: Vec<Child>, router: u32, period: Duration) -> Vec<Child> {
    let mut round = 0;
    loop {
        tokio::time::sleep(period).await;
        if soak.stop.load(Ordering::Relaxed) {
            return engines;
        }
        let at = round % ENGINES;
        let address = engines[at].address;
        engines[at].kill();
        tokio::time::sleep(period / 4).await;
        engines[at] = Child::engine(address, true, GAP_MS).await;
        if catches_hangups(router) {
            reload(router);
        }
        round += 1;
    }
}

/// Returns whether a process handles SIGHUP, which otherwise ends it.
fn catches_hangups(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .unwrap();
    // SIGHUP is the first signal.
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 == 1
}

fn reload(router: u32) {
    let sent = std::process::Command::new("kill")
        .args(["-HUP", &router.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// The router's resource usage at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_s: f64,
    usage: Usage,
    in_flight: f64,
    tasks: f64,
}

async fn sample(began: Instant, router: &Child, admin: SocketAddr) -> Sample {
    let page = metrics(admin).await;
    Sample {
        at_s: began.elapsed().as_secs_f64(),
        usage: router.usage(),
        in_flight: page.sum("tailroute_worker_in_flight", &[]),
        tasks: page.sum("tailroute_tasks", &[]),
    }
}

fn mean_rss(samples: &[Sample]) -> f64 {
    samples
        .iter()
        .map(|sample| sample.usage.rss_kib as f64)
        .sum::<f64>()
        / samples.len().max(1) as f64
}

async fn fleet() -> (Vec<Child>, Child, SocketAddr, tempfile::TempDir) {
    let mut engines = Vec::new();
    for _ in 0..ENGINES {
        engines.push(Child::engine(free_address(), true, GAP_MS).await);
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tailroute.toml");
    let mut text: String = engines
        .iter()
        .map(|engine| format!("[[workers]]\nurl = \"http://{}\"\n", engine.address))
        .collect();
    text.push_str("[health]\ninterval_ms = 500\ntimeout_ms = 500\n[limits]\nmax_connections = 20000\n");
    text.push_str("max_in_flight = 20000\n[failure]\nslow_start_s = 1\n[log]\nlevel = \"off\"\n");
    std::fs::write(&config, text).unwrap();
    let admin = free_address();
    let router = Child::router(free_address(), admin, &config).await;
    (engines, router, admin, folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soak_leaks_nothing_and_every_complete_stream_is_intact() {
    let seconds: f64 = setting("SECONDS", 10.0);
    let streams: u64 = setting("STREAMS", 60);
    let (engines, router, admin, _folder) = fleet().await;
    let mut references = BTreeMap::new();
    for reply in REPLIES {
        for question in QUESTIONS {
            references.insert(
                (reply, question),
                reference(engines[0].address, reply, question).await,
            );
        }
    }
    let soak = Arc::new(Soak {
        router: router.address,
        references,
        tally: Tally::default(),
        stop: AtomicBool::new(false),
    });
    let began = Instant::now();
    let at_rest = sample(began, &router, admin).await;
    let numbers = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..streams {
        let (soak, numbers) = (Arc::clone(&soak), Arc::clone(&numbers));
        clients.spawn(async move {
            while !soak.stop.load(Ordering::Relaxed) {
                stream(&soak, numbers.fetch_add(1, Ordering::Relaxed)).await;
            }
        });
    }
    let period = Duration::from_secs_f64((seconds / 8.0).clamp(1.0, 20.0));
    let disturbing = tokio::spawn(disturb(Arc::clone(&soak), engines, router.id(), period));
    let mut samples = Vec::new();
    while began.elapsed().as_secs_f64() < seconds {
        tokio::time::sleep(Duration::from_secs_f64((seconds / 60.0).clamp(0.25, 10.0))).await;
        samples.push(sample(began, &router, admin).await);
    }
    soak.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let engines = disturbing.await.unwrap();
    let after = settled(began, &router, admin, at_rest).await;
    report(&soak.tally, &samples, at_rest, after);
    drop(engines);
}

/// Waits until the resource usage is as in the idle state, for as long as idle connections may be kept.
async fn settled(began: Instant, router: &Child, admin: SocketAddr, at_rest: Sample) -> Sample {
    let until = Instant::now() + 4 * IDLE;
    loop {
        let now = sample(began, router, admin).await;
        let is_settled = now.in_flight == 0.0
            && now.usage.fds <= at_rest.usage.fds + ENGINES * 2
            && now.usage.threads <= at_rest.usage.threads + 2
            && now.tasks <= at_rest.tasks + (ENGINES * 4) as f64;
        if is_settled || Instant::now() > until {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn report(tally: &Tally, samples: &[Sample], at_rest: Sample, after: Sample) {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let quarter = samples.len() / 4;
    let early = mean_rss(&samples[quarter..2 * quarter]);
    let late = mean_rss(&samples[samples.len() - quarter..]);
    let peak = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).fold(0.0, f64::max);
    let figures = json!({
        "scenario": "soak",
        "seconds": samples.last().map(|last| last.at_s.round()),
        "complete": count(&tally.complete), "left": count(&tally.left),
        "broken": count(&tally.broken), "refused": count(&tally.refused),
        "rss_mib": { "at_rest": at_rest.usage.rss_kib / 1024, "second_quarter": (early / 1024.0).round(),
            "last_quarter": (late / 1024.0).round(), "after": after.usage.rss_kib / 1024 },
        "fds": { "at_rest": at_rest.usage.fds, "peak": peak(&|sample| sample.usage.fds as f64), "after": after.usage.fds },
        "tasks": { "at_rest": at_rest.tasks, "peak": peak(&|sample| sample.tasks), "after": after.tasks },
        "threads": { "at_rest": at_rest.usage.threads, "after": after.usage.threads },
        "in_flight": { "peak": peak(&|sample| sample.in_flight), "after": after.in_flight },
    });
    if std::env::var_os("JSON").is_some() {
        println!("{figures}");
    } else {
        for (name, value) in figures.as_object().unwrap() {
            println!("{name:>10}  {value}");
        }
    }
    assert!(count(&tally.complete) > 0);
    assert_eq!(after.in_flight, 0.0, "counts are left");
    assert!(
        after.usage.fds <= at_rest.usage.fds + ENGINES * 2,
        "descriptors are left: {after:?}"
    );
    assert!(
        after.tasks <= at_rest.tasks + (ENGINES * 4) as f64,
        "tasks are left: {after:?}"
    );
    assert!(
        after.usage.threads <= at_rest.usage.threads + 2,
        "threads are left: {after:?}"
    );
    // A tenth, and the growth of the index until it is full of these few conversations.
    assert!(
        late <= 1.1 * early + 8.0 * 1024.0,
        "memory grows: {early} to {late} KiB"
    );
}

//! `kill -9` of one worker of four, under load.
//!
//! Requests must not fail if no byte of a response was sent and they can be repeated: those with an
//! `Idempotency-Key`, and those sent after the worker's death. Requests that the killed worker had begun without such
//! a key fail with an error.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::within;
use tokio::task::JoinSet;

use super::quantile;
use tailroute_e2e::child::{Child, free_address, metrics};
use tailroute_e2e::environment::{is_strict, setting};

const WORKERS: usize = 4;
const CLIENTS: usize = 24;
/// Time after which a dead worker gets no requests.
const OUT_WITHIN: Duration = Duration::from_secs(2);
/// The same on a busy machine: less than three probes take, by which alone it would be found.
const OUT_WITHIN_BUSY: Duration = Duration::from_secs(4);

/// A client's observation of one request.
#[derive(Clone, Debug)]
struct Shot {
    sent: Instant,
    worker: String,
    status: u16,
    /// From sending to the first piece of the reply.
    first: Duration,
    streamed: bool,
    keyed: bool,
    clean: bool,
}

async fn shoot(router: SocketAddr, seed: u64) -> Shot {
    let (streamed, keyed) = (seed.is_multiple_of(2), (seed / 2).is_multiple_of(2));
    let key = seed.to_string();
    let headers: &[(&str, &str)] = if keyed { &[("idempotency-key", &key)] } else { &[] };
    let body = ask(&words(seed, 60), json!({ "stream": streamed, "max_tokens": 16 })).to_string();
    let sent = Instant::now();
    let mut answer = client::open(router, "POST", CHAT, headers, body)
        .await
        .expect("the router answers");
    let begun = answer.chunk().await;
    let first = sent.elapsed();
    let clean = match begun {
        Some(Err(_)) => false,
        None => true,
        Some(Ok(_)) => {
            let (status, worker) = (
                answer.status.as_u16(),
                answer.header("x-tailroute-worker").map(str::to_owned),
            );
            return Shot {
                sent,
                worker: worker.unwrap_or_default(),
                status,
                first,
                streamed,
                keyed,
                clean: answer.whole().await.clean,
            };
        }
    };
    Shot {
        sent,
        worker: answer.header("x-tailroute-worker").unwrap_or_default().to_owned(),
        status: answer.status.as_u16(),
        first,
        streamed,
        keyed,
        clean,
    }
}

/// Starts clients that each send one request after another until stopped.
fn load(router: SocketAddr, stop: &Arc<AtomicBool>) -> JoinSet<Vec<Shot>> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS as u64 {
        let stop = Arc::clone(stop);
        clients.spawn(async move {
            let mut shots = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                shots.push(shoot(router, client + CLIENTS as u64 * shots.len() as u64).await);
            }
            shots
        });
    }
    clients
}

async fn is_out(admin: SocketAddr, worker: SocketAddr) -> bool {
    let page = metrics(admin).await;
    page.sum("tailroute_worker_ready", &[("worker", &worker.to_string())]) == 0.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_fails_no_retryable_request_and_is_out_within_two_seconds() {
    let seconds = Duration::from_secs_f64(setting("SECONDS", 4.0));
    let mut engines = Vec::new();
    for _ in 0..WORKERS {
        engines.push(Child::engine(free_address(), false, 4.0).await);
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tailroute.toml");
    let workers: String = engines
        .iter()
        .map(|engine| format!("[[workers]]\nurl = \"http://{}\"\n", engine.address))
        .collect();
    std::fs::write(&config, format!("{workers}[log]\nlevel = \"error\"\n")).unwrap();
    let admin = free_address();
    let router = Child::router(free_address(), admin, &config).await;
    while engines.len() as f64 != metrics(admin).await.sum("tailroute_worker_ready", &[]) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = load(router.address, &stop);
    tokio::time::sleep(seconds / 2).await;
    let dead = engines[0].address;
    engines[0].kill();
    let killed = Instant::now();
    while !is_out(admin, dead).await {
        assert!(killed.elapsed() < 10 * OUT_WITHIN, "it stays in rotation");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let out_after = killed.elapsed();
    tokio::time::sleep(seconds / 2).await;
    stop.store(true, Ordering::Relaxed);
    let mut shots = Vec::new();
    while let Some(ended) = clients.join_next().await {
        shots.extend(ended.unwrap());
    }
    judge(&shots, (killed, out_after), dead);
    // The router may let go of a request after its client has read the answer.
    let nothing_is_left = async {
        while metrics(admin).await.sum("tailroute_worker_in_flight", &[]) > 0.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(nothing_is_left).await;
}

fn judge(shots: &[Shot], (killed, out_after): (Instant, Duration), dead: SocketAddr) {
    let failed: Vec<&Shot> = shots
        .iter()
        .filter(|shot| shot.status != 200 || !shot.clean)
        .collect();
    for shot in &failed {
        // It had begun: the worker had it when it died.
        assert!(
            shot.sent <= killed + Duration::from_millis(50),
            "sent to a worker that was gone: {shot:?}"
        );
        let told = shot.status != 200;
        assert!(!(told && shot.keyed), "it could have been sent again: {shot:?}");
        assert!(told || shot.streamed || !shot.clean);
    }
    let others = |shot: &&Shot| shot.clean && shot.status == 200 && shot.worker != dead.to_string();
    let p99 = |of: &dyn Fn(&Shot) -> bool| {
        let mut times: Vec<f64> = shots
            .iter()
            .filter(others)
            .filter(|shot| of(shot))
            .map(|shot| shot.first.as_secs_f64() * 1e3)
            .collect();
        quantile(&mut times, 0.99)
    };
    let before = p99(&|shot| shot.sent < killed);
    let after = p99(&|shot| shot.sent >= killed);
    println!(
        "{{\"scenario\":\"kill\",\"requests\":{},\"failed\":{},\"out_of_rotation_ms\":{:.0},\"p99_before_ms\":{before:.1},\"p99_after_ms\":{after:.1}}}",
        shots.len(),
        failed.len(),
        out_after.as_secs_f64() * 1e3,
    );
    assert!(failed.len() <= CLIENTS, "no more than were on it");
    assert!(out_after <= OUT_WITHIN_BUSY, "{out_after:?}");
    if is_strict() {
        assert!(out_after <= OUT_WITHIN, "{out_after:?}");
        assert!(
            after <= 2.0 * before,
            "the others' p99 went from {before:.1} to {after:.1} ms"
        );
    }
}

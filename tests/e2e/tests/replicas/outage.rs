//! NATS is killed during traffic, and restarted.
//!
//! The outage lasts `TAILROUTE_NATS_OUTAGE_S`, five seconds by default and at least three, after which replicas
//! remove each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sim_engine::EngineConfig;
use tailroute_e2e::client::{self, CHAT};
use tailroute_e2e::fleet::quick;
use tailroute_e2e::talk::{ask, words};
use tailroute_e2e::wait::until;
use tokio::task::JoinSet;

use super::live_policy::detail;
use super::{CONVERGED_WITHIN, Replicas};

/// Clients per router, each with one request after another.
const CLIENTS: u64 = 4;
/// Interval between attempts to change the policy.
const CHANGES: Duration = Duration::from_millis(250);
/// Time for an answer to a change, whatever it is, on a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

fn outage() -> Duration {
    let seconds = std::env::var("TAILROUTE_NATS_OUTAGE_S").ok();
    let seconds = seconds.map_or(5.0, |text| {
        text.parse::<f64>().expect("TAILROUTE_NATS_OUTAGE_S: seconds")
    });
    Duration::from_secs_f64(seconds.max(3.5))
}

/// Continuous turns.
struct Load {
    clients: JoinSet<()>,
    ends: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Load {
    fn on(replicas: &Replicas) -> Self {
        let mut load = Self {
            clients: JoinSet::new(),
            ends: Arc::default(),
            answered: Arc::default(),
            failed: Arc::default(),
        };
        for (number, router) in replicas.routers.iter().enumerate() {
            for client in 0..CLIENTS {
                let address = router.address;
                let (ends, answered, failed) = (
                    Arc::clone(&load.ends),
                    Arc::clone(&load.answered),
                    Arc::clone(&load.failed),
                );
                let seed = (number as u64 * CLIENTS + client) * 1_000_000;
                load.clients.spawn(async move {
                    let mut turn = seed;
                    while !ends.load(Ordering::Relaxed) {
                        turn += 1;
                        let body =
                            ask(&words(turn, 60), json!({ "stream": turn.is_multiple_of(2) })).to_string();
                        let is_well = match client::open(address, "POST", CHAT, &[], body).await {
                            Ok(answer) => {
                                let status = answer.status;
                                answer.whole().await.clean && status == 200
                            }
                            Err(_) => false,
                        };
                        let counted = if is_well { &answered } else { &failed };
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
        load
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    async fn end(mut self) -> (u64, u64) {
        self.ends.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
        (self.answered(), self.failed.load(Ordering::Relaxed))
    }
}

fn busy() -> EngineConfig {
    EngineConfig {
        // Some tens of turns a second from each client.
        time_scale: 2.0,
        ..quick()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs nats-server: make test-replicas"]
async fn without_nats_only_policy_changes_fail() {
    let mut replicas = Replicas::start(3, vec![busy(); 4]).await;
    replicas.share_their_policy().await;
    let before = replicas.policy(0).await;
    assert_eq!(replicas.put(0, &before, 2.5).await.status, 200);
    replicas.all_have(2.5).await;
    let load = Load::on(&replicas);
    until("turns are answered", || load.answered() > 20).await;

    replicas.nats.kill();
    let gone = Instant::now();
    let mut refused = 0;
    while gone.elapsed() < outage() {
        for router in 0..3 {
            let asked = Instant::now();
            let answer = replicas.put(router, &replicas.policy(router).await, 9.0).await;
            assert!(asked.elapsed() < ANSWERED_WITHIN, "{:?}", asked.elapsed());
            assert_eq!(answer.status, 503, "{}", answer.text());
            let why = detail(&answer);
            assert!(why.contains("NATS"), "{why}");
            assert_eq!(replicas.locality(router), 2.5, "what was in force stays");
            refused += 1;
        }
        tokio::time::sleep(CHANGES).await;
    }
    let while_gone = load.answered();

    replicas.nats.revive().await;
    let back = Instant::now();
    replicas.hear_of_each_other().await;
    // The first accepted change takes effect on all replicas.
    while replicas.put(1, &replicas.policy(1).await, 3.5).await.status != 200 {
        assert!(back.elapsed() < CONVERGED_WITHIN, "changes are refused still");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    replicas.all_have(3.5).await;
    let converged = back.elapsed();
    assert!(converged < CONVERGED_WITHIN, "{converged:?}");
    let tags = [
        replicas.policy(0).await,
        replicas.policy(1).await,
        replicas.policy(2).await,
    ];
    assert!(
        tags.iter().all(|shown| shown["etag"] == tags[0]["etag"]),
        "{tags:?}"
    );
    assert_eq!(tags[0]["revision"], 3, "nothing that was refused was made later");

    let (answered, failed) = load.end().await;
    eprintln!(
        "NATS gone for {:.1} s: {answered} turns answered ({while_gone} before it was back), {failed} failed, {refused} changes \
         refused, all replicas agree {:.2} s after its return",
        gone.elapsed().as_secs_f64() - back.elapsed().as_secs_f64(),
        converged.as_secs_f64()
    );
    assert_eq!(failed, 0);
    assert!(while_gone > 20, "there was load: {while_gone}");
}

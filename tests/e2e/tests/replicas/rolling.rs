//! A rolling restart of all replicas while clients stream: no stream breaks and no request fails.
//!
//! Replicas are processes with their own addresses, like pods, behind a [`Service`] that learns of each shutdown a
//! second late; the engines are in this process. Each replica in turn gets SIGTERM, has to exit within its grace
//! period, and is restarted.
//!
//! `STREAMS` (200) at once, with `GAP_MS` (200) between tokens; `JSON=1` for a line of JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sim_engine::{Engine, EngineConfig};
use tailroute_e2e::child::{Child, free_address};
use tailroute_e2e::client;
use tailroute_e2e::environment::setting;
use tailroute_e2e::replies::reference;
use tailroute_e2e::wait::within;

use super::nats::Nats;
use super::service::Service;
use super::streams::{Load, QUESTIONS, REPLIES};

const REPLICAS: usize = 3;
const ENGINES: usize = 8;
/// A replica's drain delay, as in the chart, and its drain limit.
const DELAY_S: u64 = 5;
const DRAIN_S: u64 = 30;
/// The rest of a pod's grace period.
const SPARE_S: u64 = 15;

/// A replica's process.
struct Replica {
    process: Child,
    admin: std::net::SocketAddr,
}

impl Replica {
    /// Starts a replica, waits until it is ready, and adds it to the service.
    async fn start(config: &Path, service: &Arc<Service>) -> Self {
        let admin = free_address();
        let process = Child::router(free_address(), admin, config).await;
        service.watch(process.address, admin);
        Self { process, admin }
    }

    async fn hears_of(&self, others: usize) {
        let heard = async {
            loop {
                let told = client::admin(self.admin, "GET", "/admin/v1/replicas", &[], None).await;
                let told: Value = told.json();
                if told["connected"] == true
                    && told["peers"]
                        .as_array()
                        .is_some_and(|peers| peers.len() == others)
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within(heard).await;
    }
}

/// Starts paced engines whose replies depend only on their requests.
async fn engines(gap_ms: f64) -> Vec<Engine> {
    let mut engines = Vec::new();
    for _ in 0..ENGINES {
        let engine = EngineConfig {
            fast: true,
            multibyte: true,
            ..EngineConfig::default()
        };
        let engine = Engine::start(engine).await.unwrap();
        let pace = json!({ "gap_ms": gap_ms }).to_string();
        let set = client::call(engine.addr(), "PUT", "/sim/pace", &[], pace).await;
        assert_eq!(set.status, 200);
        engines.push(engine);
    }
    engines
}

fn configuration(engines: &[Engine], nats: &Nats, replica: usize) -> String {
    let workers: String = engines
        .iter()
        .map(|engine| format!("[[workers]]\nurl = \"http://{}\"\n", engine.addr()))
        .collect();
    format!(
        "[limits]\ndrain_delay_s = {DELAY_S}\ndrain_timeout_s = {DRAIN_S}\n[log]\nlevel = \"off\"\n\
         [fleet]\nnats = \"{}\"\nreplica = \"router-{replica}\"\n{workers}",
        nats.url()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs nats-server: make test-replicas"]
async fn a_rolling_restart_under_load_fails_no_request_and_breaks_no_stream() {
    let (streams, gap_ms) = (setting("STREAMS", 200), setting("GAP_MS", 200.0));
    let (nats, engines, folder) = (
        Nats::start().await,
        engines(gap_ms).await,
        tempfile::tempdir().unwrap(),
    );
    let service = Arc::new(Service::default());
    let (mut replicas, mut configs) = (Vec::new(), Vec::new());
    for number in 0..REPLICAS {
        let config = folder.path().join(format!("{number}.toml"));
        std::fs::write(&config, configuration(&engines, &nats, number)).unwrap();
        replicas.push(Replica::start(&config, &service).await);
        configs.push(config);
    }
    for replica in &replicas {
        replica.hears_of(REPLICAS - 1).await;
    }
    let mut references = BTreeMap::new();
    for (reply, question) in REPLIES
        .iter()
        .flat_map(|reply| QUESTIONS.map(|question| (*reply, question)))
    {
        let said = reference(engines[0].addr(), reply, question).await;
        references.insert((reply, question), said);
    }
    let load = Load::new(&service, references);
    let (began, clients) = (Instant::now(), load.begin(streams));
    load.more(streams as u64).await;
    let mut drained_s = Vec::new();
    let mut before = Vec::new();
    for (replica, config) in replicas.iter_mut().zip(&configs) {
        let told = Instant::now();
        replica.process.signal("TERM");
        let grace = Duration::from_secs(DELAY_S + DRAIN_S + SPARE_S);
        let ended = tokio::time::timeout(grace, replica.process.ends()).await;
        assert_eq!(ended, Ok(true), "it ends by itself, in time, and cuts nothing");
        drained_s.push(told.elapsed().as_secs_f64());
        before.push(replica.process.address);
        *replica = Replica::start(config, &service).await;
        replica.hears_of(REPLICAS - 1).await;
        load.more(streams as u64).await;
    }
    load.end(clients).await;
    let after = replicas.iter().map(|replica| replica.process.address);
    let given: Vec<u64> = before
        .iter()
        .copied()
        .chain(after)
        .map(|address| service.given(address))
        .collect();
    report(&load, streams, began.elapsed(), &drained_s, &given);
    assert!(
        given.iter().all(|given| *given > 0),
        "each replica was used, old and new: {given:?}"
    );
}

fn report(load: &Load, streams: usize, took: Duration, drained_s: &[f64], given: &[u64]) {
    let (tally, rounded) = (&load.tally, |seconds: f64| (seconds * 10.0).round() / 10.0);
    let (failed, broken) = (tally.failed.lock(), tally.broken.lock());
    let figures = json!({
        "scenario": "rolling restart", "replicas": REPLICAS, "engines": ENGINES,
        "streams_at_once": streams, "seconds": rounded(took.as_secs_f64()),
        "complete": tally.complete.load(Ordering::Relaxed), "failed": failed.len(), "broken": broken.len(),
        "drained_s": drained_s.iter().copied().map(rounded).collect::<Vec<_>>(),
        "http1_connections_told_to_close": tally.told.load(Ordering::Relaxed),
        "http1_connections_closed_untold": tally.untold.load(Ordering::Relaxed),
        "http2_connections_left": tally.left.load(Ordering::Relaxed),
        "connections_by_replica": given,
    });
    if std::env::var_os("JSON").is_some() {
        println!("{figures}");
    } else {
        for (name, value) in figures.as_object().unwrap() {
            println!("{name:>32}  {value}");
        }
    }
    assert!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    assert!(broken.is_empty(), "{} broke: {broken:#?}", broken.len());
    // On a very busy machine, a client that sends nothing for a second may have a connection closed.
    let [told, untold, left] =
        [&tally.told, &tally.untold, &tally.left].map(|count| count.load(Ordering::Relaxed));
    assert!(
        told > 20 * untold,
        "{untold} connections were closed unsaid, {told} said"
    );
    assert!(left > 0, "HTTP/2 has moved");
}

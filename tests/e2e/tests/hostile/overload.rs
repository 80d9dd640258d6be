//! More streams than the engines can serve: the overload is named in the log, the metrics, the status that the console
//! and `top` show, and by `tailroute doctor`, each within a minute.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use policy::cost::PrefillCost;
use serde_json::json;
use sim_engine::{Engine, EngineConfig};
use tailroute_e2e::child::{free_address, tailroute};
use tailroute_e2e::client::{self, CHAT};
use tokio::task::JoinSet;

use crate::report::Report;
use crate::stage::{HONEST, Plan, Stage, Worker, bearer};
use crate::{streams, turn};

const ENGINES: usize = 3;
/// Streams for each one of `STREAMS`: 4,000 in `make test-hostile`.
const TIMES: usize = 20;
const NAMED_WITHIN: Duration = Duration::from_secs(60);
/// Time for which the metric must be 1 before `TailrouteOverloaded` fires, from its rule.
const ALERT_AFTER: Duration = Duration::from_secs(30);
/// Streams that begin at once.
const AT_ONCE: usize = 50;
const LIMITS: &str = "
[limits]
max_connections = 5000
max_in_flight = 5000
";

/// Clients that ask again as soon as a stream ends.
struct Load {
    clients: JoinSet<()>,
    is_over: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Load {
    fn start(router: SocketAddr, count: usize) -> Self {
        let (is_over, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for number in 0..count {
            let (is_over, refused) = (Arc::clone(&is_over), Arc::clone(&refused));
            clients.spawn(async move {
                tokio::time::sleep(Duration::from_millis(50 * (number / AT_ONCE) as u64)).await;
                while !is_over.load(Ordering::Relaxed) {
                    if !stream(router, number).await {
                        refused.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_secs(5)).await;
                    }
                }
            });
        }
        Self {
            clients,
            is_over,
            refused,
        }
    }

    /// Ends the streams where they are. Returns the number of requests without a stream.
    async fn end(mut self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.shutdown().await;
        self.refused.load(Ordering::Relaxed)
    }
}

/// Returns whether the response was complete.
async fn stream(router: SocketAddr, number: usize) -> bool {
    let words = format!("w{number} ").repeat(30);
    let body = json!({
        "model": "sim",
        "max_tokens": 40,
        "stream": true,
        "messages": [{ "role": "user", "content": format!("{number} {words}") }],
    });
    let key = bearer(HONEST);
    let fields = [
        ("authorization", key.as_str()),
        ("content-type", "application/json"),
    ];
    match client::open(router, "POST", CHAT, &fields, body.to_string()).await {
        Ok(mut answer) if answer.status == 200 => {
            while let Some(chunk) = answer.chunk().await {
                if chunk.is_err() {
                    return false;
                }
            }
            true
        }
        _ => false,
    }
}

async fn engines() -> Vec<Engine> {
    let mut engines = Vec::new();
    for _ in 0..ENGINES {
        let config = EngineConfig {
            listen: free_address(),
            max_running: 24,
            tpot_ms: 150.0,
            tpot_batch_ms: 0.0,
            prefill: PrefillCost::linear(0.05, 100.0),
            ..EngineConfig::default()
        };
        engines.push(Engine::start(config).await.unwrap());
    }
    engines
}

/// Whether doctor reports the overload as a problem.
async fn is_diagnosed(admin: SocketAddr) -> bool {
    let arguments = ["doctor", "--admin", &admin.to_string(), "--no-probes"].map(str::to_owned);
    let run = move || {
        let mut doctor = tailroute(&arguments, "");
        // The child exits when its standard input is closed.
        let mut doctor = doctor
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let held = doctor.stdin.take();
        let output = doctor.wait_with_output().unwrap();
        drop(held);
        String::from_utf8_lossy(&output.stdout).contains("the fleet is overloaded")
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Returns when each place named the overload, since `begun`.
async fn named(stage: &Stage, log: &Path, begun: Instant) -> [(&'static str, Option<Duration>); 4] {
    let mut places = ["log", "metric", "status of the console", "doctor"].map(|place| (place, None));
    while begun.elapsed() < NAMED_WITHIN && places.iter().any(|(_, at)| at.is_none()) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for (place, at) in places.iter_mut().filter(|(_, at)| at.is_none()) {
            let is_named = match *place {
                "log" => std::fs::read_to_string(log)
                    .unwrap()
                    .contains("overloaded: the wait on most"),
                "metric" => stage.page().await.sum("tailroute_overloaded", &[]) == 1.0,
                "doctor" => is_diagnosed(stage.admin).await,
                _ => {
                    let slo = client::admin(stage.admin, "GET", "/admin/v1/slo", &[], None).await;
                    !slo.json()["overload"].is_null()
                }
            };
            *at = is_named.then(|| begun.elapsed());
        }
    }
    places
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_is_named_within_a_minute() {
    let _turn = turn().await;
    let mut report = Report::new("more streams than the engines can serve");
    let count = TIMES * streams();
    let engines = engines().await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let stage = Stage::start(Plan {
        workers: engines
            .iter()
            .map(|engine| Worker {
                address: engine.addr(),
                lines: String::new(),
            })
            .collect(),
        limits: Some(LIMITS.to_owned()),
        more: "[log]\nlevel = \"warn\"\n".to_owned(),
        shell: format!("exec 2>'{}'", log.display()),
        ..Plan::default()
    })
    .await;
    let at_rest = stage.sample().await;
    let begun = Instant::now();
    let load = Load::start(stage.data(), count);
    let places = named(&stage, &log, begun).await;
    let in_flight = stage.sample().await.in_flight;
    let refused = load.end().await;
    report.add(
        "streams in flight",
        format!(">= {}", count * 9 / 10),
        in_flight.to_string(),
        in_flight >= (count * 9 / 10) as f64,
    );
    report.add(
        "requests without a stream",
        "0",
        refused.to_string(),
        refused == 0,
    );
    for (place, at) in places {
        let limit = if place == "metric" {
            NAMED_WITHIN - ALERT_AFTER
        } else {
            NAMED_WITHIN
        };
        report.add(
            format!("named by the {place}"),
            format!("<= {} s", limit.as_secs()),
            at.map_or("never".to_owned(), |at| format!("{:.1} s", at.as_secs_f64())),
            at.is_some_and(|at| at <= limit),
        );
    }
    let after = stage.settled(at_rest).await;
    report.held(&stage, at_rest, after);
    report.close();
}

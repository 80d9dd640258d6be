//! Golden decisions: a thousand requests of every endpoint and dialect to fleets in every state, with all results:
//! the chosen worker with every term, the messages to workers, the response, and the changed metrics.
//!
//! [`stories`] generates the requests, `decisions.jsonl` has the recorded results. The router runs with scripted
//! engines over real sockets. Virtual time advances only by an engine or a story, so two runs are identical to the
//! last digit. The test uses only the data port and the admin port.
//!
//! `TAILROUTE_BLESS=1 cargo test -p tailroute-e2e --test golden` records the results again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

mod engine;
mod record;
mod stories;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Overrides, Sources};
use serde_json::{Value, json};
use tailroute::serve::Server;
use tailroute_e2e::client::{self, Whole};
use tokio::task::JoinHandle;

use self::engine::{Engine, breathe};
use self::stories::{Ask, Step, Story, stories};

/// Time limit of a story, in real time.
const LIMIT: Duration = Duration::from_secs(120);
/// Consecutive equal reads of the metrics before the router counts as idle.
const LOOKS: usize = 2;
/// Differences shown.
const MOST_SHOWN: usize = 10;

/// Disables periodic probes and queries, which would change metrics between a request and its record. One of each runs
/// at the start.
const QUIET: &str = "[health]\ninterval_ms = 3600000\ntimeout_ms = 3600000\nqueue_interval_ms = 0\n\
                     facts_interval_s = 86400\nhealthy_after = 1\n";

struct Fleet {
    router: Server,
    engines: Vec<Engine>,
    metrics: BTreeMap<String, f64>,
    asked: usize,
    decided: Option<u64>,
    left: Vec<(Ask, JoinHandle<Whole>)>,
    rows: Vec<Value>,
}

#[test]
fn decisions_equal_the_recorded_ones() {
    let mut recorded = String::new();
    let mut count = 0;
    for story in stories() {
        for row in play(&story) {
            count += usize::from(row.get("ask").is_some());
            writeln!(recorded, "{row}").unwrap();
        }
    }
    assert!(count >= 1_000, "{count} requests");
    compare(&recorded);
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decisions.jsonl")
}

fn compare(recorded: &str) {
    if std::env::var_os("TAILROUTE_BLESS").is_some() {
        std::fs::write(file(), recorded).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(file()).unwrap();
    let (golden, now): (Vec<&str>, Vec<&str>) = (golden.lines().collect(), recorded.lines().collect());
    let mut differences = String::new();
    let pairs = golden.iter().zip(&now).filter(|(before, after)| before != after);
    for (before, after) in pairs.clone().take(MOST_SHOWN) {
        let [before, after]: [Value; 2] = [before, after].map(|line| serde_json::from_str(line).unwrap());
        writeln!(differences, "{} {}", after["story"], after["ask"]).unwrap();
        differ("", &before, &after, &mut differences);
    }
    let count = pairs.count();
    assert!(
        count == 0 && golden.len() == now.len(),
        "{count} of {} rows differ ({} are recorded):\n{differences}",
        now.len(),
        golden.len()
    );
}

/// Collects the differences of two values.
fn differ(at: &str, before: &Value, after: &Value, out: &mut String) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let [a, b] = [a, b].map(|fields| fields.get(name).unwrap_or(&Value::Null));
                differ(&format!("{at}.{name}"), a, b, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (number, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{at}[{number}]"), a, b, out);
            }
        }
        _ if before == after => {}
        _ => writeln!(out, "  {at}\n    recorded {before}\n    now      {after}").unwrap(),
    }
}

/// Runs a story on its own runtime, with the clock paused.
fn play(story: &Story) -> Vec<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    // A paused clock advances by itself when the runtime is idle, unless a blocking task runs.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || stopped.recv_timeout(LIMIT));
    let (rows, end) = runtime.block_on(async {
        let mut fleet = Fleet::start(story).await;
        for step in &story.steps {
            fleet.step(step).await;
        }
        let series = record::moved(&BTreeMap::new(), &fleet.metrics);
        let series: Vec<&String> = series.iter().filter(|series| !series.ends_with(" 0")).collect();
        (fleet.rows, json!({ "story": story.name, "metrics": series }))
    });
    drop(stop);
    let named = |mut row: Value| {
        row["story"] = json!(story.name);
        row
    };
    rows.into_iter().map(named).chain([end]).collect()
}

impl Fleet {
    async fn start(story: &Story) -> Self {
        let mut engines = Vec::new();
        let mut text = format!("{QUIET}{}", story.config);
        for number in 0..story.engines {
            let engine = Engine::start(story.takes_hints).await;
            let (url, rest) = (engine.address, &story.worker);
            write!(
                text,
                "\n[[workers]]\nname = \"gpu-{number}\"\nurl = \"http://{url}\"\nkv_events = \"off\"\n{rest}"
            )
            .unwrap();
            engines.push(engine);
        }
        let overrides = Overrides {
            listen: Some("127.0.0.1:0".to_owned()),
            admin: Some("127.0.0.1:0".to_owned()),
            ..Overrides::default()
        };
        let sources = Sources {
            file: Some((&story.name, &text)),
            environment: BTreeMap::new(),
            overrides,
        };
        let config = config::load(&sources).unwrap_or_else(|problems| panic!("{}: {problems:?}", story.name));
        let router = Server::start(config).await.unwrap();
        let mut fleet = Self {
            router,
            engines,
            metrics: BTreeMap::new(),
            asked: 0,
            decided: None,
            left: Vec::new(),
            rows: Vec::new(),
        };
        while client::admin(fleet.admin(), "GET", "/readyz", &[], None)
            .await
            .status
            != 200
        {
            breathe().await;
        }
        fleet.rest().await;
        fleet.engines.iter().for_each(|engine| drop(engine.take()));
        fleet
    }

    fn admin(&self) -> SocketAddr {
        self.router.admin_address
    }

    async fn page(&self) -> BTreeMap<String, f64> {
        let page = client::admin(self.admin(), "GET", "/metrics", &[], None).await;
        record::series(page.text())
    }

    /// Waits until the metrics stop changing. Returns them.
    async fn settle(&self) -> BTreeMap<String, f64> {
        let (mut last, mut same) = ((BTreeMap::new(), 0), 0);
        while same < LOOKS {
            breathe().await;
            let came = self.engines.iter().map(Engine::waiting).sum();
            let now = (self.page().await, came);
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last.0
    }

    /// Waits until the metrics stop changing. Returns the series that changed since the last call.
    async fn rest(&mut self) -> Vec<String> {
        let now = self.settle().await;
        let moved = record::moved(&self.metrics, &now);
        self.metrics = now;
        moved
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Ask(ask) => {
                let answer = self.call(ask).await;
                self.record(ask, Some(&answer)).await;
            }
            Step::Leave(ask) => {
                let calling = tokio::spawn(call(self.router.address, ask.clone(), self.number()));
                self.left.push((ask.clone(), calling));
                self.record(ask, None).await;
            }
            Step::Answer => {
                // Released one after another, so that the order is determined.
                for engine in 0..self.engines.len() {
                    while self.engines[engine].release() {
                        breathe().await;
                        self.settle().await;
                    }
                }
                for (ask, calling) in std::mem::take(&mut self.left) {
                    let answer = calling.await.unwrap();
                    self.record(&ask, Some(&answer)).await;
                }
            }
            Step::Pass(ms) => {
                tokio::time::advance(Duration::from_millis(*ms)).await;
                self.rest().await;
            }
            Step::Fault(engine, fault) => self.engines[*engine].set_fault(*fault),
            Step::Operate(method, path, body) => {
                let said = client::admin(self.admin(), method, path, &[], Some(body)).await;
                assert_eq!(said.status, 200, "{path}: {}", said.text());
                self.rest().await;
            }
        }
    }

    /// Returns the number of the next request.
    fn number(&mut self) -> usize {
        self.asked += 1;
        self.asked
    }

    async fn call(&mut self, ask: &Ask) -> Whole {
        let number = self.number();
        call(self.router.address, ask.clone(), number).await
    }

    async fn record(&mut self, ask: &Ask, answer: Option<&Whole>) {
        let moved = self.rest().await;
        let (mut sent, mut told) = (Vec::new(), Vec::new());
        for (number, engine) in self.engines.iter().enumerate() {
            for came in engine.take() {
                if came.line.contains("/v1/tailroute/") {
                    told.push(record::told(number, &came));
                } else {
                    sent.push(record::sent(number, &came, ask));
                }
            }
        }
        let row = record::row(vec![
            (
                "ask",
                json!(format!(
                    "{} {} {}",
                    ask.method,
                    ask.path,
                    record::digest(&ask.body)
                )),
            ),
            (
                "status",
                answer.map_or(Value::Null, |answer| answer.status.as_u16().into()),
            ),
            (
                "headers",
                answer.map_or(Value::Null, |answer| json!(record::fields(&answer.headers))),
            ),
            (
                "body",
                answer.map_or(Value::Null, |answer| json!(record::text(&answer.body))),
            ),
            (
                "broke_off",
                answer
                    .filter(|answer| !answer.clean)
                    .map_or(Value::Null, |_| json!(true)),
            ),
            ("decisions", json!(self.decisions().await)),
            ("sent", json!(sent)),
            ("told", json!(told)),
            ("moved", json!(record::digest(moved.join("\n").as_bytes()))),
        ]);
        self.rows.push(row);
    }

    /// Returns the decisions since the last call, oldest first.
    async fn decisions(&mut self) -> Vec<Value> {
        let page = client::admin(self.admin(), "GET", "/admin/v1/decisions?limit=8", &[], None)
            .await
            .json();
        let all = page["decisions"].as_array().cloned().unwrap_or_default();
        let mut new: Vec<Value> = all
            .into_iter()
            .filter(|decision| {
                self.decided
                    .is_none_or(|last| decision["decision"].as_u64().unwrap() > last)
            })
            .collect();
        new.reverse();
        if let Some(last) = new.last() {
            self.decided = last["decision"].as_u64();
        }
        new.into_iter().map(record::decision).collect()
    }
}

async fn call(address: SocketAddr, ask: Ask, number: usize) -> Whole {
    let name = format!("request-{number}");
    let mut headers: Vec<(&str, &str)> = vec![("x-request-id", &name)];
    headers.extend(ask.headers.iter().map(|(name, value)| (*name, value.as_str())));
    client::call(address, ask.method, &ask.path, &headers, ask.body).await
}

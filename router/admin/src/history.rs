//! A day of figures, so that a console opened after an alert shows what led to it: `GET /admin/v1/history`.
//!
//! Every ten seconds the counters of the metrics page and the load of each worker are sampled. Counters are cumulative,
//! so that samples can be thinned out without losing turns. Counters of single workers are kept for a quarter of an hour. Changes of the policy, workers and configuration are kept
//! as marks. With a snapshot configured, the history is written beside it and survives a restart.

mod file;
mod kept;
mod page;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use metrics::Format;
use operator::events::{Event, EventKind};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telemetry::logs::panic_message;
use tokio::runtime::Handle;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;
use tracing::error;

use self::kept::HistoryStore;
use super::Admin;
use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;

const INTERVAL: Duration = Duration::from_secs(10);
/// Samples between two writes of the file: five minutes.
const WRITES: u32 = 30;
/// Workers whose load is kept. Counters of single workers are kept in fleets of up to as many.
const MOST_WORKERS: usize = 64;

/// Samples and marks of the last day.
#[derive(Debug, Default)]
pub struct History(Mutex<HistoryStore>);

/// Samples and changes of the last day, the oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Past {
    /// Cumulative counters and loads: every ten seconds of the last quarter of an hour, every minute of the last three
    /// hours, every five minutes before that.
    pub samples: Vec<Sample>,
    /// Changes of the last day, at most 1,000.
    pub marks: Vec<Mark>,
}

/// Cumulative counters and loads at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Time in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Turns by the upper bound of their time to first token in seconds, cumulative over the bounds.
    pub ttft: BTreeMap<String, u64>,
    /// Turns by whether they were within their objective, and by class: `true default`, `false default`.
    pub turns: BTreeMap<String, u64>,
    /// Late turns by cause.
    pub causes: BTreeMap<String, u64>,
    /// Finished requests by outcome.
    pub requests: BTreeMap<String, u64>,
    /// Prompt tokens by kind: all, predicted_cached, reported_cached.
    pub prompt: BTreeMap<String, u64>,
    /// Prompt tokens of turns whose worker reports cached tokens, by stage: prompt, available, captured, delivered.
    #[serde(default)]
    pub hits: BTreeMap<String, u64>,
    /// Requests waiting at the admission gate.
    pub waiting: u64,
    /// Number of the policy revision in force.
    pub policy_revision: u64,
    /// Load of the first 64 workers, by name.
    pub workers: BTreeMap<String, Load>,
}

/// Load of a worker at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// Whether the worker is ready to receive turns.
    pub ready: bool,
    /// Requests sent to the worker and not finished.
    pub in_flight: u32,
    /// Predicted time before a request sent now would start its prefill, in milliseconds.
    pub wait_ms: f64,
    /// ρ: prefill work routed to the worker, as a share of its time.
    pub utilisation: f64,
    /// Cumulative counters of the worker: in samples of the last quarter of an hour, in fleets of up to 64 workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<Box<Counters>>,
}

/// Cumulative counters of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// Turns for which it was chosen.
    pub turns: u64,
    /// Attempts that failed by its fault.
    pub failures: u64,
    /// Prompt tokens.
    pub prompt: u64,
    /// Prompt tokens predicted to be cached.
    pub predicted_cached: u64,
    /// Prompt tokens reported to be cached.
    pub reported_cached: u64,
    /// Turns by their time to first token, cumulative over the bounds of the sample's `ttft` in ascending order; empty
    /// before its first token.
    pub ttft: Vec<u64>,
}

/// Parts of the history to return.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct HistoryQuery {
    /// Whether to return samples; true unless given.
    samples: Option<bool>,
}

/// A change of the policy, a worker or the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mark {
    /// Time in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Kind of the change: `policy`, `worker`, `breaker`, `slow`, `overload` or `reload`.
    pub kind: String,
    /// Subject of the change, such as a worker's name.
    pub subject: String,
    /// The change in a few words.
    #[serde(default)]
    pub text: String,
}

impl History {
    /// Returns the samples and marks that are kept.
    #[must_use]
    pub fn past(&self) -> Past {
        self.0.lock().past()
    }

    /// Returns the first sample taken at this time or later.
    pub(crate) fn first_since(&self, unix_ms: u64) -> Option<Sample> {
        self.0.lock().first_since(unix_ms).cloned()
    }

    fn mark(&self, event: &Event) {
        if matches!(
            event.kind,
            EventKind::Policy
                | EventKind::Worker
                | EventKind::Breaker
                | EventKind::Slow
                | EventKind::Overload
                | EventKind::Reload
        ) {
            self.0.lock().mark(Mark {
                at_unix_ms: event.at_unix_ms,
                kind: event.kind.as_str().to_owned(),
                subject: event.subject.clone(),
                text: describe(event),
            });
        }
    }
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<Past, _, _>(
            "history.get",
            "/admin/v1/history",
            "Counters, loads and changes of the last 24 hours",
            get,
        )
        .query::<HistoryQuery>(),
    ]
}

async fn get(call: Call) -> Result<Reply, Problem> {
    let asked: HistoryQuery = call.query()?;
    let mut past = call.admin.history.past();
    if asked.samples == Some(false) {
        past.samples.clear();
    }
    Reply::json(&past)
}

fn describe(event: &Event) -> String {
    let now = &event.now;
    let says = |key: &str| now.get(key).and_then(Value::as_bool);
    match event.kind {
        EventKind::Policy => format!(
            "revision {} by {}",
            now["revision"],
            now["by"].as_str().unwrap_or("the router")
        ),
        EventKind::Breaker => format!("breaker {}", now["breaker"].as_str().unwrap_or("changed")),
        EventKind::Slow if says("slow") == Some(true) => {
            let ms = |key: &str| now[key].as_f64().unwrap_or_default();
            format!(
                "slow: a typical prompt takes {:.0} ms instead of {:.0} ms",
                ms("typical_prompt_ms"),
                ms("baseline_typical_prompt_ms")
            )
        }
        EventKind::Slow => "recovered".to_owned(),
        EventKind::Overload if says("overloaded") == Some(true) => format!(
            "overloaded: waits {:.1} s on {} of {} workers",
            now["wait_ms"].as_f64().unwrap_or_default() / 1e3,
            now["workers_over"],
            now["workers_ready"]
        ),
        EventKind::Overload => "overload ended".to_owned(),
        EventKind::Reload if now["refused"].is_string() => "configuration refused".to_owned(),
        EventKind::Reload => "configuration reloaded".to_owned(),
        _ if says("joined") == Some(true) => "joined".to_owned(),
        _ if says("left") == Some(true) => "left".to_owned(),
        _ if says("well") == Some(false) => {
            let error = now["error"].as_str().unwrap_or("its probes fail");
            format!("unwell: {error}")
        }
        _ if now["hold"].as_str().is_some_and(|hold| hold != "none") => {
            now["hold"].as_str().unwrap_or_default().to_owned()
        }
        _ if says("ready") == Some(true) => "ready".to_owned(),
        _ if says("ready") == Some(false) => "not ready".to_owned(),
        _ => "changed".to_owned(),
    }
}

/// Starts a thread that samples as long as `admin` lives; no request waits for it. Fails if the thread cannot start.
pub fn record(admin: &Arc<Admin>) -> io::Result<()> {
    let (of, runtime) = (Arc::downgrade(admin), Handle::current());
    let mut events = admin.state.operations.operator.events.listen();
    let snapshot = admin.state.config.index.snapshot.clone();
    let recording = move || {
        // The page has gauges of the runtime.
        let _within = runtime.enter();
        let past = snapshot.as_ref().and_then(|snapshot| file::read(&snapshot.path));
        if let (Some(past), Some(admin)) = (past, of.upgrade()) {
            admin.history.0.lock().restore(past);
        }
        for tick in 1_u32.. {
            // An early wake-up only adds a sample.
            thread::park_timeout(INTERVAL);
            let Some(admin) = of.upgrade() else { return };
            step(&admin, &mut events);
            if let Some(snapshot) = snapshot.as_ref().filter(|_| tick.is_multiple_of(WRITES)) {
                file::write(&snapshot.path, &admin.history.past());
            }
        }
    };
    thread::Builder::new()
        .name("history".to_owned())
        .spawn(recording)?;
    Ok(())
}

/// Records the changes since the last step, and a sample.
fn step(admin: &Admin, events: &mut Receiver<Arc<Event>>) {
    loop {
        match events.try_recv() {
            Ok(event) => admin.history.mark(&event),
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    match catch_unwind(AssertUnwindSafe(|| sample(admin))) {
        Ok(sample) => admin.history.0.lock().push(sample),
        Err(panic) => error!(why = panic_message(&*panic), "cannot sample the history"),
    }
}

/// Writes the history beside the snapshot, if one is configured.
pub async fn save(admin: &Arc<Admin>) {
    let Some(snapshot) = admin.state.config.index.snapshot.clone() else {
        return;
    };
    let past = admin.history.past();
    // A panic is logged by its hook.
    let _ = tokio::task::spawn_blocking(move || file::write(&snapshot.path, &past)).await;
}

fn sample(admin: &Admin) -> Sample {
    let gauges = admin.gauges();
    let page = admin
        .state
        .routing
        .metrics
        .render(&gauges, Format::Text)
        .unwrap_or_default();
    let mut of_workers = (gauges.workers.len() <= MOST_WORKERS).then(|| page::of_workers(&page));
    let mut load = |worker: &metrics::WorkerGauges| {
        let load = Load {
            ready: worker.ready,
            in_flight: worker.in_flight,
            wait_ms: rounded(worker.wait.0, 1e2),
            utilisation: rounded(worker.utilisation, 1e4),
            counters: of_workers
                .as_mut()
                .map(|counters| Box::new(counters.remove(&worker.name).unwrap_or_default())),
        };
        (worker.name.clone(), load)
    };
    Sample {
        at_unix_ms: operator::unix_ms(),
        waiting: gauges.admission.waiting as u64,
        policy_revision: gauges.policy_revision,
        workers: gauges.workers.iter().take(MOST_WORKERS).map(&mut load).collect(),
        ..page::counters(&page)
    }
}

/// Rounds, so that the written number is short.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

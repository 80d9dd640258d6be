//! A worker that becomes slow is named: in the fleet, as an event, in the log, as a metric, and as the cause of late
//! turns. The test is a separate process: it needs the machine for itself, and captures the log (`choices_log.rs`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests and their helpers"
)]

use std::sync::Arc;
use std::time::Duration;

use operator::events::{Event, EventKind};
use policy::cost::PrefillCost;
use policy::units::Millis;
use serde_json::{Value, json};
use sim_engine::{EngineConfig, Fault, Jitter};
use tailroute_e2e::client;
use tailroute_e2e::fleet::{Fleet, quick};
use tailroute_e2e::log::Log;
use tailroute_e2e::talk::{Conversation, words};
use tokio::task::JoinSet;

/// Conversations at a time.
const TALKERS: u64 = 6;
/// Longest time until a change is noticed: it has to be learned, and to last for five seconds.
const BOUND: Duration = Duration::from_secs(45);

/// Starts three engines whose prefills take 6 ms, and 0.04 ms per token, with noise.
async fn start() -> Arc<Fleet> {
    let engine = |seed| EngineConfig {
        time_scale: 5.0,
        prefill: PrefillCost::linear(0.2, 30.0),
        jitter: Jitter {
            share: 0.15,
            stalls: 0.01,
            seed,
        },
        default_output_tokens: 4,
        tpot_ms: 1.0,
        per_request_metrics: true,
        ..quick()
    };
    let fleet = Fleet::start((0..3).map(engine).collect(), |config| {
        config.objective.ttft = Millis(150.0);
        config.routing.utilisation_window = Millis(5000.0);
        // A slow worker is tried again soon.
        config.learning.fade = Millis(3000.0);
    });
    Arc::new(fleet.await)
}

/// Runs conversations until the tasks are dropped.
fn load(fleet: &Arc<Fleet>) -> JoinSet<()> {
    let mut talkers = JoinSet::new();
    for talker in 0..TALKERS {
        let fleet = Arc::clone(fleet);
        talkers.spawn(async move {
            for id in (talker * 1_000_000).. {
                let mut talk = Conversation::new(&words(id, 400));
                for turn in 0..4 {
                    fleet.turn(&mut talk, &[], &words(id * 10 + turn, 120)).await;
                }
            }
        });
    }
    talkers
}

async fn listed(fleet: &Fleet) -> Vec<Value> {
    let address = fleet.router.admin_address;
    let list = client::admin(address, "GET", "/admin/v1/workers", &[], None).await;
    list.json()["workers"].as_array().unwrap().clone()
}

/// Waits until the list of workers is as wanted.
async fn until_listed(fleet: &Fleet, what: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let waited = tokio::time::timeout(BOUND, async {
        loop {
            let workers = listed(fleet).await;
            if is_so(&workers) {
                return workers;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    match waited.await {
        Ok(workers) => workers,
        Err(_) => panic!("never came to be: {what}: {:?}", listed(fleet).await),
    }
}

async fn slow_turns(fleet: &Fleet) -> f64 {
    let late = [("cause", "slow_worker")];
    fleet.metrics().await.sum("tailroute_slo_violations_total", &late)
}

#[tokio::test]
async fn a_worker_slowed_eightfold_is_named_everywhere_until_it_recovers() {
    let log = Log::default();
    let _captured = tracing::subscriber::set_default(log.at("info"));
    let fleet = start().await;
    let mut events = fleet.router.parts().state.operations.operator.events.listen();
    let mut happened = move || -> Vec<Arc<Event>> {
        let all = std::iter::from_fn(|| events.try_recv().ok());
        all.filter(|event| event.kind == EventKind::Slow).collect()
    };
    let name = fleet.router.parts().state.routing.fleet.workers()[0]
        .name()
        .to_owned();
    let _load = load(&fleet);

    // Healthy, with noise and with changes of load.
    for _ in 0..2 {
        let more = load(&fleet);
        tokio::time::sleep(Duration::from_secs(4)).await;
        drop(more);
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    assert!(listed(&fleet).await.iter().all(|worker| worker["slow"].is_null()));
    assert!(happened().is_empty() && slow_turns(&fleet).await == 0.0);
    let series = |page: &tailroute_e2e::metrics::Page| {
        let samples = page.samples().iter();
        samples
            .filter(|sample| sample.name == "tailroute_worker_slow_ratio")
            .count()
    };
    assert_eq!(series(&fleet.metrics().await), 0);

    let slow = Fault {
        slow: 8.0,
        ..Fault::default()
    };
    fleet.engines[0].set_fault(slow);
    let workers = until_listed(&fleet, "it is slow", |workers| workers[0]["slow"].is_object()).await;
    assert!(workers[1..].iter().all(|worker| worker["slow"].is_null()));
    let found = &workers[0]["slow"];
    assert!(found["factor"].as_f64().unwrap() > 3.0, "{found}");
    assert!(found["against"].is_string(), "{found}");
    let told = happened();
    let [told] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((&told.subject, &told.now["slow"]), (&name, &json!(true)));
    assert!(told.now["factor"].as_f64().unwrap() > 1.5, "{told:?}");
    let ratio = fleet
        .metrics()
        .await
        .sum("tailroute_worker_slow_ratio", &[("worker", &name)]);
    assert!(ratio > 1.5, "{ratio}");
    let line = log.text();
    let line = line.lines().find(|line| line.contains("worker is slow"));
    let line = line.expect("it is logged");
    assert!(line.contains("WARN") && line.contains(&name), "{line}");

    // Its turns, and those that wait elsewhere, are late for it.
    let before = slow_turns(&fleet).await;
    let waited = tokio::time::timeout(BOUND, async {
        while slow_turns(&fleet).await < before + 3.0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    waited.await.expect("turns are late for the slow worker");
    let path = "/admin/v1/decisions?late=true&cause=slow_worker";
    let late = client::admin(fleet.router.admin_address, "GET", path, &[], None).await;
    let parts = &late.json()["decisions"][0]["outcome"]["parts"];
    assert!(parts["slow_worker_ms"].as_f64().unwrap() > 0.0, "{parts}");

    fleet.engines[0].set_fault(Fault::default());
    until_listed(&fleet, "it has recovered", |workers| workers[0]["slow"].is_null()).await;
    let told = happened();
    assert_eq!(told.last().unwrap().now, json!({ "slow": false }));
    let page = fleet.metrics().await;
    assert_eq!(page.sum("tailroute_worker_slow_ratio", &[("worker", &name)]), 1.0);
    assert!(log.text().contains("recovered"));
}

//! Queries a worker's engine for the facts that the router needs: models, dialect, cache policy, capacity, sleep.
//!
//! [`fleet::facts`] decides when; this task sends the queries and applies the answers. A new or restarted worker gets
//! its first turn only after every query was tried, because models and dialect affect requests. An engine in the middle
//! of a long prompt may not answer in time. Until it does, it gets no hints unless its dialect is configured, and the
//! queries are repeated.

mod settings;

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use policy::units::Millis;
use serde_json::Value;
use tracing::{debug, info, warn};

use fleet::facts::{Fact, FactChange, FactSource, Listed, Query};
use fleet::{Worker, clock};
use proxy::Proxy;
use state::Routing;
use state::State;
use state::control;

/// Longest pause between two queries of a list that cannot be read, in intervals of the probes.
const LONGEST_PAUSE: f64 = 1.5;
/// Pause between two queries of the list while the router is idle, in intervals of the probes.
const IDLE: f64 = 15.0;
/// Longest sleep between two checks of the schedule.
const LOOK: Duration = Duration::from_secs(3600);
/// Largest number of names of one change that are logged.
const SHOWN: usize = 8;

/// Sends a worker the queries that are due, until the task is cancelled.
pub(super) async fn keep(proxy: Arc<Proxy>, worker: Arc<Worker>) {
    let facts = &worker.facts;
    if facts.next().is_some() {
        // The task was restarted, perhaps in the middle of a query.
        facts.begin(proxy.state.routing.clock.now());
    }
    loop {
        wait(&proxy.state, &worker).await;
        if facts.is_due(Query::Models, proxy.state.routing.clock.now()) {
            facts.asked(Query::Models);
            ask_models(&proxy.state, &worker).await;
        }
        if facts.is_due(Query::Settings, proxy.state.routing.clock.now()) {
            facts.asked(Query::Settings);
            settings::ask(&proxy, &worker).await;
        }
    }
}

/// Waits until a query is due. A list that was read while the router was idle is read again when the idleness ends.
async fn wait(state: &State, worker: &Worker) {
    let (facts, idle) = (&worker.facts, &state.operations.idle);
    loop {
        let now = state.routing.clock.now();
        let left = match facts.next() {
            Some(next) if next <= now => return,
            Some(next) => clock::duration(next - now).min(LOOK),
            None => LOOK,
        };
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            () = facts.changed() => {}
            () = idle.ends(), if idle.is_idle() && facts.next().is_some() => {
                facts.doubt(state.routing.clock.now());
            }
        }
    }
}

/// Makes every query due, and waits until each was tried.
pub(super) async fn introduce(routing: &Routing, worker: &Worker) {
    // The settings are asked for after the list.
    let number = worker.facts.next_number(Query::Settings);
    worker.facts.begin(routing.clock.now());
    worker.facts.wait_for_answer(Query::Settings, number).await;
}

async fn ask_models(state: &State, worker: &Worker) {
    let probe = Millis(state.config.health.interval.as_secs_f64() * 1e3);
    let answer = control::call(&state.transport, worker, Method::GET, "/v1/models", None).await;
    let listed = answer
        .map_err(|error| error.to_string())
        .and_then(|answer| Listed::read(&answer).ok_or_else(|| "not a list of models".to_owned()));
    let asks_sleep = worker
        .facts
        .known(Fact::Sleep)
        .is_some_and(|known| known.source == FactSource::Probed);
    if asks_sleep {
        ask_sleep(state, worker).await;
    }
    let now = state.routing.clock.now();
    match listed {
        Ok(listed) => {
            take_models(state, worker, now, listed).await;
            let interval = if state.operations.idle.is_idle() {
                probe.0 * IDLE
            } else {
                probe.0
            };
            if let Some(failure) = worker.facts.answered(Query::Models, now, Millis(interval)) {
                let for_s = ((now - failure.since).0 / 1e3).round();
                info!(worker = worker.name(), for_s, "list of models read again");
            }
        }
        Err(error) => {
            let pauses = [probe, Millis(probe.0 * LONGEST_PAUSE)];
            if worker.facts.failed(Query::Models, now, error.clone(), pauses) {
                let kept = worker.models().is_some() || !worker.spec.models.is_empty();
                warn!(
                    worker = worker.name(),
                    error,
                    kept,
                    "list of models not read: it gets requests only for models that are known to be there, or that no \
                     worker is known to serve; GET /v1/models is repeated (or set workers[].models)"
                );
            }
        }
    }
}

/// Applies a list of models. A change is logged by name.
async fn take_models(state: &State, worker: &Worker, now: Millis, listed: Listed) {
    let names = listed.names().to_vec();
    let change = worker.facts.learn_models(now, listed);
    let is_new = match &change {
        None => {
            debug!(worker = worker.name(), models = names.len(), "models listed");
            true
        }
        Some([added, removed]) if added.is_empty() && removed.is_empty() => false,
        Some([added, removed]) => {
            info!(
                worker = worker.name(),
                added = shown(added),
                removed = shown(removed),
                "the worker's models changed"
            );
            true
        }
    };
    if is_new {
        state.routing.metrics.listed(&names);
        super::template::learn(state, worker, &names).await;
    }
}

fn shown(names: &[String]) -> String {
    let mut text = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

/// Queries whether the engine sleeps, where it has an endpoint for that: vLLM in development mode. Other engines report
/// it in their metrics, or not at all.
async fn ask_sleep(state: &State, worker: &Worker) {
    let Ok(answer) = control::call(&state.transport, worker, Method::GET, "/is_sleeping", None).await else {
        return;
    };
    let said: Value = serde_json::from_slice(&answer).unwrap_or_default();
    if let Some(asleep) = said["is_sleeping"].as_bool() {
        note_sleep(state, worker, asleep, FactSource::Probed);
    }
}

/// Records whether a worker's engine sleeps. An engine that falls asleep drops its cache.
pub(super) fn note_sleep(state: &state::State, worker: &Worker, asleep: bool, source: FactSource) {
    if worker
        .facts
        .learn_sleep(state.routing.clock.now(), asleep, source)
        != FactChange::Changed
    {
        return;
    }
    if asleep {
        warn!(
            worker = worker.name(),
            "the engine sleeps: it gets no requests while another worker can serve them"
        );
        state.routing.knowledge.cleared(worker.id);
    } else {
        info!(worker = worker.name(), "the engine is awake");
    }
    state.operations.worker_changed(worker);
}

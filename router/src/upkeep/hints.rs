//! Delivers what workers should be told: one message in flight to each, never more.

use std::sync::Arc;

use policy::units::Tokens;
use serde_json::Value;
use tracing::debug;

use crate::app::App;
use crate::control;
use fleet::Worker;
use fleet::dialect::Terms;
use fleet::hints::Hint;

/// Sends a worker what waits for it, for as long as the task lives.
pub async fn deliver(app: Arc<App>, worker: Arc<Worker>) {
    loop {
        worker.hints.queued().await;
        loop {
            let ready = worker.is_well();
            if ready {
                send_objective(&app, &worker).await;
            }
            let batch = worker.hints.take();
            if batch.is_empty() {
                break;
            }
            if ready {
                send(&app, &worker, &batch).await;
            }
        }
    }
}

async fn send(app: &App, worker: &Worker, batch: &[Hint]) {
    let ttl_ms = app.config.hints.ttl.0;
    let hints: Vec<Value> = batch.iter().map(|hint| hint.json(ttl_ms)).collect();
    let Some(message) = worker.dialect().hints(&hints) else {
        return;
    };
    tell_others(app, worker, batch.last().map_or(0, |hint| hint.epoch));
    let outcome = control::call(app, worker, message.method, message.path, Some(&message.body)).await;
    if let Err(error) = &outcome {
        debug!(worker = worker.name(), %error, hints = batch.len(), "hints not delivered");
    }
    for hint in batch {
        app.metrics
            .hint(worker.name(), hint.kind.as_str(), outcome.is_ok());
    }
}

/// Tells a worker the objective, if its dialect has a way and another one than it was told waits: ξ_w of an idle worker, and Q̂. What a request
/// carries is more exact and comes first.
pub(super) async fn send_objective(app: &App, worker: &Worker) {
    let Some((objective, epoch)) = worker.hints.take_objective() else {
        return;
    };
    let terms = Terms {
        xi_tokens: objective.xi_tokens,
        next_prompt: Tokens(objective.next_prompt_tokens),
        epoch,
    };
    let Some(message) = worker.dialect().objective(&terms) else {
        return;
    };
    tell_others(app, worker, epoch);
    let outcome = control::call(app, worker, message.method, message.path, Some(&message.body)).await;
    match &outcome {
        Ok(_) => worker.hints.took(Some(objective)),
        Err(error) => debug!(worker = worker.name(), %error, "objective not delivered"),
    }
    app.metrics.hint(worker.name(), "objective", outcome.is_ok());
}

/// What other replicas tell the worker from now on comes after this.
fn tell_others(app: &App, worker: &Worker, epoch: u64) {
    if let Some(bus) = &app.bus {
        bus.hinted(worker, epoch);
    }
}

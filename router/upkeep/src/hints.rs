//! Delivers queued hints, at most one message in flight per worker.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tracing::debug;

use fleet::Worker;
use fleet::dialect::Message;
use fleet::hints::Hint;
use proxy::Proxy;
use state::control::{self, CallError};

/// Sends a worker its queued hints until the task is cancelled.
pub async fn deliver(proxy: Arc<Proxy>, worker: Arc<Worker>) {
    loop {
        worker.hints.queued().await;
        loop {
            let ready = worker.is_well();
            if ready {
                send_objective(&proxy, &worker).await;
            }
            let batch = worker.hints.take();
            if batch.is_empty() {
                break;
            }
            if ready {
                send(&proxy, &worker, &batch).await;
            }
        }
    }
}

async fn send(proxy: &Proxy, worker: &Worker, batch: &[Hint]) {
    let ttl_ms = proxy.state.routing.live().hints.ttl.0;
    let hints: Vec<Value> = batch.iter().map(|hint| hint.json(ttl_ms)).collect();
    let Some(message) = worker.dialect().hints(&hints) else {
        return;
    };
    let epoch = batch.last().map_or(0, |hint| hint.epoch);
    let outcome = send_message(proxy, worker, message, epoch).await;
    if let Err(error) = &outcome {
        debug!(worker = worker.name(), %error, hints = batch.len(), "hints not delivered");
    }
    for hint in batch {
        proxy
            .state
            .routing
            .metrics
            .hint(worker.name(), hint.kind.as_str(), outcome.is_ok());
    }
}

/// Sends a worker the queued objective, if its dialect supports that. Hints in requests take precedence.
pub(super) async fn send_objective(proxy: &Proxy, worker: &Worker) {
    let Some((objective, epoch)) = worker.hints.take_objective() else {
        return;
    };
    let Some(message) = worker.dialect().objective(&objective, epoch) else {
        return;
    };
    let sent = proxy.state.routing.clock.now();
    let outcome = send_message(proxy, worker, message, epoch).await;
    let is_accepted = match &outcome {
        Ok(answer) if worker.dialect().accepts(answer) => {
            worker.hints.took(sent, objective);
            true
        }
        Ok(_) => {
            debug!(worker = worker.name(), "objective refused");
            false
        }
        Err(error) => {
            debug!(worker = worker.name(), %error, "objective not delivered");
            false
        }
    };
    proxy
        .state
        .routing
        .metrics
        .hint(worker.name(), "objective", is_accepted);
}

/// Reports the epoch to other replicas, so that their later hints have higher ones, and sends the message.
async fn send_message(
    proxy: &Proxy,
    worker: &Worker,
    message: Message,
    epoch: u64,
) -> Result<Bytes, CallError> {
    if let Some(bus) = &proxy.replicas {
        bus.hinted(worker, epoch);
    }
    let Message { method, path, body } = message;
    control::call(&proxy.state.transport, worker, method, path, Some(&body)).await
}

//! What a worker should be told, beside its requests: queued, coalesced, at most one message in flight, lost without
//! harm.
//!
//! A hint is about one conversation on one worker. A newer one replaces an older one that was not yet sent. The queue
//! is bounded; when it is full the oldest hint is dropped, since the newest say more about what the worker holds now.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use policy::slo;
use policy::units::{Millis, Tokens};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tracing::debug;

use super::dialect::Terms;
use super::{Worker, probe};
use crate::app::App;

/// Hints that may wait for one worker.
const QUEUE: usize = 1024;
/// Hints in one message.
const BATCH: usize = 256;

/// What is hinted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keep the first tokens of the conversation; the rest may go first.
    Trim {
        /// Tokens to keep.
        keep: Tokens,
    },
    /// The conversation lives elsewhere now: all of it may go first.
    Moved,
    /// The conversation is over.
    Ended,
}

impl Kind {
    /// The name on the wire and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trim { .. } => "trim",
            Self::Moved => "moved",
            Self::Ended => "ended",
        }
    }
}

#[derive(Debug)]
struct Hint {
    session: Arc<str>,
    kind: Kind,
    epoch: u64,
}

/// The hints that wait for one worker.
#[derive(Debug, Default)]
pub struct HintQueue {
    waiting: Mutex<VecDeque<Hint>>,
    wake: Notify,
    epoch: AtomicU64,
}

impl HintQueue {
    /// Queues a hint, replacing one about the same conversation.
    pub fn push(&self, session: Arc<str>, kind: Kind) {
        let epoch = self.next_epoch();
        let mut waiting = self.waiting.lock();
        if let Some(known) = waiting.iter_mut().find(|hint| hint.session == session) {
            (known.kind, known.epoch) = (kind, epoch);
        } else {
            if waiting.len() == QUEUE {
                waiting.pop_front();
            }
            waiting.push_back(Hint { session, kind, epoch });
        }
        drop(waiting);
        self.wake.notify_one();
    }

    fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn take(&self) -> Vec<Hint> {
        let mut waiting = self.waiting.lock();
        let batch = waiting.len().min(BATCH);
        waiting.drain(..batch).collect()
    }
}

/// Sends a worker its hints for as long as the task lives: one message in flight, never more.
pub async fn deliver(app: Arc<App>, worker: Arc<Worker>) {
    loop {
        worker.hints.wake.notified().await;
        loop {
            let batch = worker.hints.take();
            if batch.is_empty() {
                break;
            }
            if worker.hears_hints() && worker.is_ready() {
                send(&app, &worker, &batch).await;
            }
        }
    }
}

async fn send(app: &App, worker: &Worker, batch: &[Hint]) {
    let ttl_ms = app.config.hints.ttl.0;
    let hints: Vec<Value> = batch
        .iter()
        .map(|hint| {
            let mut value = json!({
                "kind": hint.kind.as_str(), "session_id": &*hint.session, "epoch": hint.epoch, "ttl_ms": ttl_ms
            });
            if let Kind::Trim { keep } = hint.kind {
                value["keep_tokens"] = keep.0.into();
            }
            value
        })
        .collect();
    let Some(message) = worker.dialect().hints(&hints) else {
        return;
    };
    let outcome = probe::call(app, worker, message.method, message.path, Some(&message.body)).await;
    if let Err(error) = &outcome {
        debug!(worker = worker.name(), %error, hints = batch.len(), "hints not delivered");
    }
    for hint in batch {
        app.metrics
            .hint(worker.name(), hint.kind.as_str(), outcome.is_ok());
    }
}

/// Tells a worker the objective, if its dialect has a way: ξ_w of an idle worker, and Q̂. What a request carries is more exact and comes first.
pub async fn send_objective(app: &App, worker: &Worker) {
    let objective = &app.config.objective;
    let xi_tokens = slo::xi_tokens(&worker.cost(), objective.ttft, Millis::ZERO, Tokens::ZERO).min(1e9);
    let terms = Terms {
        xi_tokens,
        next_prompt: objective.next_prompt,
        epoch: worker.hints.next_epoch(),
    };
    let Some(message) = worker.dialect().objective(&terms) else {
        return;
    };
    let outcome = probe::call(app, worker, message.method, message.path, Some(&message.body)).await;
    if let Err(error) = &outcome {
        debug!(worker = worker.name(), %error, "objective not delivered");
    }
    app.metrics.hint(worker.name(), "objective", outcome.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(batch: &[Hint]) -> Vec<&str> {
        batch.iter().map(|hint| &*hint.session).collect()
    }

    #[test]
    fn a_newer_hint_replaces_an_older_one_and_epochs_grow() {
        let queue = HintQueue::default();
        queue.push("a".into(), Kind::Trim { keep: Tokens(5) });
        queue.push("b".into(), Kind::Ended);
        queue.push("a".into(), Kind::Moved);
        let batch = queue.take();
        assert_eq!(sessions(&batch), ["a", "b"]);
        assert_eq!(
            (batch[0].kind, batch[0].epoch, batch[1].epoch),
            (Kind::Moved, 3, 2)
        );
        assert!(queue.take().is_empty());
    }

    #[test]
    fn a_full_queue_drops_its_oldest() {
        let queue = HintQueue::default();
        for i in 0..QUEUE + 1 {
            queue.push(i.to_string().into(), Kind::Ended);
        }
        assert_eq!(queue.waiting.lock().len(), QUEUE);
        assert_eq!(queue.take()[0].session, "1".into());
    }

    #[test]
    fn messages_are_bounded() {
        let queue = HintQueue::default();
        for i in 0..BATCH + 1 {
            queue.push(i.to_string().into(), Kind::Ended);
        }
        assert_eq!(queue.take().len(), BATCH);
        assert_eq!(queue.take().len(), 1);
    }
}

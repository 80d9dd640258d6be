//! What changes, told to whoever listens as it happens: the policy, workers, breakers, reloads.
//!
//! One bounded channel for all. Who listens too slowly misses events, and is told how many; nobody who publishes waits.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::broadcast;

/// Events that wait for a listener.
const WAITING: usize = 256;

/// Something that has changed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Event {
    /// Its number since the start.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What kind of thing.
    pub kind: Kind,
    /// Which: a worker's name, `policy`, `config`, a kind of task.
    pub subject: String,
    /// What it is now.
    pub now: Value,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Another policy is in force: its revision.
    Policy,
    /// A worker may be given work, or may not any more.
    Worker,
    /// A worker's breaker has opened or closed.
    Breaker,
    /// The configuration was read again.
    Reload,
    /// NATS, by which replicas hear of each other, came or went.
    Replicas,
    /// A worker's cache events are followed, or are not any more and why.
    Evidence,
    /// A long-lived task failed and is started again.
    Task,
}

impl Kind {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Worker => "worker",
            Self::Breaker => "breaker",
            Self::Reload => "reload",
            Self::Replicas => "replicas",
            Self::Evidence => "evidence",
            Self::Task => "task",
        }
    }
}

/// Where events are told.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<Arc<Event>>,
    next: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(WAITING),
            next: AtomicU64::new(0),
        }
    }
}

impl Events {
    /// Tells everybody who listens.
    pub fn tell(&self, kind: Kind, subject: &str, now: Value) {
        let event = Event {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            at_unix_ms: super::unix_ms(),
            kind,
            subject: subject.to_owned(),
            now,
        };
        // Nobody may listen.
        let _ = self.sender.send(Arc::new(event));
    }

    /// Listens from here on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.sender.subscribe()
    }

    /// Who listens.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }
}

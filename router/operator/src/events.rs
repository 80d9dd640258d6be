//! Publishes changes of the router's state as they happen.
//!
//! All events share one bounded channel. A slow subscriber misses events and gets the number of missed ones; publishing
//! never waits.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, broadcast};

/// Events buffered for a subscriber.
const WAITING: usize = 256;

/// A change of the router's state.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Event {
    /// Number of the event since the router's start, from 0.
    pub number: u64,
    /// Time in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Kind of the change.
    pub kind: EventKind,
    /// Subject of the change: a worker's name, `policy`, `fleet`, `config`, the replica's name, or a kind of task.
    pub subject: String,
    /// State after the change.
    pub now: Value,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// Another policy is in force; carries its revision.
    Policy,
    /// A worker joined or left the fleet, or its readiness, health or administrative state changed.
    Worker,
    /// A worker's breaker opened or closed.
    Breaker,
    /// A worker became slow, or recovered.
    Slow,
    /// The fleet became overloaded, or overload ended.
    Overload,
    /// The configuration was reloaded, or a new one was refused.
    Reload,
    /// The connection to NATS, which links the replicas, was established or lost.
    Replicas,
    /// The router started or stopped following a worker's cache events, with the reason.
    Evidence,
    /// A long-lived task failed and is restarted.
    Task,
}

impl EventKind {
    /// Returns the name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Worker => "worker",
            Self::Breaker => "breaker",
            Self::Slow => "slow",
            Self::Overload => "overload",
            Self::Reload => "reload",
            Self::Replicas => "replicas",
            Self::Evidence => "evidence",
            Self::Task => "task",
        }
    }
}

/// Channel of events, shared by all subscribers.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<Arc<Event>>,
    next: AtomicU64,
    happened: Notify,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(WAITING),
            next: AtomicU64::new(0),
            happened: Notify::new(),
        }
    }
}

impl Events {
    /// Publishes an event to all subscribers.
    pub fn tell(&self, kind: EventKind, subject: &str, now: Value) {
        let event = Event {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            at_unix_ms: super::unix_ms(),
            kind,
            subject: subject.to_owned(),
            now,
        };
        // There may be no subscribers.
        let _ = self.sender.send(Arc::new(event));
        self.happened.notify_one();
    }

    /// Waits until an event was published since the last call. Only one task may wait.
    pub async fn happened(&self) {
        self.happened.notified().await;
    }

    /// Subscribes to the events from now on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.sender.subscribe()
    }

    /// Returns the number of subscribers.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }
}

//! Follows one worker's stream of cache events (docs/evidence.md, "States of an event stream").
//!
//! Nothing is queued here, so a router that falls behind makes the publisher drop events, which shows as a gap. Lost
//! batches are requested on a second socket (`replay`). Once a second the same request is sent without a gap: it
//! detects a silent loss at the end of a burst, a lost publisher, and a new process. If lost batches cannot be
//! replayed, all knowledge of the cache is dropped and learned again: the stream never continues as if nothing was
//! lost.
//!
//! A stream that ends restarts after a pause: a tenth of a second at first, doubled with each short-lived stream, half
//! a minute at most. A worker that comes back is followed from its first turns on, at its current endpoint.

mod cut;
mod replay;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use policy::evidence::{Event, Sequence, Verdict, WorkerEvidence};
use tokio::time::Instant;
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_64;

use self::replay::Replay;
use super::source::{EventPublisher, Finder};
use super::wire::{self, Batch};
use super::zmtp::{Connection, Role, ZmtpError};
use fleet::Worker;
use state::State;

/// Interval of the requests that detect silent losses.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Pause after which a worker without events is asked again, and longest pause after a broken stream. A stream that
/// lasted this long restarts with a short pause.
const RETRY: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// The age of a batch relative to the mirror.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchAge {
    /// The batch was made after everything applied before it, so it is newer than the mirror.
    Since,
    /// The age of the batch is unknown: the mirror, restored from a snapshot or updated by responses, may be newer.
    Before,
}

#[derive(Debug, thiserror::Error)]
enum EventStreamError {
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
    #[error("timed out waiting for a response")]
    Timeout(#[from] tokio::time::error::Elapsed),
    #[error("the worker is not ready")]
    Away,
    #[error("a message of {0} frames without a sequence number")]
    Frames(usize),
    #[error("it carries events of ranks {0} and {1}: set `ranks`")]
    Ranks(u32, u32),
}

impl EventStreamError {
    /// Returns whether the stream ends even if only a replay failed, because the publisher cannot be trusted.
    fn is_final(&self) -> bool {
        matches!(self, Self::Ranks(..)) || self.breach().is_some_and(|breach| breach != "unfinished")
    }

    fn breach(&self) -> Option<&'static str> {
        match self {
            Self::Zmtp(error) => error.breach(),
            _ => None,
        }
    }
}

/// Follows a worker's events forever.
pub async fn follow(state: Arc<State>, worker: Arc<Worker>) {
    let mut wait = FIRST_RETRY;
    // Kept across connections: a replay on the next one shows whether the process is the same.
    let mut sequence = Sequence::new();
    let mut finder = Finder::default();
    loop {
        while !worker.is_well() {
            tokio::time::sleep(FIRST_RETRY).await;
        }
        let Some(source) = finder.find(&state, &worker).await else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let mut stream = EventStream {
            state: &state,
            worker: &worker,
            sequence: &mut sequence,
            replay: Replay::new(source.replay.clone()),
            limit: state.routing.live().limits.max_kv_message_bytes.get(),
            rank: None,
        };
        let began = Instant::now();
        let Err(error) = stream.run(&source).await;
        let can_resume = stream.replay.answers() && !matches!(error, EventStreamError::Ranks(..));
        warn!(worker = worker.name(), endpoint = source.endpoint, %error, "cache event connection lost; using the mirror");
        if began.elapsed() >= RETRY || matches!(error, EventStreamError::Away) {
            wait = FIRST_RETRY;
        }
        state.routing.knowledge.evidence_paused(worker.id);
        state.operations.evidence_lost(&worker, &error);
        sequence.reconnected();
        if !can_resume {
            state.routing.metrics.kv_stream(worker.name(), "forget");
            // The old state is freed here, without the lock.
            drop(
                state
                    .routing
                    .knowledge
                    .evidence(worker.id, WorkerEvidence::forget),
            );
            sequence = Sequence::new();
        }
        if let Some(breach) = error.breach() {
            state.routing.metrics.kv_stream(worker.name(), breach);
        }
        state.routing.metrics.kv_stream(worker.name(), "lost");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY);
    }
}

struct EventStream<'a> {
    state: &'a State,
    worker: &'a Worker,
    sequence: &'a mut Sequence,
    replay: Replay,
    /// Longest message in bytes.
    limit: usize,
    /// The rank of the received events, if the worker's rank is not configured.
    rank: Option<u32>,
}

impl EventStream<'_> {
    async fn run(&mut self, source: &EventPublisher) -> Result<std::convert::Infallible, EventStreamError> {
        let mut subscription = Connection::connect(&source.endpoint, Role::Sub, self.limit).await?;
        subscription.subscribe(source.topic.as_bytes()).await?;
        self.catch_up().await?;
        self.state.routing.knowledge.evidence_live(self.worker.id);
        self.state.operations.evidence_live(self.worker);
        info!(
            worker = self.worker.name(),
            endpoint = source.endpoint,
            "following its cache events"
        );
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = subscription.recv() => self.live(&message?).await?,
                _ = heartbeat.tick() => {
                    if !self.worker.is_well() {
                        return Err(EventStreamError::Away);
                    }
                    self.catch_up().await?;
                }
            }
        }
    }

    async fn live(&mut self, message: &[Bytes]) -> Result<(), EventStreamError> {
        let (number, payload) = parts(message)?;
        let name = self.worker.name();
        let behind = number.saturating_sub(self.sequence.next());
        self.state.routing.metrics.kv_behind(name, behind);
        match self.sequence.live(number) {
            Verdict::Apply => self.apply(number, &payload, BatchAge::Since).await?,
            Verdict::Duplicate => self.state.routing.metrics.kv_stream(name, "duplicate"),
            Verdict::Gap { from } => {
                debug!(worker = name, from, number, "cache events missing");
                self.state.routing.metrics.kv_stream(name, "gap");
                self.catch_up().await?;
                if self.sequence.live(number) == Verdict::Apply {
                    self.apply(number, &payload, BatchAge::Since).await?;
                } else if self.sequence.next() <= number {
                    // The lost batches cannot be replayed: continue from here without the earlier state.
                    self.lost(number);
                    self.apply(number, &payload, BatchAge::Since).await?;
                }
            }
            Verdict::Restarted => {
                self.restarted();
                self.catch_up().await?;
                if number == self.sequence.next() {
                    self.apply(number, &payload, BatchAge::Since).await?;
                }
            }
        }
        self.state.routing.metrics.kv_behind(name, 0);
        Ok(())
    }

    async fn apply(&mut self, number: u64, payload: &[u8], made: BatchAge) -> Result<(), EventStreamError> {
        let mut events = Vec::new();
        let read = wire::decode(payload, |event| events.push(event));
        self.sequence.applied(xxh3_64(payload));
        match read {
            Ok(batch) => {
                if self.is_own(batch)? {
                    self.take(&events, made).await;
                    // A process begins with an empty cache.
                    if number == 0 || events.contains(&Event::Cleared) {
                        self.emptied(batch, made);
                    }
                }
                if let Some(at_s) = batch.at_s {
                    self.state.routing.metrics.kv_lag(self.worker.name(), at_s);
                }
            }
            Err(error) => {
                let name = self.worker.name();
                warn!(worker = name, %error, "cannot parse a batch of cache events: cache state dropped; relearning");
                self.state.routing.metrics.kv_stream(name, "unreadable");
                self.forget();
            }
        }
        Ok(())
    }

    /// Returns whether a batch belongs to this worker. Several ranks may share a publisher.
    fn is_own(&mut self, batch: Batch) -> Result<bool, EventStreamError> {
        let Some(rank) = batch.rank else {
            return Ok(true);
        };
        match self.worker.spec.rank {
            Some(own) => Ok(rank == own),
            None => match self.rank.replace(rank) {
                Some(other) if other != rank => Err(EventStreamError::Ranks(other, rank)),
                _ => Ok(true),
            },
        }
    }

    async fn take(&self, events: &[Event], made: BatchAge) {
        let (knowledge, worker) = (&self.state.routing.knowledge, self.worker.id);
        self.state.routing.metrics.kv_events(self.worker.name(), events);
        if made == BatchAge::Since && events.contains(&Event::Cleared) {
            knowledge.cleared(worker);
        }
        for (at, some) in cut::batches(events).enumerate() {
            // A long batch shares its thread with requests.
            if at > 0 {
                tokio::task::yield_now().await;
            }
            knowledge.evidence(worker, |evidence| {
                for (event, part) in some {
                    evidence.apply_part(event, part);
                }
            });
        }
    }

    fn emptied(&self, batch: Batch, made: BatchAge) {
        if let Some(at_s) = batch.at_s.filter(|at_s| at_s.is_finite() && *at_s > 0.0) {
            let (knowledge, at_ms) = (&self.state.routing.knowledge, (at_s * 1e3) as u64);
            match made {
                BatchAge::Before => knowledge.emptied(self.worker.id, at_ms),
                BatchAge::Since => knowledge.emptied_live(self.worker.id, at_ms),
            }
        }
    }

    fn restarted(&mut self) {
        info!(
            worker = self.worker.name(),
            "the cache event stream restarted: cache state dropped; relearning"
        );
        self.state
            .routing
            .metrics
            .kv_stream(self.worker.name(), "restart");
        self.state.routing.knowledge.forget(self.worker.id);
        self.forget();
        self.sequence.begin_at(0);
    }

    /// Drops the cache state after a permanent loss of events, and continues with batch `number`.
    fn lost(&mut self, number: u64) {
        info!(
            worker = self.worker.name(),
            "cache events are lost for good: cache state dropped; relearning"
        );
        self.forget();
        self.sequence.begin_at(number);
    }

    fn forget(&self) {
        self.state.routing.metrics.kv_stream(self.worker.name(), "forget");
        // The old state is freed here, without the lock.
        drop(
            self.state
                .routing
                .knowledge
                .evidence(self.worker.id, WorkerEvidence::forget),
        );
    }
}

/// Returns the sequence number and the payload of a message: its last two frames.
fn parts(frames: &[Bytes]) -> Result<(u64, Bytes), EventStreamError> {
    let [.., number, payload] = frames else {
        return Err(EventStreamError::Frames(frames.len()));
    };
    let number = <[u8; 8]>::try_from(&number[..]).map_err(|_| EventStreamError::Frames(frames.len()))?;
    Ok((u64::from_be_bytes(number), payload.clone()))
}

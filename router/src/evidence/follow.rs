//! One worker's stream of events, for as long as the router runs.
//!
//! The subscription is read as it comes; nothing queues here, so a router that falls behind makes the publisher drop,
//! which shows as a gap. Gaps are asked for on a second socket (`replay`). Once a second the same question is asked
//! without a gap: it finds what a silent loss at the end of a burst would hide, and a publisher that is gone or is a new
//! process.
//!
//! Where nobody answers for what was lost (no endpoint, one that is silent, or one that keeps too little), everything
//! that was known is forgotten and learned again from the next batch on. What is never done is to go on as if nothing had
//! been lost.
//!
//! A stream whose connection breaks, whose publisher exceeds a bound, or whose worker is not ready is ended, and begun anew
//! after a pause: a tenth of a second at first, twice as long with each stream that ends soon, half a minute at the most.
//! A worker that comes back is followed from its first turns on, wherever it publishes then.

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
use super::source::{Finder, Source};
use super::wire::{self, Batch};
use super::zmtp::{Connection, Role, ZmtpError};
use crate::app::App;
use fleet::Worker;

/// Between two questions whether anything was lost.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Before a worker without events is asked again, and the longest wait after a stream broke. A stream that lasted as long
/// is begun anew soon.
const RETRY: Duration = Duration::from_secs(30);
/// The shortest wait after a stream broke.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// When a batch was made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// After all that was applied before it: what it says of the cache is newer than the mirror.
    Since,
    /// Nobody knows how long ago: the mirror, restored from a snapshot or taught by answers, may be newer.
    Before,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
    #[error("no answer in time")]
    Timeout(#[from] tokio::time::error::Elapsed),
    #[error("the worker is not ready")]
    Away,
    #[error("a message of {0} frames without a number")]
    Frames(usize),
    #[error("it carries the events of ranks {0} and {1}: set `ranks`")]
    Ranks(u32, u32),
}

impl StreamError {
    /// Whether the stream ends even where only the question for lost batches failed: the publisher cannot be believed.
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

/// Follows a worker's events for as long as the task lives.
pub async fn follow(app: Arc<App>, worker: Arc<Worker>) {
    let mut wait = FIRST_RETRY;
    // Outlives a connection: the next one shows by a replay whether it is still the same process.
    let mut sequence = Sequence::new();
    let mut finder = Finder::default();
    loop {
        while !worker.is_well() {
            tokio::time::sleep(FIRST_RETRY).await;
        }
        let Some(source) = finder.find(&app, &worker).await else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let mut stream = Stream {
            app: &app,
            worker: &worker,
            sequence: &mut sequence,
            replay: Replay::new(source.replay.clone()),
            limit: app.live().limits.max_kv_message_bytes.get(),
            rank: None,
        };
        let began = Instant::now();
        let Err(error) = stream.run(&source).await;
        let can_resume = stream.replay.answers() && !matches!(error, StreamError::Ranks(..));
        warn!(worker = worker.name(), endpoint = source.endpoint, %error, "its cache events are lost: back to the mirror");
        if began.elapsed() >= RETRY || matches!(error, StreamError::Away) {
            wait = FIRST_RETRY;
        }
        app.knowledge.evidence_paused(worker.id);
        app.evidence_lost(&worker, &error);
        sequence.reconnected();
        if !can_resume {
            // Nobody can say what was missed.
            app.metrics.kv_stream(worker.name(), "forget");
            // Freed here, where no lock is held.
            drop(app.knowledge.evidence(worker.id, WorkerEvidence::forget));
            sequence = Sequence::new();
        }
        if let Some(breach) = error.breach() {
            app.metrics.kv_stream(worker.name(), breach);
        }
        app.metrics.kv_stream(worker.name(), "lost");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY);
    }
}

struct Stream<'a> {
    app: &'a App,
    worker: &'a Worker,
    sequence: &'a mut Sequence,
    replay: Replay,
    /// Most bytes of a message.
    limit: usize,
    /// The rank whose events came, where the worker was not said to be one.
    rank: Option<u32>,
}

impl Stream<'_> {
    async fn run(&mut self, source: &Source) -> Result<std::convert::Infallible, StreamError> {
        let mut subscription = Connection::connect(&source.endpoint, Role::Sub, self.limit).await?;
        subscription.subscribe(source.topic.as_bytes()).await?;
        self.catch_up().await?;
        self.app.knowledge.evidence_live(self.worker.id);
        self.app.evidence_live(self.worker);
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
                        return Err(StreamError::Away);
                    }
                    self.catch_up().await?;
                }
            }
        }
    }

    /// A message came by subscription.
    async fn live(&mut self, message: &[Bytes]) -> Result<(), StreamError> {
        let (number, payload) = parts(message)?;
        let name = self.worker.name();
        let behind = number.saturating_sub(self.sequence.next());
        self.app.metrics.kv_behind(name, behind);
        match self.sequence.live(number) {
            Verdict::Apply => self.apply(number, &payload, Made::Since).await?,
            Verdict::Duplicate => self.app.metrics.kv_stream(name, "duplicate"),
            Verdict::Gap { from } => {
                debug!(worker = name, from, number, "cache events missing");
                self.app.metrics.kv_stream(name, "gap");
                self.catch_up().await?;
                if self.sequence.live(number) == Verdict::Apply {
                    self.apply(number, &payload, Made::Since).await?;
                } else if self.sequence.next() <= number {
                    // Not to be had any more: from here on, and nothing from before.
                    self.lost(number);
                    self.apply(number, &payload, Made::Since).await?;
                }
            }
            Verdict::Restarted => {
                self.restarted();
                self.catch_up().await?;
                if number == self.sequence.next() {
                    self.apply(number, &payload, Made::Since).await?;
                }
            }
        }
        self.app.metrics.kv_behind(name, 0);
        Ok(())
    }

    /// Applies the next batch.
    async fn apply(&mut self, number: u64, payload: &[u8], made: Made) -> Result<(), StreamError> {
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
                    self.app.metrics.kv_lag(self.worker.name(), at_s);
                }
            }
            Err(error) => {
                let name = self.worker.name();
                warn!(worker = name, %error, "a batch of cache events cannot be read: forgotten, relearning");
                self.app.metrics.kv_stream(name, "unreadable");
                self.forget();
            }
        }
        Ok(())
    }

    /// Whether a batch tells of this worker's cache. Several ranks may share a publisher.
    fn is_own(&mut self, batch: Batch) -> Result<bool, StreamError> {
        let Some(rank) = batch.rank else {
            return Ok(true);
        };
        match self.worker.spec.rank {
            Some(own) => Ok(rank == own),
            None => match self.rank.replace(rank) {
                Some(other) if other != rank => Err(StreamError::Ranks(other, rank)),
                _ => Ok(true),
            },
        }
    }

    async fn take(&self, events: &[Event], made: Made) {
        let (knowledge, worker) = (&self.app.knowledge, self.worker.id);
        self.app.metrics.kv_events(self.worker.name(), events);
        if made == Made::Since && events.contains(&Event::Cleared) {
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

    /// The cache was emptied when this batch was made.
    fn emptied(&self, batch: Batch, made: Made) {
        if let Some(at_s) = batch.at_s.filter(|at_s| at_s.is_finite() && *at_s > 0.0) {
            let (knowledge, at_ms) = (&self.app.knowledge, (at_s * 1e3) as u64);
            match made {
                Made::Before => knowledge.emptied(self.worker.id, at_ms),
                Made::Since => knowledge.emptied_live(self.worker.id, at_ms),
            }
        }
    }

    /// The worker is a new process: its cache is empty but for what this process says.
    fn restarted(&mut self) {
        info!(
            worker = self.worker.name(),
            "its cache events begin anew: forgotten, relearning"
        );
        self.app.metrics.kv_stream(self.worker.name(), "restart");
        self.app.knowledge.forget(self.worker.id);
        self.forget();
        self.sequence.begin_at(0);
    }

    /// Events are lost for good.
    fn lost(&mut self, number: u64) {
        info!(
            worker = self.worker.name(),
            "cache events are lost for good: forgotten, relearning"
        );
        self.forget();
        self.sequence.begin_at(number);
    }

    fn forget(&self) {
        self.app.metrics.kv_stream(self.worker.name(), "forget");
        // Freed here, where no lock is held.
        drop(
            self.app
                .knowledge
                .evidence(self.worker.id, WorkerEvidence::forget),
        );
    }
}

/// The number and the payload: the last two frames.
fn parts(frames: &[Bytes]) -> Result<(u64, Bytes), StreamError> {
    let [.., number, payload] = frames else {
        return Err(StreamError::Frames(frames.len()));
    };
    let number = <[u8; 8]>::try_from(&number[..]).map_err(|_| StreamError::Frames(frames.len()))?;
    Ok((u64::from_be_bytes(number), payload.clone()))
}

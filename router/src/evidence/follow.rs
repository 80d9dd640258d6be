//! One worker's stream of events, for as long as the router runs.
//!
//! The subscription is read as it comes; nothing queues here, so a router that falls behind makes the publisher drop,
//! which shows as a gap. Gaps are asked for on a second socket. Once a second the same question is asked without a gap:
//! it finds what a silent loss at the end of a burst would hide, and a publisher that is gone or is a new process.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use policy::evidence::{Event, Sequence, Verdict, WorkerEvidence};
use tokio::time::timeout;
use tracing::{debug, info, warn};
use xxhash_rust::xxh3::xxh3_64;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqError, ZmqMessage};

use super::source::{self, Source};
use super::wire;
use crate::app::App;
use crate::fleet::Worker;

/// Between two questions whether anything was lost.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// For one message of a replay, and for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before a worker without events is asked again, and the longest wait after a stream broke.
const RETRY: Duration = Duration::from_secs(30);
/// The shortest wait after a stream broke.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// The number that ends a replay.
const END: u64 = u64::MAX;

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("the socket failed")]
    Zmq(#[from] ZmqError),
    #[error("no answer in time")]
    Timeout(#[from] tokio::time::error::Elapsed),
    #[error("a message of {0} frames without a number")]
    Frames(usize),
}

/// Follows a worker's events for as long as the task lives.
pub async fn follow(app: Arc<App>, worker: Arc<Worker>) {
    let mut wait = FIRST_RETRY;
    // Outlives a connection: the next one shows by a replay whether it is still the same process.
    let mut sequence = Sequence::new();
    loop {
        while !worker.is_ready() {
            tokio::time::sleep(FIRST_RETRY).await;
        }
        let Some(source) = source::find(&app, &worker).await else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let mut stream = Stream {
            app: &app,
            worker: &worker,
            sequence: &mut sequence,
            replay: source.replay.clone(),
            dealer: None,
        };
        let Err(error) = stream.run(&source).await;
        warn!(worker = worker.name(), endpoint = source.endpoint, %error, "its cache events are lost: back to the mirror");
        if app.knowledge.stored(worker.id).is_some() {
            wait = FIRST_RETRY;
        }
        app.knowledge.evidence_paused(worker.id);
        sequence.reconnected();
        if source.replay.is_none() {
            // Nobody can say what was missed.
            app.knowledge.evidence(worker.id, WorkerEvidence::forget);
            sequence = Sequence::new();
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
    replay: Option<String>,
    dealer: Option<DealerSocket>,
}

impl Stream<'_> {
    async fn run(&mut self, source: &Source) -> Result<std::convert::Infallible, StreamError> {
        let mut subscription = SubSocket::new();
        timeout(PATIENCE, subscription.connect(&source.endpoint)).await??;
        subscription.subscribe(&source.topic).await?;
        self.catch_up().await?;
        self.app.knowledge.evidence_live(self.worker.id);
        info!(
            worker = self.worker.name(),
            endpoint = source.endpoint,
            "following its cache events"
        );
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = subscription.recv() => self.live(message?).await?,
                _ = heartbeat.tick() => self.catch_up().await?,
            }
        }
    }

    /// A message came by subscription.
    async fn live(&mut self, message: ZmqMessage) -> Result<(), StreamError> {
        let (number, payload) = parts(message)?;
        match self.sequence.live(number) {
            Verdict::Apply => self.apply(&payload),
            Verdict::Duplicate => {}
            Verdict::Gap { from } => {
                debug!(worker = self.worker.name(), from, number, "cache events missing");
                self.app.metrics.kv_stream(self.worker.name(), "gap");
                self.catch_up().await?;
                if self.sequence.live(number) == Verdict::Apply {
                    self.apply(&payload);
                } else if self.sequence.next() <= number {
                    // Not to be had any more: from here on, and nothing from before.
                    self.lost(number);
                    self.apply(&payload);
                }
            }
            Verdict::Restarted => {
                self.restarted();
                self.catch_up().await?;
                if number == self.sequence.next() {
                    self.apply(&payload);
                }
            }
        }
        Ok(())
    }

    /// Asks for everything from the last batch applied on.
    async fn catch_up(&mut self) -> Result<(), StreamError> {
        let Some(endpoint) = self.replay.clone() else {
            return Ok(());
        };
        // Twice at the most: a second time from the beginning, when the first one shows another process.
        for _ in 0..2 {
            // A socket that failed within an answer would give the rest of it to the next question.
            let mut dealer = match self.dealer.take() {
                Some(dealer) => dealer,
                None => {
                    let mut dealer = DealerSocket::new();
                    timeout(PATIENCE, dealer.connect(&endpoint)).await??;
                    dealer
                }
            };
            let done = self.replay_from(&mut dealer).await?;
            self.dealer = Some(dealer);
            if done {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether nothing is left to be asked.
    async fn replay_from(&mut self, dealer: &mut DealerSocket) -> Result<bool, StreamError> {
        let from = self.sequence.resume_from();
        let mut question = ZmqMessage::from(Bytes::new());
        question.push_back(Bytes::copy_from_slice(&from.to_be_bytes()));
        dealer.send(question).await?;
        let (mut first, mut again) = (true, false);
        loop {
            let (number, payload) = parts(timeout(PATIENCE, dealer.recv()).await??)?;
            let found = (number != END).then_some(number);
            if std::mem::take(&mut first) {
                if from > 0 {
                    self.app.metrics.kv_stream(self.worker.name(), "replay");
                }
                if !self.sequence.continues_with(found) {
                    match found {
                        // It has sent nothing yet.
                        None => {
                            again = true;
                            self.restarted();
                        }
                        Some(number) if self.sequence.next() == 0 => self.sequence.begin_at(number),
                        _ => {
                            again = true;
                            self.lost(0);
                        }
                    }
                }
            }
            let Some(number) = found else {
                return Ok(!again);
            };
            if again {
                continue;
            }
            match self.sequence.replayed(number, xxh3_64(&payload)) {
                Verdict::Apply => self.apply(&payload),
                Verdict::Restarted if number < self.sequence.next() => {
                    again = true;
                    self.restarted();
                }
                _ => {}
            }
        }
    }

    /// Applies the next batch.
    fn apply(&mut self, payload: &[u8]) {
        let mut events = Vec::new();
        let read = wire::decode(payload, |event| events.push(event));
        self.sequence.applied(xxh3_64(payload));
        let name = self.worker.name();
        match read {
            Ok(_) => {
                self.app.metrics.kv_events(name, events.len() as u64);
                if events.contains(&Event::Cleared) {
                    self.app.knowledge.forget(self.worker.id);
                }
                self.app.knowledge.evidence(self.worker.id, |evidence| {
                    events.iter().for_each(|event| evidence.apply(event));
                });
            }
            Err(error) => {
                warn!(worker = name, %error, "a batch of cache events cannot be read: forgotten, relearning");
                self.app.metrics.kv_stream(name, "unreadable");
                self.forget();
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
        self.app
            .knowledge
            .evidence(self.worker.id, WorkerEvidence::forget);
    }
}

/// The number and the payload: the last two frames.
fn parts(message: ZmqMessage) -> Result<(u64, Bytes), StreamError> {
    let frames = message.into_vec();
    let [.., number, payload] = frames.as_slice() else {
        return Err(StreamError::Frames(frames.len()));
    };
    let number = <[u8; 8]>::try_from(&number[..]).map_err(|_| StreamError::Frames(frames.len()))?;
    Ok((u64::from_be_bytes(number), payload.clone()))
}

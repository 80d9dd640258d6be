//! Replays of lost batches. A DEALER requests the publisher's newest batches with `["", from]` and receives
//! `["", topic, number, payload]…`, the last one numbered `ffffffffffffffff`. After a missing answer no requests are
//! sent for [`PAUSE`].

use std::time::Duration;

use policy::evidence::Verdict;
use tokio::time::{Instant, timeout};
use tracing::warn;
use xxhash_rust::xxh3::xxh3_64;

use super::super::zmtp::{Connection, Role};
use super::{BatchAge, EventStream, EventStreamError, parts};

/// Time limit for one message of a replay.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after a missing answer.
const PAUSE: Duration = Duration::from_secs(30);
const END: u64 = u64::MAX;

pub(super) struct Replay {
    endpoint: Option<String>,
    dealer: Option<Connection>,
    silent_until: Option<Instant>,
}

impl Replay {
    pub(super) fn new(endpoint: Option<String>) -> Self {
        Self {
            endpoint,
            dealer: None,
            silent_until: None,
        }
    }

    /// Returns whether there is an endpoint, and no request to it is unanswered.
    pub(super) fn answers(&self) -> bool {
        self.endpoint.is_some() && self.silent_until.is_none()
    }

    /// Returns the socket for requests; `None` without an endpoint or during a pause.
    async fn dealer(&mut self, limit: usize) -> Result<Option<Connection>, EventStreamError> {
        if self.silent_until.is_some_and(|until| Instant::now() < until) {
            return Ok(None);
        }
        let Some(endpoint) = &self.endpoint else {
            return Ok(None);
        };
        if let Some(dealer) = self.dealer.take() {
            return Ok(Some(dealer));
        }
        let connecting = Connection::connect(endpoint, Role::Dealer, limit);
        Ok(Some(timeout(PATIENCE, connecting).await??))
    }
}

impl EventStream<'_> {
    /// Requests everything from the last applied batch on. Without an answer the stream continues.
    pub(super) async fn catch_up(&mut self) -> Result<(), EventStreamError> {
        match self.ask().await {
            Ok(()) => Ok(()),
            Err(error) if error.is_final() => Err(error),
            Err(error) => {
                let name = self.worker.name();
                warn!(worker = name, %error, "no replay of lost cache events; a loss drops the cache state");
                self.state.routing.metrics.kv_stream(name, "unanswered");
                self.replay.silent_until = Some(Instant::now() + PAUSE);
                if self.state.routing.knowledge.stored(self.worker.id).is_none() && self.sequence.next() > 0 {
                    // A new connection: what was missed since the last one is unknown.
                    self.lost(0);
                }
                Ok(())
            }
        }
    }

    async fn ask(&mut self) -> Result<(), EventStreamError> {
        // Twice at most: the second time from the beginning, if the first shows another process.
        for _ in 0..2 {
            // A socket that failed within an answer would deliver the rest to the next request, so it is not kept.
            let Some(mut dealer) = self.replay.dealer(self.limit).await? else {
                return Ok(());
            };
            let done = self.replay_from(&mut dealer).await?;
            self.replay.dealer = Some(dealer);
            self.replay.silent_until = None;
            if done {
                break;
            }
        }
        Ok(())
    }

    /// Requests a replay. Returns whether it is complete.
    async fn replay_from(&mut self, dealer: &mut Connection) -> Result<bool, EventStreamError> {
        let from = self.sequence.resume_from();
        // A request from the last applied batch repairs a gap. Any other reads a history of unknown age.
        let made = if from < self.sequence.next() {
            BatchAge::Since
        } else {
            BatchAge::Before
        };
        dealer.send(&[&[], &from.to_be_bytes()]).await?;
        let (mut first, mut again) = (true, false);
        loop {
            let (number, payload) = parts(&timeout(PATIENCE, dealer.recv()).await??)?;
            let found = (number != END).then_some(number);
            if std::mem::take(&mut first) && !self.sequence.continues_with(found) {
                match found {
                    // The new process has sent nothing yet.
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
            let Some(number) = found else {
                return Ok(!again);
            };
            if again {
                continue;
            }
            match self.sequence.replayed(number, xxh3_64(&payload)) {
                Verdict::Apply => {
                    self.state
                        .routing
                        .metrics
                        .kv_stream(self.worker.name(), "replayed");
                    self.apply(number, &payload, made).await?;
                }
                Verdict::Restarted if number < self.sequence.next() => {
                    again = true;
                    self.restarted();
                }
                _ => {}
            }
        }
    }
}

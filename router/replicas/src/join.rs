//! A new replica takes the prefix index from another one (docs/scaling.md, "A replica that joins").
//!
//! ```text
//! joiner ── CLUSTER.join ───────────▶ all         asks for offers
//! joiner ◀── offer ────────────────── each        its id, and its uptime if it has an index
//! joiner ── CLUSTER.join.ID ────────▶ the oldest  chunk 0, 1, …
//! joiner ◀── chunk ────────────────── it          a quarter of a megabyte of a snapshot
//! ```
//!
//! The snapshot has the format written to disk ([`state::snapshot`]). It is taken when chunk 0 is requested and kept in
//! memory until no chunk was requested for some seconds.

mod give;
mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::{Client, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info, warn};

pub(super) use self::give::give;
use self::wire::{Chunk, Offer, OfferRequest, Want};
use super::Bus;
use state::State;
use state::snapshot::{self, SnapshotError};

/// Longest time after startup that readiness waits for a snapshot.
pub const READY_WITHIN: Millis = Millis(2_000.0);
/// Time limits for the first offer, and for further ones after it.
const OFFERS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(50));
const MOST_OFFERS: usize = 64;
/// Largest number of replicas that are asked, one after the other.
const ATTEMPTS: usize = 3;
/// Time limit for a chunk. That of the first one includes taking the snapshot.
const CHUNK_LIMIT: Duration = Duration::from_millis(1_500);
/// Time limit for the whole transfer.
const LIMIT: Duration = Duration::from_secs(20);
/// Polling interval for the connection to NATS.
const LOOK: Duration = Duration::from_millis(5);
/// Largest snapshot in bytes: some four million keys.
const MOST_BYTES: usize = 64 << 20;
/// Number of bytes per chunk. NATS accepts messages up to a megabyte by default.
const CHUNK_BYTES: usize = 256 << 10;

/// The result of a join.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Joined {
    /// Name of the other replica.
    pub from: String,
    /// Number of entries of the index that were restored.
    pub entries: usize,
    /// Seconds from startup to the end of the join.
    pub after_s: f64,
}

#[derive(Debug, thiserror::Error)]
enum ReplicaJoinError {
    #[error("timed out waiting for a response")]
    Late,
    #[error("invalid answer")]
    Malformed,
    #[error("{0} bytes; at most {MOST_BYTES} are accepted")]
    Long(usize),
    #[error(transparent)]
    Nats(#[from] async_nats::RequestError),
    #[error(transparent)]
    Publish(#[from] async_nats::PublishError),
    #[error(transparent)]
    Subscribe(#[from] async_nats::SubscribeError),
    #[error("its snapshot")]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

impl Bus {
    /// Returns whether readiness still waits for the join.
    pub fn is_joining(&self, now: Millis) -> bool {
        // Once NATS is known to be unreachable, there is nothing to wait for.
        let may_be_up = self.is_up() || self.link.lock().since.is_none();
        now < READY_WITHIN && !self.has_joined.load(Ordering::Acquire) && may_be_up
    }

    pub(super) fn knows_things(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    fn subject_of_joins(&self) -> String {
        format!("{}.join", self.settings.cluster)
    }
}

pub(super) async fn join(state: Arc<State>, bus: Arc<Bus>, client: Client) {
    while !bus.is_up() {
        tokio::time::sleep(LOOK).await;
    }
    let joined = timeout(LIMIT, take(&state, &bus, &client)).await;
    match joined.unwrap_or(Err(ReplicaJoinError::Late)) {
        Ok(Some(joined)) => {
            info!(
                replica = joined.from,
                entries = joined.entries,
                "loaded the index of another replica"
            );
            *bus.joined.lock() = Some(joined);
        }
        Ok(None) => debug!("no other replica has an index yet"),
        Err(error) => warn!(%error, "this replica starts without another replica's index"),
    }
    bus.has_joined.store(true, Ordering::Release);
}

async fn take(state: &Arc<State>, bus: &Bus, client: &Client) -> Result<Option<Joined>, ReplicaJoinError> {
    let offers = offers(bus, client).await?;
    // Caches can be restored only for workers that are known.
    state.operations.discovery.settled().await;
    for offer in offers.into_iter().take(ATTEMPTS) {
        let restored = match fetch(bus, client, offer.id).await {
            Ok(bytes) => restore(Arc::clone(state), bytes).await,
            Err(error) => Err(error),
        };
        match restored {
            Ok(entries) => {
                return Ok(Some(Joined {
                    from: offer.name,
                    entries,
                    after_s: state.routing.clock.now().0 / 1e3,
                }));
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                warn!(replica = offer.name, error = %format!("{error:#}"), "its index was not loaded");
            }
        }
    }
    Ok(None)
}

async fn restore(state: Arc<State>, bytes: Bytes) -> Result<usize, ReplicaJoinError> {
    let restored = tokio::task::spawn_blocking(move || snapshot::restore(&state, &bytes)).await?;
    Ok(restored?)
}

/// Returns the offers of replicas with an index, the longest uptime first.
async fn offers(bus: &Bus, client: &Client) -> Result<Vec<Offer>, ReplicaJoinError> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await?;
    let ask = OfferRequest { id: bus.id }.bytes();
    client
        .publish_with_reply(bus.subject_of_joins(), inbox, ask)
        .await?;
    let mut offers: Vec<Offer> = Vec::new();
    let mut until = Instant::now() + OFFERS.0;
    while let Ok(Some(answer)) = timeout_at(until, answers.next()).await {
        if answer.status == Some(StatusCode::NO_RESPONDERS) || offers.len() == MOST_OFFERS {
            break;
        }
        if let Some(offer) = Offer::read(answer.payload) {
            if offers.is_empty() {
                until = Instant::now() + OFFERS.1;
            }
            offers.push(offer);
        }
    }
    offers.retain(|offer| offer.up_ms > 0);
    offers.sort_by_key(|offer| std::cmp::Reverse(offer.up_ms));
    Ok(offers)
}

async fn fetch(bus: &Bus, client: &Client, from: u64) -> Result<Bytes, ReplicaJoinError> {
    let subject = format!("{}.{from:016x}", bus.subject_of_joins());
    let mut all = BytesMut::new();
    let mut want = Want::default();
    loop {
        let request = client.request(subject.clone(), want.bytes());
        let answer = timeout(CHUNK_LIMIT, request)
            .await
            .map_err(|_| ReplicaJoinError::Late)??;
        let chunk = Chunk::read(answer.payload).ok_or(ReplicaJoinError::Malformed)?;
        if chunk.number != want.number || (want.number > 0 && chunk.snapshot != want.snapshot) {
            return Err(ReplicaJoinError::Malformed);
        }
        if all.len() + chunk.bytes.len() > MOST_BYTES {
            return Err(ReplicaJoinError::Long(all.len() + chunk.bytes.len()));
        }
        all.extend_from_slice(&chunk.bytes);
        want = Want {
            snapshot: chunk.snapshot,
            number: chunk.number + 1,
        };
        if want.number >= chunk.of {
            return Ok(all.freeze());
        }
        if chunk.bytes.is_empty() {
            return Err(ReplicaJoinError::Malformed);
        }
    }
}

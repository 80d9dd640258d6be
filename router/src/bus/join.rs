//! A replica that starts takes what another one knows of who holds what, so that it does not send the next turn of every
//! conversation anywhere.
//!
//! ```text
//! joiner ── CLUSTER.join ───────────▶ all         who am I to ask?
//! joiner ◀── offer ────────────────── each        its id, and since when it knows things, if it does
//! joiner ── CLUSTER.join.ID ────────▶ the oldest  chunk 0, 1, …
//! joiner ◀── chunk ────────────────── it          a quarter of a megabyte of a snapshot
//! ```
//!
//! A snapshot is the very one that is written to disk ([`crate::snapshot`]), taken when chunk 0 is asked for and held in memory
//! until nobody has asked for some seconds. What is heard of turns meanwhile comes first. `/readyz` says no until it is
//! there, or nobody has one, or NATS is not there, but for two seconds at the most; what comes later is taken all the same.

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
use self::wire::{Ask, Chunk, Offer, Want};
use super::Bus;
use crate::app::App;
use crate::snapshot::{self, SnapshotError};

/// Since its start, a replica waits no longer for what others know.
pub const READY_WITHIN: Millis = Millis(2_000.0);
/// For the first to offer, and for the others then.
const OFFERS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(50));
/// Offers that are read.
const MOST_OFFERS: usize = 64;
/// Replicas that are asked, one after the other.
const ATTEMPTS: usize = 3;
/// For a chunk to come. The first one waits until the snapshot is taken.
const CHUNK_LIMIT: Duration = Duration::from_millis(1_500);
/// For all of it.
const LIMIT: Duration = Duration::from_secs(20);
/// Between two looks whether NATS is there.
const LOOK: Duration = Duration::from_millis(5);
/// Largest snapshot that goes over the bus: some four million keys.
const MOST_BYTES: usize = 64 << 20;
/// Of one message, which NATS takes up to a megabyte as it comes.
const CHUNK_BYTES: usize = 256 << 10;

/// What was taken from another replica at the start.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Joined {
    /// From whom.
    pub from: String,
    /// Entries of the index.
    pub entries: usize,
    /// How many seconds after its start this replica had them.
    pub after_s: f64,
}

/// Why another's snapshot was not taken.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error("no answer in time")]
    Late,
    #[error("an answer that is none")]
    Malformed,
    #[error("{0} bytes; at most {MOST_BYTES} are taken")]
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
    /// Whether this replica has just started, and waits for what others know.
    #[must_use]
    pub fn is_joining(&self, now: Millis) -> bool {
        // Once it is known that NATS is not there, nobody can be asked.
        let may_be_up = self.is_up() || self.link.lock().since.is_none();
        now < READY_WITHIN && !self.has_joined.load(Ordering::Acquire) && may_be_up
    }

    /// Whether there is something to give to others.
    fn knows_things(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    fn subject_of_joins(&self) -> String {
        format!("{}.join", self.settings.cluster)
    }
}

/// Takes what the others know, once NATS is there.
pub(super) async fn join(app: Arc<App>, bus: Arc<Bus>, client: Client) {
    while !bus.is_up() {
        tokio::time::sleep(LOOK).await;
    }
    let joined = timeout(LIMIT, take(&app, &bus, &client)).await;
    match joined.unwrap_or(Err(JoinError::Late)) {
        Ok(Some(joined)) => {
            info!(
                replica = joined.from,
                entries = joined.entries,
                "what another replica knows was taken"
            );
            *bus.joined.lock() = Some(joined);
        }
        Ok(None) => debug!("no other replica knows anything yet"),
        Err(error) => warn!(%error, "this replica begins with what it knows itself"),
    }
    bus.has_joined.store(true, Ordering::Release);
}

async fn take(app: &Arc<App>, bus: &Bus, client: &Client) -> Result<Option<Joined>, JoinError> {
    let offers = offers(bus, client).await?;
    // Caches are restored to workers that are there.
    app.discovery.settled().await;
    for offer in offers.into_iter().take(ATTEMPTS) {
        let restored = match fetch(bus, client, offer.id).await {
            Ok(bytes) => restore(Arc::clone(app), bytes).await,
            Err(error) => Err(error),
        };
        match restored {
            Ok(entries) => {
                return Ok(Some(Joined {
                    from: offer.name,
                    entries,
                    after_s: app.clock.now().0 / 1e3,
                }));
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                warn!(replica = offer.name, error = %format!("{error:#}"), "what it knows was not taken");
            }
        }
    }
    Ok(None)
}

async fn restore(app: Arc<App>, bytes: Bytes) -> Result<usize, JoinError> {
    let restored = tokio::task::spawn_blocking(move || snapshot::restore(&app, &bytes)).await?;
    Ok(restored?)
}

/// Who has something to give, the longest-lived first.
async fn offers(bus: &Bus, client: &Client) -> Result<Vec<Offer>, JoinError> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await?;
    let ask = Ask { id: bus.id }.bytes();
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

/// All of one replica's snapshot.
async fn fetch(bus: &Bus, client: &Client, from: u64) -> Result<Bytes, JoinError> {
    let subject = format!("{}.{from:016x}", bus.subject_of_joins());
    let mut all = BytesMut::new();
    let mut want = Want::default();
    loop {
        let request = client.request(subject.clone(), want.bytes());
        let answer = timeout(CHUNK_LIMIT, request)
            .await
            .map_err(|_| JoinError::Late)??;
        let chunk = Chunk::read(answer.payload).ok_or(JoinError::Malformed)?;
        if chunk.number != want.number || (want.number > 0 && chunk.snapshot != want.snapshot) {
            return Err(JoinError::Malformed);
        }
        if all.len() + chunk.bytes.len() > MOST_BYTES {
            return Err(JoinError::Long(all.len() + chunk.bytes.len()));
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
            return Err(JoinError::Malformed);
        }
    }
}

//! Answers joining replicas with offers and snapshots.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::wire::{Chunk, Offer, OfferRequest, Want};
use super::{CHUNK_BYTES, MOST_BYTES};
use crate::{Bus, random_id};
use state::State;
use state::snapshot;

/// Age up to which a snapshot is reused for another joiner.
const FRESH: Duration = Duration::from_secs(1);
/// Time without requests after which a snapshot is dropped.
const IDLE: Duration = Duration::from_secs(5);
/// Pause between two attempts to subscribe.
const AGAIN: Duration = Duration::from_secs(1);

struct PreparedSnapshot {
    number: u64,
    taken: Instant,
    used: Instant,
    bytes: Bytes,
}

pub(crate) async fn give(state: Arc<State>, bus: Arc<Bus>, client: Client) {
    let joins = bus.subject_of_joins();
    let own = format!("{joins}.{:016x}", bus.id);
    loop {
        match (
            client.subscribe(joins.clone()).await,
            client.subscribe(own.clone()).await,
        ) {
            (Ok(asked), Ok(wanted)) => listen(&state, &bus, &client, asked, wanted).await,
            (Err(error), _) | (_, Err(error)) => {
                warn!(%error, "cannot subscribe to join requests");
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn listen(
    state: &Arc<State>,
    bus: &Bus,
    client: &Client,
    mut asked: Subscriber,
    mut wanted: Subscriber,
) {
    let mut held: Option<PreparedSnapshot> = None;
    loop {
        tokio::select! {
            message = asked.next() => {
                let Some(message) = message else { return };
                offer(state, bus, client, message).await;
            }
            message = wanted.next() => {
                let Some(message) = message else { return };
                held = hand_out(state, client, held, message).await;
            }
            () = tokio::time::sleep(IDLE), if held.is_some() => {}
        }
        held = held.filter(|held| held.used.elapsed() < IDLE);
    }
}

async fn offer(state: &State, bus: &Bus, client: &Client, message: Message) {
    let (Some(ask), Some(reply)) = (OfferRequest::read(message.payload), message.reply) else {
        return;
    };
    if ask.id == bus.id {
        return;
    }
    // A draining or just started replica offers nothing, but answers so that the joiner need not wait.
    let gives = bus.knows_things() && !state.operations.is_draining();
    let offer = Offer {
        id: bus.id,
        up_ms: if gives {
            state.routing.clock.now().0 as u64
        } else {
            0
        },
        name: bus.name.clone(),
    };
    // Without an answer the joiner times out and starts without a snapshot.
    let _ = client.publish(reply, offer.bytes()).await;
}

async fn hand_out(
    state: &Arc<State>,
    client: &Client,
    held: Option<PreparedSnapshot>,
    message: Message,
) -> Option<PreparedSnapshot> {
    let (Some(want), Some(reply)) = (Want::read(message.payload), message.reply) else {
        return held;
    };
    let is_enough = |held: &PreparedSnapshot| match want.number {
        0 => held.taken.elapsed() < FRESH,
        _ => held.number == want.snapshot,
    };
    let held = match held {
        Some(held) if is_enough(&held) => held,
        _ if want.number == 0 => take(state).await?,
        // The snapshot was dropped: the joiner starts over or does without.
        other => return other,
    };
    let of = held.bytes.len().div_ceil(CHUNK_BYTES).max(1);
    let from = (want.number as usize).saturating_mul(CHUNK_BYTES);
    if from < held.bytes.len() {
        let to = (from + CHUNK_BYTES).min(held.bytes.len());
        let chunk = Chunk {
            snapshot: held.number,
            number: want.number,
            of: of as u32,
            bytes: held.bytes.slice(from..to),
        };
        let _ = client.publish(reply, chunk.bytes()).await;
    }
    Some(PreparedSnapshot {
        used: Instant::now(),
        ..held
    })
}

async fn take(state: &Arc<State>) -> Option<PreparedSnapshot> {
    let of = Arc::clone(state);
    let taken = tokio::task::spawn_blocking(move || snapshot::take(&of, MOST_BYTES)).await;
    let bytes = taken.ok()?;
    debug!(bytes = bytes.len(), "sending the index to a joining replica");
    Some(PreparedSnapshot {
        number: random_id(),
        taken: Instant::now(),
        used: Instant::now(),
        bytes: bytes.into(),
    })
}

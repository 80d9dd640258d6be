//! The two ZMQ sockets: PUB for events, ROUTER for replays. A message is topic | 8-byte big-endian number | payload. A
//! DEALER requests a replay with `["", from]` and receives `["", topic, number, payload]…`, the last one numbered
//! `ffffffffffffffff`.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::log::{Cursor, EventLog};
use crate::config::KvEventsConfig;

/// Attempts to find consecutive free ports for all ranks.
const ATTEMPTS: u32 = 20;
/// Range of these ports. It lies below the ephemeral ports, many of which belong to clients on a busy machine.
const CONSECUTIVE: Range<u64> = 10_240..32_000;
/// The number that ends a replay.
const END: u64 = u64::MAX;

/// The bound endpoints of one rank's cache events.
#[derive(Clone, Debug, serde::Serialize)]
pub struct KvEventSource {
    /// Endpoint of the PUB socket.
    pub endpoint: String,
    /// Endpoint of the replay ROUTER socket.
    pub replay_endpoint: String,
    /// The first frame of every message.
    pub topic: String,
    /// The data-parallel rank.
    pub rank: u32,
}

pub(crate) struct Publisher {
    pub(crate) source: KvEventSource,
    pub(crate) tasks: Vec<JoinHandle<()>>,
}

/// Starts a publisher per log, on consecutive ports.
pub(crate) async fn start(
    config: &KvEventsConfig,
    logs: &[Arc<EventLog>],
) -> Result<Vec<Publisher>, zeromq::ZmqError> {
    let mut attempts = 0;
    loop {
        match start_all(config, logs).await {
            // With port 0, one of the chosen ports may be taken.
            Err(_) if attempts < ATTEMPTS && config.endpoint.ends_with(":0") => attempts += 1,
            done => return done,
        }
    }
}

async fn start_all(
    config: &KvEventsConfig,
    logs: &[Arc<EventLog>],
) -> Result<Vec<Publisher>, zeromq::ZmqError> {
    let mut publishers: Vec<Publisher> = Vec::new();
    for (rank, log) in (0..).zip(logs) {
        let endpoint = match publishers.first() {
            None if logs.len() > 1 => first_of_several(&config.endpoint),
            None => config.endpoint.clone(),
            Some(first) => later_port(&first.source.endpoint, rank),
        };
        let replay = match config.replay_endpoint.ends_with(":0") {
            true => config.replay_endpoint.clone(),
            false => later_port(&config.replay_endpoint, rank),
        };
        match start_one(config, &endpoint, &replay, rank, Arc::clone(log)).await {
            Ok(publisher) => publishers.push(publisher),
            Err(error) => {
                for task in publishers.iter().flat_map(|publisher| &publisher.tasks) {
                    task.abort();
                }
                return Err(error);
            }
        }
    }
    Ok(publishers)
}

/// Chooses a port if the endpoint leaves it open.
fn first_of_several(endpoint: &str) -> String {
    let Some(host) = endpoint.strip_suffix(":0") else {
        return endpoint.to_owned();
    };
    let chosen = RandomState::new().build_hasher().finish();
    let ports = CONSECUTIVE.end - CONSECUTIVE.start;
    format!("{host}:{}", CONSECUTIVE.start + chosen % ports)
}

fn later_port(endpoint: &str, rank: u32) -> String {
    let (host, port) = endpoint.rsplit_once(':').unwrap_or((endpoint, "0"));
    format!("{host}:{}", port.parse::<u32>().unwrap_or(0) + rank)
}

async fn start_one(
    config: &KvEventsConfig,
    endpoint: &str,
    replay_endpoint: &str,
    rank: u32,
    log: Arc<EventLog>,
) -> Result<Publisher, zeromq::ZmqError> {
    let mut events = PubSocket::new();
    let endpoint = events.bind(endpoint).await?.to_string();
    let mut replay = RouterSocket::new();
    let replay_endpoint = replay.bind(replay_endpoint).await?.to_string();
    let topic = Bytes::from(config.topic.clone());
    let tasks = vec![
        tokio::spawn(publish(events, topic.clone(), Arc::clone(&log))),
        tokio::spawn(answer_replays(replay, topic, log)),
    ];
    let source = KvEventSource {
        endpoint,
        replay_endpoint,
        topic: config.topic.clone(),
        rank,
    };
    Ok(Publisher { source, tasks })
}

async fn publish(mut socket: PubSocket, topic: Bytes, log: Arc<EventLog>) {
    let mut cursor = Cursor::default();
    loop {
        while let Some((sequence, payload, next)) = log.next(cursor) {
            cursor = next;
            if log.mute.load(Ordering::Relaxed) {
                continue;
            }
            let frames = message(topic.clone(), [number(sequence), payload]);
            if let Err(error) = socket.send(frames).await {
                tracing::warn!(%error, sequence, "a batch of cache events was not sent");
            }
        }
        log.grown.notified().await;
    }
}

async fn answer_replays(mut socket: RouterSocket, topic: Bytes, log: Arc<EventLog>) {
    loop {
        let request = match socket.recv().await {
            Ok(request) => request.into_vec(),
            Err(error) => {
                tracing::warn!(%error, "the replay socket closed");
                return;
            }
        };
        let [peer, .., from] = request.as_slice() else {
            continue;
        };
        if log.deaf.load(Ordering::Relaxed) {
            continue;
        }
        let Ok(from) = <[u8; 8]>::try_from(from.as_ref()) else {
            continue;
        };
        let mut cursor = log.from(u64::from_be_bytes(from));
        let mut batches = Vec::new();
        // The batches are collected before sending, so that a busy engine cannot prolong a replay forever.
        while let Some((sequence, payload, next)) = log.next(cursor) {
            cursor = next;
            batches.push((sequence, payload));
        }
        batches.push((END, Bytes::new()));
        for (sequence, payload) in batches {
            let frames = message(
                peer.clone(),
                [Bytes::new(), topic.clone(), number(sequence), payload],
            );
            if socket.send(frames).await.is_err() {
                break;
            }
        }
    }
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

fn message<const N: usize>(first: Bytes, rest: [Bytes; N]) -> ZmqMessage {
    let mut message = ZmqMessage::from(first);
    rest.into_iter().for_each(|frame| message.push_back(frame));
    message
}

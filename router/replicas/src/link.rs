//! The connection to NATS, shared by all tasks, with automatic reconnection.
//!
//! The client reconnects by itself as long as its own task runs. A server can end that task: the client panics on some
//! invalid messages. The tasks here then end with it, and a new client begins after a pause.
//!
//! Messages are not kept while the server is unreachable, because they would be outdated on reconnection. The roll
//! call that follows at once has the current state.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::Bus;
use super::bucket::Bucket;
use super::speak::{BusPublisher, speak};
use super::{calibrations, join, leader, live_policy, wire};
use operator::events::EventKind;
use serde_json::json;
use state::State;
use state::supervise::{Task, forever, until_done};
use tailroute_http::tls;

/// Pauses between connection attempts: the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Interval of pings. A server that is silent for two intervals counts as lost.
const PING: Duration = Duration::from_secs(1);
/// Largest number of a subscription's messages waiting in the client. Further ones are lost, and noticed by their
/// numbers.
const INBOX: usize = 1_024;
/// Largest number of bytes of received messages that wait to be processed.
const INBOX_BYTES: usize = 16 << 20;
const LONGEST_CREDENTIALS: u64 = 1 << 20;
/// Pauses before a new client: the first and the longest. The first follows again after a client that lasted a minute.
const NEW_CLIENT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));
const STEADY: Duration = Duration::from_secs(60);
/// Interval of the search for silent replicas.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("the files of [fleet]")]
    Files(#[from] io::Error),
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    #[error(transparent)]
    Connect(#[from] async_nats::ConnectError),
    #[error(transparent)]
    Subscribe(#[from] async_nats::SubscribeError),
}

struct ToNats {
    client: Client,
    bus: Arc<Bus>,
    subject: String,
}

impl BusPublisher for ToNats {
    async fn publish(&mut self, message: Vec<u8>) {
        let bytes = message.len();
        if self.bus.is_up()
            && self
                .client
                .publish(self.subject.clone(), message.into())
                .await
                .is_ok()
        {
            self.bus.counters.message("sent", bytes);
        } else {
            self.bus.counters.lost_messages("disconnected", 1);
        }
    }
}

#[derive(Clone)]
struct Connected {
    state: Arc<State>,
    bus: Arc<Bus>,
    client: Client,
}

impl Connected {
    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    fn bus(&self) -> Arc<Bus> {
        Arc::clone(&self.bus)
    }
}

type BusTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Connects and runs all tasks of the bus forever, with a new client whenever the last one has ended.
pub async fn run(state: Arc<State>, bus: Arc<Bus>) {
    let mut pause = NEW_CLIENT.0;
    loop {
        let begun = Instant::now();
        match connect(&bus).await {
            Ok((client, events)) => {
                serve(&state, &bus, client, events).await;
                trouble(
                    &state,
                    &bus,
                    "the NATS client ended: the server sent it an invalid message",
                );
            }
            Err(error) => trouble(&state, &bus, &format!("{:#}", anyhow::Error::new(error))),
        }
        disconnected(&state, &bus);
        if begun.elapsed() >= STEADY {
            pause = NEW_CLIENT.0;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(NEW_CLIENT.1);
    }
}

/// Runs all tasks with a client until the client's own task has ended.
async fn serve(state: &Arc<State>, bus: &Arc<Bus>, client: Client, mut events: mpsc::Receiver<Event>) {
    bus.use_bucket(Some(Bucket::new(client.clone(), &bus.settings.cluster)));
    let connected = Connected {
        state: Arc::clone(state),
        bus: Arc::clone(bus),
        client,
    };
    let mut tasks = JoinSet::new();
    spawn_all(&mut tasks, &connected);
    drop(connected);
    watch(state, bus, &mut events).await;
    bus.use_bucket(None);
    tasks.shutdown().await;
}

fn spawn_all(tasks: &mut JoinSet<()>, connected: &Connected) {
    let mut spawn = |kind, start: fn(&Connected) -> BusTask| {
        let connected = connected.clone();
        tasks.spawn(forever(connected.state(), Task::only(kind), move || {
            start(&connected)
        }));
    };
    spawn("bus_policy", |to| {
        Box::pin(live_policy::follow(to.state(), to.bus()))
    });
    spawn("bus_leader", |to| Box::pin(leader::lead(to.state(), to.bus())));
    spawn("bus_calibrations", |to| {
        Box::pin(calibrations::follow(to.state(), to.bus()))
    });
    spawn("bus_give", |to| {
        Box::pin(join::give(to.state(), to.bus(), to.client.clone()))
    });
    spawn("bus_hear", |to| {
        Box::pin(hear(to.state(), to.bus(), to.client.clone()))
    });
    spawn("bus_tidy", |to| Box::pin(tidy(to.state(), to.bus())));
    spawn("bus_speak", |to| {
        let (state, bus) = (to.state(), to.bus());
        let mut out = ToNats {
            client: to.client.clone(),
            subject: subject(&bus),
            bus: Arc::clone(&bus),
        };
        Box::pin(async move { speak(&state, &bus, &mut out).await })
    });
    if !connected.bus.knows_things() {
        let joins = connected.clone();
        let join = move || join::join(joins.state(), joins.bus(), joins.client.clone());
        tasks.spawn(until_done(connected.state(), Task::only("bus_join"), join));
    }
}

fn subject(bus: &Bus) -> String {
    format!("{}.turns", bus.settings.cluster)
}

/// Returns a client that reconnects automatically, and its events.
async fn connect(bus: &Bus) -> Result<(Client, mpsc::Receiver<Event>), LinkError> {
    let settings = &bus.settings;
    let (tell, events) = mpsc::channel(64);
    let mut options = ConnectOptions::new()
        .name(format!("tailroute {}", bus.name))
        .no_echo()
        // A server's list of its cluster must not lead this router to hosts that are not configured.
        .ignore_discovered_servers()
        .retry_on_initial_connect()
        .connection_timeout(CONNECT_LIMIT)
        .ping_interval(PING)
        .subscription_capacity(INBOX)
        .reconnect_delay_callback(|attempts| {
            let doubled = 2u32.saturating_pow(u32::try_from(attempts).unwrap_or(u32::MAX).min(8));
            (RETRY.0 * doubled).min(RETRY.1)
        })
        .event_callback(move |event| {
            let tell = tell.clone();
            async move {
                // A full queue already holds enough events to see the current state.
                let _ = tell.try_send(event);
            }
        });
    if let Some(path) = settings.credentials.clone() {
        let read = move || config::file::read_text(&path, LONGEST_CREDENTIALS);
        let text = tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)??;
        options = options.credentials(&text)?;
    }
    if let Some(token) = &settings.token {
        options = options.token(token.expose().to_owned());
    }
    if settings.is_encrypted() {
        options = options
            .require_tls(true)
            .tls_client_config(tls_client(settings.clone()).await?);
    }
    Ok((options.connect(settings.servers.as_slice()).await?, events))
}

async fn tls_client(settings: config::Fleet) -> Result<rustls::ClientConfig, LinkError> {
    let read = tokio::task::spawn_blocking(move || tls::towards_nats(&settings)).await;
    Ok(read.map_err(io::Error::other)??)
}

fn announce(state: &State, bus: &Bus) {
    let now = json!({ "connected": bus.is_up() });
    state
        .operations
        .operator
        .events
        .tell(EventKind::Replicas, &bus.name, now);
}

/// Records the events of the connection, until the client's own task has ended.
async fn watch(state: &State, bus: &Bus, events: &mut mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        match event {
            Event::Connected => {
                if bus.set_up(state.routing.clock.now(), true) {
                    info!(cluster = bus.settings.cluster, "connected to NATS");
                    announce(state, bus);
                }
                bus.roll_wanted.notify_one();
                bus.live_policy.wanted.notify_one();
            }
            Event::Disconnected | Event::Closed => disconnected(state, bus),
            Event::SlowConsumer(_) => bus.counters.lost_messages("inbox", 1),
            Event::ClientError(error) => trouble(state, bus, &error.to_string()),
            Event::ServerError(error) => trouble(state, bus, &error.to_string()),
            other => debug!(event = %other, "NATS"),
        }
    }
}

fn disconnected(state: &State, bus: &Bus) {
    if bus.set_up(state.routing.clock.now(), false) {
        warn!("NATS connection lost: this replica works alone until it is restored");
        announce(state, bus);
    }
}

fn trouble(state: &State, bus: &Bus, error: &str) {
    if bus.set_error(error.to_owned()) {
        if bus.is_up() {
            warn!(error, "NATS error");
        } else {
            warn!(error, "cannot connect to NATS: this replica works alone");
            bus.set_up(state.routing.clock.now(), false);
        }
    }
}

/// Received messages waiting to be processed, bounded in bytes.
#[derive(Debug, Default)]
struct BusInbox {
    waiting: VecDeque<Bytes>,
    bytes: usize,
}

impl BusInbox {
    /// Adds a message, unless the message is too long or the inbox is full.
    fn put(&mut self, bus: &Bus, payload: Bytes) {
        if payload.len() > wire::LONGEST_BYTES {
            bus.counters.message("received", payload.len());
            bus.counters.lost_messages("malformed", 1);
        } else if self.bytes + payload.len() > INBOX_BYTES {
            bus.counters.lost_messages("inbox", 1);
        } else {
            self.bytes += payload.len();
            // A slice would keep the whole read buffer alive.
            self.waiting.push_back(Bytes::copy_from_slice(&payload));
        }
    }

    fn take(&mut self) -> Option<Bytes> {
        let payload = self.waiting.pop_front()?;
        self.bytes -= payload.len();
        Some(payload)
    }
}

async fn hear(state: Arc<State>, bus: Arc<Bus>, client: Client) {
    loop {
        match client.subscribe(subject(&bus)).await.map_err(LinkError::from) {
            Ok(mut messages) => {
                let mut inbox = BusInbox::default();
                while let Some(message) = messages.next().await {
                    inbox.put(&bus, message.payload);
                    while let Some(payload) = inbox.take() {
                        bus.peers.hear(&state, &bus, &payload);
                        // The client bounds messages by number, not by bytes, so they are moved out at once.
                        while let Some(Some(message)) = messages.next().now_or_never() {
                            inbox.put(&bus, message.payload);
                        }
                        tokio::task::yield_now().await;
                    }
                }
            }
            Err(error) => warn!(%error, "cannot subscribe to other replicas"),
        }
        tokio::time::sleep(RETRY.1).await;
    }
}

async fn tidy(state: Arc<State>, bus: Arc<Bus>) {
    loop {
        tokio::time::sleep(LOOK).await;
        bus.peers.tidy(&state, &bus);
    }
}

#[cfg(test)]
mod tests;

//! Hostile clients: each kind has some connections, opened one after another for the duration of the scenario.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::report::Report;
use crate::stage::CLOSED_WITHIN;

/// Interval between first connections, so that the listen backlog does not overflow and delay one of them.
const APART: Duration = Duration::from_millis(1);
/// Pause between two connections of a slot.
const PAUSE: Duration = Duration::from_millis(50);

/// The target of hostile clients, and the violations that they observed.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) data: SocketAddr,
    wrong: Arc<Mutex<Vec<String>>>,
    number: Arc<AtomicUsize>,
}

impl Target {
    pub(crate) fn new(data: SocketAddr) -> Self {
        Self {
            data,
            wrong: Arc::default(),
            number: Arc::default(),
        }
    }

    /// Opens a new connection.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.data).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Returns the next of these, in turn.
    pub(crate) fn next<T: Copy>(&self, of: &[T]) -> T {
        of[self.number() % of.len()]
    }

    /// Returns a unique number.
    pub(crate) fn number(&self) -> usize {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Records a violation by the router.
    pub(crate) fn wrong(&self, what: impl Into<String>) {
        self.wrong.lock().push(what.into());
    }
}

/// The course of one connection.
pub(crate) type Life = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// The side that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The router closes the connection within [`CLOSED_WITHIN`].
    Router,
    /// The client disconnects.
    Stranger,
}

/// A kind of hostile client.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    pub(crate) ends: Ends,
    pub(crate) life: fn(Target) -> Life,
}

/// Running hostile clients.
pub(crate) struct Strangers {
    target: Target,
    stop: watch::Sender<bool>,
    slots: JoinSet<(&'static str, Duration)>,
}

/// Opens connections one after another. Returns the longest duration of those that the router has to end.
async fn slot(kind: Kind, target: Target, mut stop: watch::Receiver<bool>) -> (&'static str, Duration) {
    let mut longest = Duration::ZERO;
    while !*stop.borrow() {
        let began = Instant::now();
        let life = (kind.life)(target.clone());
        match kind.ends {
            Ends::Router => {
                // Refused and reset connections count as closed.
                let _ = tokio::time::timeout(2 * CLOSED_WITHIN, life).await;
                longest = longest.max(began.elapsed());
            }
            Ends::Stranger => {
                tokio::select! {
                    _ = life => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    (kind.name, longest)
}

impl Strangers {
    /// Starts each kind's number of connections, divided by `divided_by`.
    pub(crate) fn start(kinds: &[Kind], target: &Target, divided_by: usize) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut slots = JoinSet::new();
        let mut wait = Duration::ZERO;
        for kind in kinds {
            for _ in 0..kind.connections.div_ceil(divided_by) {
                let slot = slot(*kind, target.clone(), stopped.clone());
                slots.spawn(async move {
                    tokio::time::sleep(wait).await;
                    slot.await
                });
                wait += APART;
            }
        }
        Self {
            target: target.clone(),
            stop,
            slots,
        }
    }

    /// Stops opening connections, and waits for those that the router has to end.
    pub(crate) async fn end(mut self, report: &mut Report) {
        self.stop.send_replace(true);
        let mut longest: BTreeMap<&'static str, Duration> = BTreeMap::new();
        while let Some(ended) = self.slots.join_next().await {
            let (name, life) = ended.unwrap();
            let longest = longest.entry(name).or_default();
            *longest = life.max(*longest);
        }
        let late: Vec<&str> = longest
            .iter()
            .filter(|(_, life)| **life > CLOSED_WITHIN)
            .map(|(name, _)| *name)
            .collect();
        let worst = longest.iter().max_by_key(|(_, life)| **life);
        let measured = match worst {
            _ if !late.is_empty() => format!("later: {}", late.join(", ")),
            Some((name, life)) => format!("{:.1} s ({name})", life.as_secs_f64()),
            None => "-".to_owned(),
        };
        report.add(
            "strangers' connections are closed",
            format!("<= {} s", CLOSED_WITHIN.as_secs()),
            measured,
            late.is_empty(),
        );
        report.none("answers that nobody should get", &self.target.wrong.lock());
    }
}

/// Writes a piece repeatedly, if not empty, and reads until the peer has closed.
pub(crate) async fn until_closed(stream: TcpStream, piece: &[u8], every: Duration) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let reading = tokio::spawn(async move { read_to_end(&mut reader).await });
    tokio::pin!(reading);
    loop {
        tokio::select! {
            _ = &mut reading => return Ok(()),
            () = tokio::time::sleep(every) => if !piece.is_empty() && writer.write_all(piece).await.is_err() {
                // The peer may have closed only its read side, so its last bytes are still read.
                let _ = reading.await;
                return Ok(());
            },
        }
    }
}

/// Reads everything, and keeps the first bytes.
pub(crate) async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    const KEPT: usize = 64 * 1024;
    let (mut kept, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return kept,
            Ok(count) => kept.extend_from_slice(&buffer[..count.min(KEPT - kept.len().min(KEPT))]),
        }
    }
}

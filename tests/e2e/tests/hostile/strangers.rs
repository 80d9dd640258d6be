//! Strangers: each kind has some connections, which live one after the other for as long as the scenario lasts.

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

/// Between the first connections of two strangers, so that no queue of the kernel overflows and delays one of them.
const APART: Duration = Duration::from_millis(1);
/// Between two lives of a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Whom strangers speak to, and what they see that they should not see.
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

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.data).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The next of these, in turn.
    pub(crate) fn next<T: Copy>(&self, of: &[T]) -> T {
        of[self.number() % of.len()]
    }

    /// A number that no other life has.
    pub(crate) fn number(&self) -> usize {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Something that the router should not have done.
    pub(crate) fn wrong(&self, what: impl Into<String>) {
        self.wrong.lock().push(what.into());
    }
}

/// The life of one connection.
pub(crate) type Life = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Who ends a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The router closes the connection by itself, within [`CLOSED_WITHIN`].
    Router,
    /// The stranger leaves.
    Stranger,
}

/// One kind of stranger.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    pub(crate) ends: Ends,
    pub(crate) life: fn(Target) -> Life,
}

/// Strangers at work.
pub(crate) struct Strangers {
    target: Target,
    stop: watch::Sender<bool>,
    slots: JoinSet<(&'static str, Duration)>,
}

/// One connection after the other. The longest life is returned, of those that the router has to end.
async fn slot(kind: Kind, target: Target, mut stop: watch::Receiver<bool>) -> (&'static str, Duration) {
    let mut longest = Duration::ZERO;
    while !*stop.borrow() {
        let began = Instant::now();
        let life = (kind.life)(target.clone());
        match kind.ends {
            Ends::Router => {
                // Refused and reset connections are closed ones.
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
    /// Begins: of each kind so many connections, divided by this.
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

    /// No connection follows. Those that the router has to end are waited for.
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

/// Writes a piece again and again, if there is one, and reads until the other side has closed.
pub(crate) async fn until_closed(stream: TcpStream, piece: &[u8], every: Duration) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let reading = tokio::spawn(async move { read_to_end(&mut reader).await });
    tokio::pin!(reading);
    loop {
        tokio::select! {
            _ = &mut reading => return Ok(()),
            () = tokio::time::sleep(every) => if !piece.is_empty() && writer.write_all(piece).await.is_err() {
                // It may be closed for writing alone: what it said last is still read.
                let _ = reading.await;
                return Ok(());
            },
        }
    }
}

/// Reads all there is, and keeps the first bytes of it.
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

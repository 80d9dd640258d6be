//! Captures traffic as a trace for `tailroute replay`, to tune weights on real traffic.
//!
//! Each completed turn becomes a line of a turn trace of `simulator::trace`, with additional fields for predictions and
//! measurements. Separate lines ([`mod@fleet`]) have the workers' costs and the policy in force; one is written
//! whenever they change. A capture has no text and no hash of text: blocks and conversations are numbered by first
//! appearance ([`numbers`]), so lines show shared prefixes but not their content.
//!
//! A trace is sorted by arrival, but a turn is recorded when it ends. The writer holds a line back while an earlier
//! turn is in flight, up to a limit; a turn that ends too late is counted and left out ([`writer`]). A request never
//! waits: its record goes into a bounded queue, or is dropped and counted. A thread polls the queue about fifty times
//! per second and writes the records, within the disk usage of the settings ([`mod@file`]). A capture in [`memory`] has
//! no thread: turns are appended as they end, and sorted and numbered when read.

pub mod file;
mod fleet;
pub mod memory;
pub mod numbers;
mod record;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use policy::fleet_record::FleetRecord;
use policy::units::Millis;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use self::file::Ring;
use self::fleet::FleetLines;
use self::numbers::Numbers;
pub use self::record::Record;
use self::record::{ArrivalOrder, micros};

/// Target of this module's log lines, so that filters such as `tailroute=debug` apply.
const TARGET: &str = "tailroute::capture";

const QUEUE: usize = 4096;

const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for writing the queue at shutdown.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// Error that a capture to a file cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot write a capture to {} (capture.path)", path.display())]
pub struct CaptureError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// Counts captured turns by outcome.
pub trait CaptureObserver: std::fmt::Debug + Send + Sync {
    /// Counts `turns` that were `written`, `dropped` (queue full), `late` (out of order) or `failed` (disk error).
    fn count(&self, outcome: &str, turns: u64);

    /// Counts a restart of the writer's thread.
    fn restarted(&self);
}

#[derive(Debug)]
enum CaptureMessage {
    Turn(ArrivalOrder, Box<Record<'static>>),
    Fleet(Vec<u8>),
    End(oneshot::Sender<()>),
}

type OpenTurns = Mutex<BTreeSet<ArrivalOrder>>;

/// Capture of turns in a file.
#[derive(Clone, Debug)]
pub struct Capture(Arc<CaptureState>);

#[derive(Debug)]
struct CaptureState {
    queue: mpsc::Sender<CaptureMessage>,
    open: Arc<OpenTurns>,
    sequence: AtomicU64,
    counters: Arc<dyn CaptureObserver>,
    fleet: Mutex<FleetLines>,
}

impl Capture {
    /// Opens the file and starts the writer thread. Fails if either is impossible.
    pub fn start(
        settings: &config::Capture,
        counters: Arc<dyn CaptureObserver>,
    ) -> Result<Self, CaptureError> {
        let failed = |source| CaptureError {
            path: settings.path.clone(),
            source,
        };
        let (path, max_bytes) = (settings.path.clone(), settings.max_bytes.get() as u64);
        let open = move || Ring::open(&path, max_bytes);
        let ring = config::file::within(&settings.path, OPEN_LIMIT, open).map_err(failed)?;
        let numbers = Numbers::default();
        let (queue, messages) = mpsc::channel(QUEUE);
        let open = Arc::new(OpenTurns::default());
        let writer = writer::Writer::new(ring, numbers, Arc::clone(&open), Arc::clone(&counters));
        std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || writer.run_supervised(messages))
            .map_err(failed)?;
        let sequence = AtomicU64::new(0);
        Ok(Self(Arc::new(CaptureState {
            queue,
            open,
            sequence,
            counters,
            fleet: Mutex::default(),
        })))
    }

    /// Registers a turn in flight.
    #[must_use]
    pub fn begin(&self, arrived: Millis) -> Slip {
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        let arrival = ArrivalOrder {
            at_us: micros(arrived),
            sequence,
        };
        self.0.open.lock().insert(arrival);
        Slip {
            shared: Arc::clone(&self.0),
            arrival,
        }
    }

    /// Writes a line with the fleet if it has changed. Looks at most every ten seconds, unless this is the `last` time.
    pub fn look(&self, now: Millis, last: bool, fleet: impl FnOnce() -> Option<FleetRecord>) {
        let mut lines = self.0.fleet.lock();
        if !(last || lines.is_due(now)) {
            return;
        }
        let Some(line) = fleet().and_then(|fleet| lines.look(now, fleet)) else {
            return;
        };
        if self.0.queue.try_send(CaptureMessage::Fleet(line)).is_err() {
            lines.failed();
        }
    }

    /// Waits until all queued records are written or the time limit has passed.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        let flushed = async {
            if self.0.queue.send(CaptureMessage::End(done)).await.is_ok() {
                let _ = written.await;
            }
        };
        if tokio::time::timeout(FLUSH_LIMIT, flushed).await.is_err() {
            warn!(target: TARGET, "the capture's last turns are not written: the disk does not respond");
        }
    }
}

/// Registration of a turn in flight. Dropping it omits the turn from the capture.
#[derive(Debug)]
pub struct Slip {
    shared: Arc<CaptureState>,
    arrival: ArrivalOrder,
}

impl Slip {
    /// Records the completed turn.
    pub fn hand_in(self, record: Record<'static>) {
        // Sent before the registration is removed: the writer relies on the record of every turn not in flight.
        let message = CaptureMessage::Turn(self.arrival, Box::new(record));
        if self.shared.queue.try_send(message).is_err() {
            self.shared.counters.count("dropped", 1);
        }
    }
}

impl Drop for Slip {
    fn drop(&mut self) {
        self.shared.open.lock().remove(&self.arrival);
    }
}

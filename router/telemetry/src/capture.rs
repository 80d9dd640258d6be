//! Captures: what was asked of the fleet, written down as a trace that `tailroute replay` plays again.
//!
//! A trace of one's own traffic is what weights have to be tried on. So a turn that was answered becomes a line: when it
//! came, how long its prompt and answer were, which blocks its prompt consists of, where it was sent, and what was
//! predicted and measured. It is a turn trace of `lab::trace` with some more fields.
//!
//! # What a capture does not say
//! No text, and no hash of text: blocks and conversations are numbered in the order in which they first appear
//! ([`numbers`]), so that two lines show that their prompts begin alike and nothing shows how. That is also what keeps a
//! line short, as new blocks have consecutive numbers.
//!
//! # In order
//! A trace is sorted by arrival, but a turn is known when it has ended. The writer therefore holds a line back while a
//! turn that came earlier is still under way, and lets it go when none is, or when it holds too much; what then comes too
//! late is counted and left out ([`writer`]).
//!
//! # Off the path
//! A request hands its record to a bounded queue and never waits: where the queue is full the record is dropped and
//! counted. A thread looks at the queue some fifty times a second, and numbers, sorts and writes. The disk that a capture takes
//! is bounded by its settings ([`mod@file`]).
//!
//! A capture in [`memory`] needs none of that: a turn is appended as it is, and what is read is sorted and numbered then.

pub mod file;
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
use policy::units::Millis;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use self::file::Ring;
use self::numbers::Numbers;
pub use self::record::Record;
use self::record::{Place, micros};

/// The target of this module's lines in the log: filters such as `tailroute=debug` apply to them.
const TARGET: &str = "tailroute::capture";

/// Records that wait for the writer.
const QUEUE: usize = 4096;

/// For its file to be made, when the router starts.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// For what was handed in to be written, when the router stops.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// A capture that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write a capture to {} (capture.path)", path.display())]
pub struct CaptureError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Counts what becomes of turns.
pub trait Counters: std::fmt::Debug + Send + Sync {
    /// So many turns were `written`, `dropped` (the queue was full), `late` (others had been written already) or `failed` (the
    /// disk).
    fn count(&self, outcome: &str, turns: u64);

    /// The thread that writes was started again.
    fn restarted(&self);
}

/// What the writer is told.
#[derive(Debug)]
enum Message {
    Turn(Place, Box<Record<'static>>),
    /// Write everything, and say so.
    End(oneshot::Sender<()>),
}

/// Turns under way.
type Open = Mutex<BTreeSet<Place>>;

/// A capture that is being written.
#[derive(Clone, Debug)]
pub struct Capture(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Message>,
    open: Arc<Open>,
    sequence: AtomicU64,
    counters: Arc<dyn Counters>,
}

impl Capture {
    /// Opens the file and starts the thread that writes it.
    ///
    /// # Errors
    /// If the file cannot be made, or the thread not started.
    pub fn start(settings: &config::Capture, counters: Arc<dyn Counters>) -> Result<Self, CaptureError> {
        let failed = |source| CaptureError {
            path: settings.path.clone(),
            source,
        };
        let (path, max_bytes) = (settings.path.clone(), settings.max_bytes.get() as u64);
        let open = move || Ring::open(&path, max_bytes);
        let ring = config::file::within(&settings.path, OPEN_LIMIT, open).map_err(failed)?;
        let numbers = Numbers::default();
        let (queue, messages) = mpsc::channel(QUEUE);
        let open = Arc::new(Open::default());
        let writer = writer::Writer::new((ring, numbers), Arc::clone(&open), Arc::clone(&counters));
        std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || writer.run_supervised(messages))
            .map_err(failed)?;
        let sequence = AtomicU64::new(0);
        Ok(Self(Arc::new(Shared {
            queue,
            open,
            sequence,
            counters,
        })))
    }

    /// A turn that arrived then goes out.
    #[must_use]
    pub fn begin(&self, arrived: Millis) -> Slip {
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        let place = (micros(arrived), sequence);
        self.0.open.lock().insert(place);
        Slip {
            shared: Arc::clone(&self.0),
            place,
        }
    }

    /// Waits until what was handed in is written, or the disk has taken too long.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        let flushed = async {
            if self.0.queue.send(Message::End(done)).await.is_ok() {
                let _ = written.await;
            }
        };
        if tokio::time::timeout(FLUSH_LIMIT, flushed).await.is_err() {
            warn!(target: TARGET, "the capture's last turns are not written: its disk does not answer");
        }
    }
}

/// A turn's place in the capture. Dropped, the turn is left out.
#[derive(Debug)]
pub struct Slip {
    shared: Arc<Shared>,
    place: Place,
}

impl Slip {
    /// The turn is over.
    pub fn hand_in(self, record: Record<'static>) {
        // Before the place is given up: the writer relies on finding the record of every place that is not open.
        let message = Message::Turn(self.place, Box::new(record));
        if self.shared.queue.try_send(message).is_err() {
            self.shared.counters.count("dropped", 1);
        }
    }
}

impl Drop for Slip {
    fn drop(&mut self) {
        self.shared.open.lock().remove(&self.place);
    }
}

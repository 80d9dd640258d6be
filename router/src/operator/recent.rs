//! The capture in memory that weights are tried on: started and stopped while the router serves.

use std::num::NonZeroUsize;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use policy::units::Millis;

use crate::capture::memory::Memory;
use crate::capture::{Capture, CaptureError, Slip};
use crate::metrics::{Counter, Labelled};

/// Bytes of turns that are kept unless another number is asked for.
pub const DEFAULT_BYTES: usize = 16 << 20;
/// Conversations, and keys, that are remembered to number turns: a tenth of what a file's capture remembers.
pub const REMEMBERED: (NonZeroUsize, NonZeroUsize) = (
    NonZeroUsize::new(20_000).unwrap(),
    NonZeroUsize::new(100_000).unwrap(),
);

/// One that runs, or has run.
#[derive(Debug)]
pub struct Running {
    /// What it holds.
    pub memory: Memory,
    /// Most bytes of it.
    pub max_bytes: usize,
    /// When it was started, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Gone when it was stopped.
    capture: Option<Capture>,
    turns: Labelled<Counter>,
    /// Turns that had been left out before.
    left_out_before: u64,
}

impl Running {
    /// Whether turns are added.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.capture.is_some()
    }

    /// Turns that were left out: the queue was full, or they came too late.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        left_out(&self.turns).saturating_sub(self.left_out_before)
    }
}

fn left_out(turns: &Labelled<Counter>) -> u64 {
    let of = |outcome| turns.with_label_values(&[outcome]).get();
    of("dropped") + of("late")
}

/// The newest turns, if they are captured.
#[derive(Debug, Default)]
pub struct Recent {
    held: ArcSwapOption<Running>,
    /// Held while one is started or stopped: neither may undo what the other has just done.
    changing: Mutex<()>,
}

impl Recent {
    /// Begins anew, counting turns in `turns`; what was held before is gone.
    ///
    /// # Errors
    /// If the thread that writes cannot be started.
    pub fn start(&self, max_bytes: usize, turns: Labelled<Counter>) -> Result<(), CaptureError> {
        let memory = Memory::new(max_bytes);
        let capture = Capture::to_memory(&memory, turns.clone(), REMEMBERED)?;
        let _changing = self.changing.lock();
        self.held.store(Some(Arc::new(Running {
            memory,
            max_bytes,
            since_unix_ms: super::unix_ms(),
            capture: Some(capture),
            left_out_before: left_out(&turns),
            turns,
        })));
        Ok(())
    }

    /// Adds no more turns; what is held stays. Whether there was anything to stop.
    pub fn stop(&self) -> bool {
        let _changing = self.changing.lock();
        let Some(running) = self.held.load_full().filter(|running| running.is_running()) else {
            return false;
        };
        self.held.store(Some(Arc::new(Running {
            memory: running.memory.clone(),
            max_bytes: running.max_bytes,
            since_unix_ms: running.since_unix_ms,
            capture: None,
            turns: running.turns.clone(),
            left_out_before: running.left_out_before,
        })));
        true
    }

    /// What is held.
    #[must_use]
    pub fn now(&self) -> Option<Arc<Running>> {
        self.held.load_full()
    }

    /// A turn that arrived then goes out.
    #[must_use]
    pub fn begin(&self, arrived: Millis) -> Option<Slip> {
        let running = self.held.load();
        let capture = running.as_ref()?.capture.as_ref()?;
        Some(capture.begin(arrived))
    }

    /// Waits until what was handed in is there.
    pub async fn flush(&self) {
        let running = self.now();
        if let Some(capture) = running.as_ref().and_then(|running| running.capture.as_ref()) {
            capture.flush().await;
        }
    }
}

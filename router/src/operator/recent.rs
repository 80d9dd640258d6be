//! The capture in memory that weights are tried on: started and stopped while the router serves.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use policy::units::Millis;

use crate::metrics::{Counter, Labelled};
use telemetry::capture::Record;
use telemetry::capture::memory::Memory;

/// Bytes of turns that are kept unless another number is asked for.
pub const DEFAULT_BYTES: usize = 16 << 20;

/// One that runs, or has run.
#[derive(Debug)]
pub struct Running {
    /// What it holds.
    pub memory: Memory,
    /// Most bytes of it.
    pub max_bytes: usize,
    /// When it was started, in milliseconds since 1970.
    pub since_unix_ms: u64,
    is_running: bool,
    turns: Outcomes,
}

/// Turns by what became of them.
#[derive(Clone, Debug)]
struct Outcomes {
    written: Counter,
    dropped: Counter,
}

impl Running {
    /// Whether turns are added.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Adds a turn that arrived then, and is over.
    pub fn write(&self, arrived: Millis, record: &Record<'_>) {
        let has_room = self.memory.write(arrived, record);
        let outcome = if has_room {
            &self.turns.written
        } else {
            &self.turns.dropped
        };
        outcome.inc();
    }
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
    pub fn start(&self, max_bytes: usize, turns: &Labelled<Counter>) {
        let turns = Outcomes {
            written: turns.with_label_values(&["written"]),
            dropped: turns.with_label_values(&["dropped"]),
        };
        let _changing = self.changing.lock();
        self.held.store(Some(Arc::new(Running {
            memory: Memory::new(max_bytes),
            max_bytes,
            since_unix_ms: super::unix_ms(),
            is_running: true,
            turns,
        })));
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
            is_running: false,
            turns: running.turns.clone(),
        })));
        true
    }

    /// What is held.
    #[must_use]
    pub fn now(&self) -> Option<Arc<Running>> {
        self.held.load_full()
    }

    /// Where turns are added, if they are.
    #[must_use]
    pub fn open(&self) -> Option<Guard<Option<Arc<Running>>>> {
        let running = self.held.load();
        running
            .as_ref()
            .is_some_and(|running| running.is_running())
            .then_some(running)
    }
}

//! Captures turns in memory for previews. Captures are started and stopped while the router serves.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use policy::units::Millis;

use metrics::{Counter, Labelled};
use telemetry::capture::Record;
use telemetry::capture::memory::Memory;

/// Default size of the capture in bytes.
pub const DEFAULT_BYTES: usize = 16 << 20;

/// A capture that is running or was stopped.
#[derive(Debug)]
pub struct Running {
    pub memory: Memory,
    /// Largest size in bytes.
    pub max_bytes: usize,
    /// Time at which the capture was started, in milliseconds since 1970.
    pub since_unix_ms: u64,
    is_running: bool,
    turns: LineCounters,
}

#[derive(Clone, Debug)]
struct LineCounters {
    written: Counter,
    dropped: Counter,
}

impl Running {
    /// Returns whether turns are added.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Adds a completed turn and counts it, or counts it as dropped if it is too large.
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

/// The most recent turns, if they are captured.
#[derive(Debug, Default)]
pub struct Recent {
    held: ArcSwapOption<Running>,
    /// Locked while a capture is started or stopped, so that neither undoes the other.
    changing: Mutex<()>,
}

impl Recent {
    /// Starts an empty capture that counts turns in `turns`, replacing an earlier one.
    pub fn start(&self, max_bytes: usize, turns: &Labelled<Counter>) {
        let turns = LineCounters {
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

    /// Stops the capture and keeps its turns. Returns whether one was running.
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

    /// Returns the capture, running or stopped.
    pub fn now(&self) -> Option<Arc<Running>> {
        self.held.load_full()
    }

    /// Returns the capture if it is running.
    #[must_use]
    pub fn open(&self) -> Option<Guard<Option<Arc<Running>>>> {
        let running = self.held.load();
        running
            .as_ref()
            .is_some_and(|running| running.is_running())
            .then_some(running)
    }
}

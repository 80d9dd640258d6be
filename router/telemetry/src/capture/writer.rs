//! The writer thread of a capture: sorts, numbers and writes turns.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tracing::{error, warn};

use super::file::Ring;
use super::numbers::{Line, Numbers};
use super::record::{ArrivalOrder, Record};
use super::{CaptureMessage, CaptureObserver, OpenTurns, TARGET};
use crate::logs::panic_message;

/// Maximum keys of held records: 32 MiB.
const HELD_KEYS: usize = 2 << 20;
const HELD_RECORDS: usize = 8192;
/// Turns that arrived up to this long before the last written one get its time; earlier ones are left out.
const TOLERANCE_US: u64 = 5_000_000;
/// Poll interval of the queue. A wake-up per turn would cost more than the turn itself.
const REST: Duration = Duration::from_millis(20);
const AT_ONCE: usize = 512;
const USUAL_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Writer {
    ring: Ring,
    numbers: Numbers,
    open: Arc<OpenTurns>,
    counters: Arc<dyn CaptureObserver>,
    held: BTreeMap<ArrivalOrder, Box<Record<'static>>>,
    held_keys: usize,
    last_us: u64,
    failing: bool,
}

impl Writer {
    pub(super) fn new(
        ring: Ring,
        numbers: Numbers,
        open: Arc<OpenTurns>,
        counters: Arc<dyn CaptureObserver>,
    ) -> Self {
        Self {
            ring,
            numbers,
            open,
            counters,
            held: BTreeMap::new(),
            held_keys: 0,
            last_us: 0,
            failing: false,
        }
    }

    /// Runs until all senders are dropped. A panic loses the turns being written.
    pub(super) fn run_supervised(mut self, mut messages: mpsc::Receiver<CaptureMessage>) {
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run(&mut messages))) {
            self.counters.restarted();
            self.held_keys = self.held.values().map(|record| record.prompt.len()).sum();
            error!(
                target: TARGET,
                task = "capture",
                why = panic_message(&*panic),
                "a task failed; restarting it"
            );
            rest();
        }
    }

    fn run(&mut self, messages: &mut mpsc::Receiver<CaptureMessage>) {
        loop {
            let mut next = if self.held.is_empty() {
                match messages.blocking_recv() {
                    None => return,
                    first => first,
                }
            } else {
                None
            };
            rest();
            // Read before the queue is drained: an earlier turn not in flight is then in the queue, or was dropped.
            let oldest = self.open.lock().first().copied();
            let mut waiting = Vec::new();
            let is_over = loop {
                match next.map_or_else(|| messages.try_recv(), Ok) {
                    Ok(CaptureMessage::Turn(arrival, record)) => self.hold(arrival, record),
                    Ok(CaptureMessage::Fleet(line)) => self.write_fleet(line),
                    Ok(CaptureMessage::End(done)) => waiting.push(done),
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
                next = None;
            };
            let all = is_over || !waiting.is_empty();
            self.release(oldest.filter(|_| !all));
            for done in waiting {
                let _ = done.send(());
            }
            if is_over {
                return;
            }
        }
    }

    fn hold(&mut self, arrival: ArrivalOrder, record: Box<Record<'static>>) {
        self.held_keys += record.prompt.len();
        self.held.insert(arrival, record);
    }

    /// Writes held turns that arrived before every turn in flight, and more if too many are held.
    fn release(&mut self, oldest: Option<ArrivalOrder>) {
        let mut lines = Vec::new();
        while let Some((arrival, record)) = self.held.pop_first() {
            let free = oldest.is_none_or(|oldest| arrival < oldest);
            if !free && self.held_keys <= HELD_KEYS && self.held.len() < HELD_RECORDS {
                self.held.insert(arrival, record);
                break;
            }
            self.held_keys -= record.prompt.len();
            lines.extend(self.line(arrival, &record));
            if lines.len() >= AT_ONCE {
                self.write(&mut lines);
            }
        }
        self.write(&mut lines);
    }

    fn write(&mut self, lines: &mut Vec<Line>) {
        if lines.is_empty() {
            return;
        }
        let count = lines.len() as u64;
        let mut text = Vec::with_capacity(lines.len() * USUAL_BYTES);
        for line in lines.drain(..) {
            line.write(&mut text);
        }
        match self.ring.write(&text) {
            Ok(()) => {
                self.counters.count("written", count);
                self.failing = false;
            }
            Err(error) => {
                self.counters.count("failed", count);
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(target: TARGET, %error, "cannot write the capture; turns are dropped until it can be written");
                }
            }
        }
    }

    fn write_fleet(&mut self, line: Vec<u8>) {
        // A failure is reported with the next turns, and the line begins the next file.
        let _ = self.ring.write_fleet(line);
    }

    fn line(&mut self, arrival: ArrivalOrder, record: &Record<'_>) -> Option<Line> {
        let arrived_us = arrival.at_us;
        if arrived_us + TOLERANCE_US < self.last_us {
            self.counters.count("late", 1);
            return None;
        }
        self.last_us = self.last_us.max(arrived_us);
        Some(self.numbers.line(self.last_us as f64 / 1e6, record))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a separate thread that no request waits for"
)]
fn rest() {
    std::thread::sleep(REST);
}
